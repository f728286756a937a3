"""Results of a grid in other storage: fsspec's memory and local file systems."""

import json
import re
from contextlib import suppress

import fsspec
import pytest

from dear import sync
from dear.errors import ConfigError, DataError, OverwriteError
from dear.model import artefact
from dear.storage import remote
from dear.storage.locks import MARKER, Marker, check_ours, kind_of


def mark(folder, kind="grid"):
    folder.mkdir(parents=True, exist_ok=True)
    Marker(kind=kind).write(folder / MARKER)


def adapter(folder, *further, **changed):
    """An adapter's files: a manifest that names `further` files, and those."""
    folder.mkdir(parents=True)
    names = ("adapter_model.safetensors", *further)
    (folder / "adapter_config.json").write_text(json.dumps({"files": {name: {} for name in names}, **changed}))
    for name in (*names, "shots.json"):
        (folder / name).write_text(name)


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


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
        mark(folder)
    assert len(sync(one, url).sent) == 4
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
    mark(tmp_path / "grid")
    url = f"file://{tmp_path}/shared"
    assert dear_("sync", tmp_path / "grid", url)[:2] == (0, f"2 files sent to {url}, 0 fetched\n")
    assert dear_("sync", tmp_path / "other", url)[:2] == (0, f"0 files sent to {url}, 2 fetched\n")
    assert (tmp_path / "other" / "cells" / "a.json").read_text() == "{}"
    code, _, stderr = dear_("sync", tmp_path / "grid", "nowhere")
    assert (code, stderr.count("\n")) == (2, 1)


def test_every_file_of_an_adapter_and_the_markers_are_copied(tmp_path):
    url, grid, new = f"memory://whole{tmp_path.name}", tmp_path / "grid", tmp_path / "new"
    mark(grid)
    adapter(grid / "runs" / "a", "roles.json")
    mark(grid / "runs" / "a", "run")
    adapter(grid / "runs" / "b", "record.json", "words.txt")
    mark(grid / "runs" / "begun", "run")
    sync(grid, url)
    assert sync(new, url).sent == ()
    whole = [name for name in names_in(grid) if "shots" not in name and "begun" not in name]
    assert names_in(new) == whole
    assert {"dear-folder.json", "runs/a/roles.json", "runs/b/record.json", "runs/b/words.txt"} < set(whole)
    check_ours(new, "grid", resume=True, overwrite=False)
    assert sync(new, url) == ((), ())


def test_an_adapter_is_copied_whole(tmp_path):
    """One that was saved in Python has no marker, and gets none."""
    url = f"file://{tmp_path}/shared"
    adapter(tmp_path / "one", "roles.json")
    sync(tmp_path / "one", url)
    sync(tmp_path / "two", url)
    assert names_in(tmp_path / "two") == ["adapter_config.json", "adapter_model.safetensors", "roles.json"]
    assert sync(tmp_path / "two", url) == ((), ())


def test_names_in_a_manifest_are_checked_as_those_of_an_adapter(tmp_path):
    assert f"^{remote.FILE_NAME}$" == artefact.FILE_NAME
    url, system = f"memory://named{tmp_path.name}", fsspec.filesystem("memory")
    names = ["../x.json", "cache/x.json", ".x.json", "x.py", "/x.json", "x.json\n", "good.json"]
    manifest = json.dumps({"files": {name: {} for name in names}}).encode()
    for name in ("x.json", "runs/x.json", "runs/a/cache/x.json", "runs/a/x.py", "runs/a/.x.json", "runs/a/good.json"):
        system.pipe_file(f"/named{tmp_path.name}/{name}", b"x")
    system.pipe_file(f"/named{tmp_path.name}/runs/a/adapter_config.json", manifest)
    for number, damaged in enumerate((b"", b"[]", b'{"files": 3}', b"\xff", b"[" * 100_000)):
        system.pipe_file(f"/named{tmp_path.name}/runs/{number}/adapter_config.json", damaged)
    found = sync(tmp_path / "new", url).fetched
    assert sorted(name for name in found if "/a/" in name) == ["runs/a/adapter_config.json", "runs/a/good.json"]
    assert len(found) == 7


def test_a_folder_that_is_not_ours_is_not_uploaded(tmp_path):
    url, notes = f"file://{tmp_path}/shared", tmp_path / "notes"
    (notes / "cells").mkdir(parents=True)
    (notes / "cells" / "a.json").write_text("{}")
    (notes / "diary.md").write_text("private")
    reason = f"^{re.escape(str(notes))} is neither a grid nor a run, so nothing in it is copied: give the folder of "
    with pytest.raises(DataError, match=reason):
        sync(notes, url)
    mark(notes, "index")
    with pytest.raises(DataError, match=reason):
        sync(notes, url)
    assert not (tmp_path / "shared").exists()


def test_a_paper_is_copied_grid_by_grid(tmp_path):
    mark(tmp_path / "paper", "paper")
    with pytest.raises(DataError, match=r"has several grids: copy each of the folders in .*paper/grids\.$"):
        sync(tmp_path / "paper", f"file://{tmp_path}/shared")
    assert not (tmp_path / "shared").exists()


def test_a_storage_of_something_else_is_refused(tmp_path):
    mark(tmp_path / "shared", "cache")
    with pytest.raises(DataError, match="contains a folder of the kind 'cache', not a grid or a run"):
        sync(tmp_path / "new", f"file://{tmp_path}/shared")
    assert not (tmp_path / "new").exists()


def test_a_storage_that_version_0_3_filled_becomes_a_marked_grid(tmp_path):
    """It copied no markers, so the folder that it fetched to could not be resumed; it is marked now."""
    url, fetched = f"file://{tmp_path}/shared", tmp_path / "fetched"
    for folder in (tmp_path / "shared", fetched):
        (folder / "cells").mkdir(parents=True)
        (folder / "cells" / "a.json").write_text(json.dumps({"format": "dear-cell"}))
    assert sync(tmp_path / "new", url).fetched == ("cells/a.json",)
    assert kind_of(tmp_path / "new") == kind_of(tmp_path / "shared") == "grid"
    assert sync(fetched, url).fetched == (MARKER,)
    assert kind_of(fetched) == "grid"


@pytest.mark.parametrize("is_grid", [True, False])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_copy_that_was_interrupted_can_be_continued(tmp_path, monkeypatch, is_grid, most):
    """Whatever came first, the folder is known again, and a manifest comes after what it lists."""
    url, source, new = f"file://{tmp_path}/shared", tmp_path / "source", tmp_path / "new"
    if is_grid:
        mark(source)
        adapter(source / "runs" / "a", "roles.json")
        mark(source / "runs" / "a", "run")
    else:
        adapter(source, "roles.json")
    sync(source, url)
    fetch, done = remote._fetch, []

    def stop(system, path, target):
        if len(done) == most:
            raise KeyboardInterrupt
        done.append(fetch(system, path, target))

    with monkeypatch.context() as patch:
        patch.setattr(remote, "_fetch", stop)
        with suppress(KeyboardInterrupt):
            sync(new, url)
    assert len(done) == most
    assert not list(new.rglob("adapter_config.json")) or list(new.rglob("roles.json"))
    sync(new, url)
    assert names_in(new) == [name for name in names_in(source) if "shots" not in name]
