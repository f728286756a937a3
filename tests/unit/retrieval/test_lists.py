"""Lists for faster search: a cache of the segments, which finds the same images and is never trusted if damaged."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import dear
from dear.cli.commands import read
from dear.errors import ConfigError, DearError, MissingExtraError
from dear.options.commands import BuildSearch
from dear.retrieval import lists as by_lists
from dear.retrieval.build_lists import build_lists, default_lists
from dear.retrieval.index import Manifest, Writer, read_index
from dear.retrieval.lists import advice, open_lists
from dear.retrieval.search import Ask, _found, _Vectors, find
from dear.retrieval.segments import Stamp
from dear.retrieval.update import update_index
from dear.storage.files import write_atomic
from dear.storage.user_cache import clear_cache, list_cache
from helpers import make_photos
from needs import needs

E, KINDS = 16, ["cls", "color"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "search"


def rows_of(seed, count):
    """Features around a few centres, and their files."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(8, len(KINDS), E, generator=torch.Generator().manual_seed(0))
    features = centres[torch.randint(8, (count,), generator=random)]
    features = features + 0.5 * torch.randn(count, len(KINDS), E, generator=random)
    return features, [Stamp(f"{seed}/{row}.jpg", row, row) for row in range(count)]


@pytest.fixture
def index(tmp_path):
    out = tmp_path / "index"
    out.mkdir()
    form = {"folder": "/photos", "kinds": KINDS, "embed": E, "parts": True, "lacking": [], "model_sha256": "0"}
    writer = Writer(out, Manifest(**form, made_by={}, segments=[], next_number=1))
    for seed in (1, 2):
        writer.append(*rows_of(seed, 300))
    return read_index(out)


def hits(index, vector, *, exact=False, text=False, count=7):
    query = _Vectors(None, vector) if text else _Vectors(dict.fromkeys(KINDS, vector), None)
    found = _found(index, Ask(image="x", top_k=count), query, "color", {}, exact)
    return [(str(hit.path), round(hit.score, 4)) for hit in found.hits], found.least


def queries():
    return F.normalize(torch.randn(5, E, generator=torch.Generator().manual_seed(9)), dim=1)


@pytest.mark.parametrize("text", [False, True])
def test_new_rows_are_merged_and_deleted_rows_left_out(index, monkeypatch, text):
    """With all lists searched, the result is that of the exact search: after appending, and after deleting."""
    needs("faiss")
    about, is_new = build_lists(index, "color", lists=8)
    assert (about.lists, about.rows, is_new) == (8, 600, True)
    assert build_lists(index, "color", lists=8) == (about, False)
    monkeypatch.setattr(by_lists, "FOR_TEXT", 8)
    writer = Writer.continued(index)
    grown, dead = index, []
    for step in range(3):
        if step == 1:
            writer.append(*rows_of(3, 40))
        if step == 2:  # the best rows of every query, old and new ones, are deleted
            best = {path for query in queries() for path, _ in hits(grown, query, exact=True)[0]}
            dead = [row for row in range(grown.rows) if str(grown.path(row)) in best]
            assert min(dead) < 600 <= max(dead)
            writer.append(torch.zeros(0, len(KINDS), E), [], dead)
        grown = read_index(index.out)
        opened = open_lists(grown, "color")
        assert (opened.segments, opened.about.rows) == (2, 600)
        everything = replace(opened, about=opened.about.model_copy(update={"probes": 8}))
        monkeypatch.setattr("dear.retrieval.search.open_lists", lambda *_, found=everything: found)
        for query in queries():
            by_list, exact = hits(grown, query, text=text), hits(grown, query, text=text, exact=True)
            assert by_list[0] == exact[0]
            assert by_list[1] == pytest.approx(exact[1], abs=0.05)
    assert build_lists(grown, "color", lists=8)[0].rows == 640
    assert len(list_cache()) == 1  # the entry of the earlier state was replaced


