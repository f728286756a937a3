"""Results of a grid in other storage: fsspec's memory and local file systems."""

import fsspec
import pytest

from dear import sync
from dear.errors import ConfigError, OverwriteError


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_both_places_get_what_the_other_has(tmp_path, kind):
    url = f"memory://{tmp_path.name}" if kind == "memory" else f"file://{tmp_path}/shared"
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, cell in ((one, "a"), (other, "b")):
        (folder / "cells").mkdir(parents=True)
        (folder / "runs" / cell / "cache").mkdir(parents=True)
        (folder / "cells" / f"{cell}.json").write_text(cell)
        (folder / "runs" / cell / "adapter_model.safetensors").write_bytes(b"x")
        (folder / "runs" / cell / "checkpoint.safetensors").write_bytes(b"y")
        (folder / "table.csv").write_text(cell)
    assert len(sync(one, url).sent) == 3
    found = sync(other, url)
    assert found.fetched == ("cells/a.json", "runs/a/adapter_model.safetensors")
    assert found.sent == ("cells/b.json", "runs/b/adapter_model.safetensors", "table.csv")
    assert sync(other, url) == ((), ())
    assert sync(one, url).fetched == ("cells/b.json", "runs/b/adapter_model.safetensors")
    assert not (other / "runs" / "a" / "checkpoint.safetensors").exists()
    (one / "cells" / "a.json").write_text("c")
    with pytest.raises(OverwriteError, match="differ"):
        sync(one, url)
    sync(one, url, overwrite=True)


def test_names_that_lead_elsewhere_are_ignored(tmp_path):
    system = fsspec.filesystem("memory")
    for name in ("cells/../../x.json", "cells/.hidden.json", "other.bin"):
        system.pipe_file(f"/evil{tmp_path.name}/{name}", b"x")
    assert sync(tmp_path, f"memory://evil{tmp_path.name}").fetched == ()
    with pytest.raises(ConfigError, match="is not an address"):
        sync(tmp_path, "folder")


def test_the_command_says_how_much_was_copied(dear_, tmp_path):
    (tmp_path / "grid" / "cells").mkdir(parents=True)
    (tmp_path / "grid" / "cells" / "a.json").write_text("{}")
    url = f"file://{tmp_path}/shared"
    assert dear_("sync", tmp_path / "grid", url)[:2] == (0, f"1 files sent to {url}, 0 fetched\n")
    assert dear_("sync", tmp_path / "other", url)[:2] == (0, f"0 files sent to {url}, 1 fetched\n")
    assert (tmp_path / "other" / "cells" / "a.json").read_text() == "{}"
    code, _, stderr = dear_("sync", tmp_path / "grid", "nowhere")
    assert (code, stderr.count("\n")) == (2, 1)
