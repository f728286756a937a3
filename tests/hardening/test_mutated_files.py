"""Every document that we open, mutated in every entry: it is read, or refused in one sentence, never a traceback."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import dear
from dear.backbone.frozen import shape_of
from dear.data.images import folder_images
from dear.data.open import open_dataset
from dear.data.readers import read_list, read_split_file
from dear.engine.feature_cache import evaluation_states
from dear.engine.feature_store import FeatureStore, store_description
from dear.engine.run_folder import read_metrics, read_run
from dear.errors import DearError
from dear.evaluation.results import CellResult
from dear.evaluation.test_data import data_of_run
from dear.retrieval.index import Writer, read_index
from dear.retrieval.search import find
from dear.retrieval.segments import Stamp, columns_of, write_segment
from dear.retrieval.update import update_index
from dear.roles.moments import collect_moments
from dear.roles.rolemap import RoleMap
from dear.storage import documents
from dear.storage.locks import check_ours
from dear.workflows.report_data import _curves
from helpers import TINY_CONFIGS, make_photos

VALUES = (None, [], {}, "x", "", -1, 3, 1e999, True, 10**30, [[]], {"a": None}, "\x1b[31m")
"""What is put in the place of every entry."""
TEXTS = (b"", b"\xff\xfe", b"null", b"[]", b"3", b'"x"', b"{", b"[" * 100_000, b'{"a": 1, "a": 2}', b"\0" * 64)
"""What is put in the place of the whole file."""
LONGEST = 1500


def places(content: object, path: tuple = ()) -> Iterator[tuple]:
    """The way to every entry, but only the first two of a list or of a table of equals."""
    if path:
        yield path
    children = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for number, (key, value) in enumerate(children):
        if number < (12 if isinstance(content, dict) else 2):
            yield from places(value, (*path, key))


def mutants(content: object) -> Iterator[object]:
    """The document with one entry replaced or removed."""
    for path in places(content):
        for value in (*VALUES, ...):
            changed = copy.deepcopy(content)
            parent = changed
            for key in path[:-1]:
                parent = parent[key]
            if value is ...:
                del parent[path[-1]]
            else:
                parent[path[-1]] = value
            yield changed


def written(path: Path, is_lines: bool) -> Iterator[bytes]:
    """Bytes to put in the place of a file: broken ones, and mutants whose seal, if there is one, holds."""
    whole = path.read_bytes()
    yield from TEXTS
    yield from (whole[: len(whole) // 2], whole[:-1] + b"x", whole + whole, b"\xef\xbb\xbf" + whole)
    rows = whole.splitlines()
    content = json.loads(rows[0] if is_lines else whole)
    for one in mutants(content):
        sealed = isinstance(content, dict) and documents.SEAL in content and isinstance(one, dict)
        text = json.dumps(documents.sealed(one) if sealed else one).encode()
        yield b"\n".join([text, *rows[1:]]) + b"\n" if is_lines else text


def said(read: Callable[[], object], about: str) -> str | None:
    """What a reader says against a file; None if it takes it. A path that leads nowhere is the disk's to refuse."""
    try:
        read()
    except (DearError, OSError) as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{about}: {type(error).__name__}: {error}") from error
    return None


def refused(path: Path, read: Callable[[], object], *, is_lines: bool = False) -> int:
    """Write every mutant and read it; the number that was refused."""
    whole, count = path.read_bytes(), 0
    assert said(read, path.name) is None
    for data in written(path, is_lines):
        path.write_bytes(data)
        sentence = said(read, f"{path.name} with {data[:400]!r}")
        assert sentence is None or len(sentence) < LONGEST, (data[:200], sentence)
        count += sentence is not None
    path.write_bytes(whole)
    return count


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutated")
    (folder / "clip").mkdir()
    (folder / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["shallow"]}))
    make_photos(folder / "photos", ["ant", "bee"], 3)
    clip = dear.load_clip(f"local-dir:{folder / 'clip'}", "random")
    few = dear.TrainSettings(epochs=1, batch_size=2)
    model = dear.fit(folder / "photos", clip, shots=1, train=few, mask="all_mixed", out=folder / "run")
    update_index(model, folder / "photos", folder / "index")
    return folder, model