def test_one_list_is_exact_and_few_lists_are_not(index):
    """The comparison can fail: one of eight lists does not find everything."""
    needs("faiss")
    assert build_lists(index, "color")[0].lists == default_lists(999_999) == 1
    assert all(hits(index, query)[0] == hits(index, query, exact=True)[0] for query in queries())
    build_lists(index, "color", lists=8)
    opened = open_lists(index, "color")
    few = replace(opened, about=opened.about.model_copy(update={"probes": 1}))
    rows = [few.search(index, query, 300).best for query in queries()]
    assert all(len(found) < 300 for found in rows)
    assert (default_lists(1_000_000), default_lists(100_000_000)) == (1024, 8192)


@pytest.mark.parametrize("file", ["lists.faiss", "columns.safetensors", "lists.json"])
@pytest.mark.parametrize("damage", ["head", "middle", "end", "cut", "empty", "gone", "folder"])
def test_a_damaged_cache_is_never_used(index, cache, monkeypatch, file, damage):
    needs("faiss")
    monkeypatch.setattr("dear.retrieval.build_lists.LEAST_SHARE", 1)
    expected = [hits(index, query) for query in queries()]
    build_lists(index, "color", lists=4)
    (entry,) = cache.iterdir()
    path, content = entry / file, bytearray((entry / file).read_bytes())
    if damage in ("head", "middle", "end"):
        content[{"head": 30, "middle": len(content) // 2, "end": len(content) - 3}[damage]] ^= 0xFF
        path.write_bytes(content)
    elif damage in ("cut", "empty"):
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
    opened = open_lists(index, "color")
    if opened is not None:  # a list or the sample was changed: found when it is used
        with pytest.raises(by_lists.columns.DamagedSegmentError):
            opened.search(index, queries()[0], 5)
    assert [hits(index, query)[0] for query in queries()] == [found for found, _ in expected]
    assert build_lists(index, "color")[0].lists == 1


def test_a_strangers_file_is_not_opened(index, cache, tmp_path, monkeypatch):
    """An index brings no lists: neither in its own folder, nor under a name in the cache that is another index's."""
    needs("faiss")
    build_lists(index, "color", lists=4)
    (entry,) = cache.iterdir()
    shutil.copytree(entry, index.out / "search" / entry.name)
    wrong = cache / list(by_lists.prefix_names(index, "cls"))[-1]
    shutil.copytree(entry, wrong)
    (wrong / "lists.faiss").write_bytes(b"IwSq" + bytes(1000))
    monkeypatch.setattr("faiss.read_index", lambda *_: pytest.fail("faiss read a stranger's file"))
    assert open_lists(index, "cls") is None
    shutil.rmtree(entry)
    assert open_lists(index, "color") is None


def test_lists_are_a_cache_entry(index):
    needs("faiss")
    for kind in KINDS:
        build_lists(index, kind)
    assert [entry.path.parent.name for entry in list_cache()] == ["search", "search"]
    assert len(clear_cache()) == 2
    assert open_lists(index, "color") is None


def test_the_program_says_when_to_build(index, monkeypatch):
    needs("faiss")
    assert advice(index, "color") == ""
    monkeypatch.setattr(by_lists, "MANY_IMAGES", 500)
    words = f"All 600 images are compared one by one; for faster search type: dear search build {index.out}"
    assert advice(index, "color") == words
    build_lists(index, "color", lists=4)
    assert advice(index, "color") == ""
    Writer.continued(index).append(*rows_of(3, 100))
    assert advice(read_index(index.out), "color").startswith("100 of 700 images are compared one by one")
    monkeypatch.setattr(by_lists, "find_spec", lambda _: None)
    assert "type: pip install 'dear-vlm[search]', then dear search build" in advice(index, "color")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert advice(index, "color") == ""
    with pytest.raises(ConfigError, match="not available on macOS"):
        build_lists(index, "color")


@pytest.mark.parametrize("missing", ["faiss", "pyarrow"])
def test_without_the_extra_one_sentence_says_what_to_install(index, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    call, extra = (dear.build_search, "search") if missing == "faiss" else (dear.export_index, "data")
    more = () if missing == "faiss" else (tmp_path / "out.parquet",)
    with pytest.raises(MissingExtraError, match=rf"pip install 'dear-vlm\[{extra}\]'\.$"):
        call(index.out, *more)
    assert hits(index, queries()[0])[0]


def test_wrong_arguments_are_one_sentence(index, tmp_path):
    for call in (
        lambda: dear.build_search(3),
        lambda: dear.build_search(index.out, kinds="color"),
        lambda: dear.build_search(index.out, kinds=["colour"]),
        lambda: dear.build_search(index.out, threads=0),
        lambda: dear.export_index(index.out, tmp_path / "out.csv"),
        lambda: dear.export_index(index.out, 3),
        lambda: dear.export_index(index.out, tmp_path / "out.parquet", to="csv"),
        lambda: dear.export_index(tmp_path / "nowhere", tmp_path / "out.parquet"),
    ):
        with pytest.raises(DearError):
            call()
    assert read(BuildSearch, {"index": "i", "kinds": "cls,color"}).kinds == ("cls", "color")


def test_search_with_a_model_uses_lists(model, tmp_path, monkeypatch):
    needs("faiss")
    make_photos(tmp_path / "photos", ["ant", "bee"], 4)
    index, _ = update_index(model, tmp_path / "photos", tmp_path / "made")
    photo = tmp_path / "photos" / "bee" / "1.png"
    asked = [{"ask": photo, "by": "cls"}, {"ask": "a bee", "by": "shape"}]
    expected = [find(model, index, **one) for one in asked]
    built = dear.build_search(tmp_path / "made", kinds=["cls", "shape"])
    assert [(one.kind, one.rows, is_new) for one, is_new in built] == [("cls", 8, True), ("shape", 8, True)]
    with monkeypatch.context() as patched:
        patched.setattr("dear.retrieval.search._by_all_rows", lambda *_: pytest.fail("every row was compared"))
        found = [find(model, index, **one) for one in asked]
    for (one,), (other,) in zip(found, expected, strict=True):
        assert [hit.path for hit in one.hits] == [hit.path for hit in other.hits]
        assert one.least == pytest.approx(other.least, abs=1e-4)
    monkeypatch.setattr("dear.retrieval.search.open_lists", lambda *_: pytest.fail("lists were used"))
    assert find(model, index, **asked[0], exact=True) == expected[0]


def test_export_to_parquet(index, tmp_path, monkeypatch):
    needs("pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.setattr("dear.retrieval.export.ROWS", 128)
    Writer.continued(index).append(*rows_of(3, 2), [0, 5, 599])
    now = read_index(index.out)
    assert dear.export_index(index.out, tmp_path / "out" / "all.parquet") == 599
    file = pq.ParquetFile(tmp_path / "out" / "all.parquet")
    assert file.metadata.num_row_groups == 7  # 3 of each segment of 298 and 299 rows, and the new one
    table = file.read()
    assert table.column_names == ["path", *KINDS]
    assert table["path"].to_pylist() == [stamp.path for stamp in now.images]
    for kind in KINDS:
        assert table.schema.field(kind).type.list_size == E
        assert torch.equal(torch.tensor(table[kind].to_pylist()), now.features(kind))
    about = json.loads(table.schema.metadata[b"dear-index"])
    assert (about["folder"], about["model_sha256"], about["kinds"]) == ("/photos", "0", KINDS)
    with pytest.raises(DearError, match="exists: choose another file"):
        dear.export_index(index.out, tmp_path / "out" / "all.parquet")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["all.parquet"]


@pytest.mark.covers("D3")
def test_an_export_has_the_mode_of_every_other_file(index, tmp_path):
    needs("pyarrow")
    dear.export_index(index.out, tmp_path / "all.parquet")
    write_atomic(tmp_path / "other.bin", b"")
    assert (tmp_path / "all.parquet").stat().st_mode == (tmp_path / "other.bin").stat().st_mode


def test_an_export_that_cannot_be_written_leaves_nothing(index, tmp_path, monkeypatch):
    needs("pyarrow")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dear.storage.files.os.fsync", full)
    with pytest.raises(DearError, match=r"cannot be written \(No space left on device\): make room and try again\.$"):
        dear.export_index(index.out, tmp_path / "out" / "all.parquet")
    assert not list((tmp_path / "out").iterdir())