@pytest.mark.covers("C5")
def test_the_record_of_a_run(place):
    folder, _ = place

    def read():
        read_run(folder / "run")
        found = data_of_run(folder / "run", folder / "photos")
        found.halves()
        check_ours(folder / "run", "run", resume=True, overwrite=False)

    assert refused(folder / "run" / "run.json", read) > 50


@pytest.mark.covers("C5")
def test_shots_and_metrics(place):
    folder, _ = place
    assert refused(folder / "run" / "shots.json", lambda: data_of_run(folder / "run").items()) > 50
    refused(folder / "run" / "metrics.jsonl", lambda: _curves(read_metrics(folder / "run")), is_lines=True)


@pytest.mark.covers("C5", "S3")
def test_the_manifest_of_an_adapter(place):
    folder, model = place
    assert refused(folder / "run" / "adapter_config.json", lambda: dear.load(folder / "run", model.clip)) > 50


@pytest.mark.covers("C5")
def test_an_index(place):
    folder, model = place
    thing = model.for_classes(["thing"])
    assert refused(folder / "index" / "index.json", lambda: find(thing, read_index(folder / "index"), "x")) > 50


@pytest.mark.covers("C5", "W9")
def test_every_byte_of_a_segment_counts(place, tmp_path):
    """Bytes are flipped in turn: no search, no update sees anything else than damage."""
    folder, _ = place
    (segment,) = (folder / "index").glob("segment-*")
    index = Path(shutil.copytree(folder / "index", tmp_path / "index")) / segment.name
    whole = segment.read_bytes()
    said = 0
    for at in range(0, len(whole), 7):
        index.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            found = read_index(index.parent)
            before = read_index(segment.parent)
            assert found.images == before.images
            assert all(torch.equal(found.features(kind), before.features(kind)) for kind in found.kinds)
            assert (found.lengths(torch.arange(6)) == before.lengths(torch.arange(6))).all()
        except DearError as error:
            said += "damaged" in str(error)
    assert said > 0.9 * len(range(0, len(whole), 7))
    for cut in (0, 10, len(whole) - 1):
        index.write_bytes(whole[:cut])
        with pytest.raises(DearError, match="damaged"):
            read_index(index.parent)


@pytest.mark.covers("C5")
def test_a_crafted_segment(place, tmp_path):
    """Whoever can seal an index can lie in it: paths and dead rows that lead elsewhere are refused all the same."""
    folder, _ = place
    form = read_index(folder / "index").manifest
    rows = torch.ones(2, len(form.kinds), form.embed)

    def made(*stamps, dead=()):
        (tmp_path / "index.json").unlink(missing_ok=True)
        Writer(tmp_path, form.model_copy(update={"segments": []})).append(rows[: len(stamps)], stamps, dead)
        return read_index(tmp_path)

    assert made(Stamp("a.png", 1, 1)).path(0).name == "a.png"
    for name in ("../a.png", "/etc/passwd", "", "a/../../b", "a\0b"):
        with pytest.raises(DearError, match="damaged"):
            made(Stamp(name, 1, 1)).path(0)
    with pytest.raises(DearError, match="damaged"):
        made(Stamp("a.png", 1, 1), dead=[0])  # it may only end rows before its own
    for ends in ([-1, 2], [2, 1], [1, 3]):
        columns = columns_of(rows, [Stamp("a", 1, 1), Stamp("b", 1, 1)])
        columns["path_ends"] = torch.tensor(ends)
        with pytest.raises(DearError, match="damaged"):
            write_segment(tmp_path, 1, columns).open(tmp_path, len(form.kinds), form.embed).stamps()
    for name in columns:
        lacking = {other: column for other, column in columns.items() if other != name}
        cut = {**columns, name: columns[name][..., :1].contiguous().double()}
        for content in (lacking, cut):
            with pytest.raises((DearError, KeyError), match=r"damaged|size"):
                write_segment(tmp_path, 1, content).open(tmp_path, len(form.kinds), form.embed)
    with pytest.raises(DearError, match="not finite"):
        columns_of(torch.full((1, 1, 4), torch.nan), [Stamp("a", 1, 1)])


@pytest.mark.covers("C5")
def test_lists_and_splits(tmp_path):
    rows = [["a.png", "ant"], ["b.png", "bee"]]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    assert refused(tmp_path / "list.json", lambda: read_list(tmp_path / "list.json")) > 20
    (tmp_path / "list.json").write_text(json.dumps([{"path": path, "label": label} for path, label in rows]))
    assert refused(tmp_path / "list.json", lambda: read_list(tmp_path / "list.json")) > 20
    split = [["a.png", 0, "ant"], ["b.png", 1, "bee"]]
    (tmp_path / "split.json").write_text(json.dumps({"train": split, "val": split, "test": split}))
    assert refused(tmp_path / "split.json", lambda: read_split_file(tmp_path / "split.json")) > 20


@pytest.mark.covers("C5")
def test_a_store_of_frozen_rows(place, tmp_path):
    folder, model = place
    key, shape = store_description(model.clip, "feature", "evaluation"), shape_of(model.clip.vision, "feature")
    data = open_dataset(folder / "photos")

    def read():
        FeatureStore.open(tmp_path, key, shape)
        how = {"batch_size": 4, "workers": 0, "problems": {}}
        assert sum(len(one.indices) for one in evaluation_states(plain, data, data.train, cache=tmp_path, **how)) == 6

    plain = model.plain()
    read()
    (store,) = tmp_path.glob("features-*")
    assert refused(store / "store.json", read) > 50
    (segment,) = store.glob("segment-*")
    whole = segment.read_bytes()
    for at in (*range(0, len(whole), 13), -1):  # what is damaged is computed again
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] if at >= 0 else b"")
        read()
        for other in set(store.glob("segment-*")) - {segment}:
            other.unlink()


@pytest.mark.covers("C5")
def test_cells_and_role_maps(place, tmp_path):
    golden = Path(__file__).parents[1] / "golden" / "v0_2"
    for name in ("dear", "zero_shot"):
        cell = tmp_path / "cell.json"
        shutil.copy(golden / "grid" / "cells" / f"{name}-world-textures-1shots-seed1.json", cell)
        assert refused(cell, lambda: CellResult.read(tmp_path / "cell.json")) > 50
    shutil.copy(golden / "run" / "roles.json", tmp_path / "roles.json")
    assert refused(tmp_path / "roles.json", lambda: RoleMap.load(tmp_path / "roles.json")) > 50


@pytest.mark.covers("C5", "S1")
def test_the_config_of_a_backbone(place):
    folder, _ = place
    path = folder / "clip" / "open_clip_config.json"
    assert refused(path, lambda: dear.load_clip(f"local-dir:{folder / 'clip'}", "random")) > 50


@pytest.mark.covers("C5")
def test_markers_and_locks(place):
    folder, _ = place
    run = folder / "run"
    refused(run / "dear-folder.json", lambda: check_ours(run, "run", resume=True, overwrite=False))


@pytest.mark.covers("C5")
def test_moments(place, tmp_path):
    folder, model = place
    images = folder_images(folder / "photos")
    collect_moments(model.clip, images, first_layer=3, checkpoint=tmp_path)
    path = tmp_path / "moments.safetensors"
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    state = json.loads(header["__metadata__"]["state"])
    for one in (*mutants(state), *(json.loads(text) for text in (b"null", b"[]", b"3"))):
        told = {**header, "__metadata__": {**header["__metadata__"], "state": json.dumps(one)}}
        text = json.dumps(told).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])
        said(lambda: collect_moments(model.clip, images, first_layer=3, checkpoint=tmp_path), f"moments with {one}")
