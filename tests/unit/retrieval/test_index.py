"""An index of a folder: incremental, exact, and not to be used with another model."""

import itertools
import random
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

import dear
from dear.errors import ConfigError, DataError, DearWarning
from dear.reports.sheet import write_found
from dear.retrieval.index import read_index
from dear.retrieval.search import Ask, Found, Hit, nearest
from dear.retrieval.search import find as find_all
from dear.retrieval.segments import COPIED, ENCODED, Entry
from dear.retrieval.update import update_index
from dear.storage.files import write_atomic
from dear.workflows.search import search
from helpers import move_parameters


def find(model, index, query, **how):
    """The hits by one kind of feature."""
    (found,) = find_all(model, index, query, **how)
    return found.hits


def all_features(index):
    """Every image's features by its path: what an index says, in whatever order its rows are."""
    each = [index.features(kind) for kind in index.kinds]
    return {stamp.path: torch.stack([one[row] for one in each]) for row, stamp in enumerate(index.images)}


def same_features(one, other, atol=2e-3):
    left, right = all_features(one), all_features(other)
    return left.keys() == right.keys() and all(torch.allclose(left[name], right[name], atol=atol) for name in left)


def picture(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    image = Image.new("RGB", (40, 40), tuple(chance.randrange(256) for _ in range(3)))
    image.paste(tuple(chance.randrange(256) for _ in range(3)), (5, 5, 5 + chance.randrange(5, 30), 30))
    image.save(path)


@pytest.fixture
def photos(tmp_path):
    for i in range(6):
        picture(tmp_path / "photos" / f"{i % 2}" / f"{i}.png", i)
    return tmp_path / "photos"


@pytest.mark.parametrize("count", [1, 3, 50])
def test_nearest_is_exact_across_blocks(monkeypatch, count):
    monkeypatch.setattr("dear.retrieval.search.BLOCK", 4)
    features = torch.randn(11, 5, generator=torch.Generator().manual_seed(0))
    query = torch.randn(5, generator=torch.Generator().manual_seed(1))
    found = nearest(query, features, count)
    scores = features @ query
    assert [row for row, _ in found] == scores.argsort(descending=True).tolist()[:count]
    assert [score for _, score in found] == pytest.approx(sorted(scores.tolist(), reverse=True)[:count])


def test_only_new_and_changed_files_are_encoded(model, photos, tmp_path):
    index, encoded = update_index(model, photos, tmp_path / "index")
    assert (len(index.images), encoded) == (6, 6)
    assert index.kinds == ("cls", "color", "shape", "texture", "object", "location")
    assert update_index(model, photos, tmp_path / "index")[1] == 0
    picture(photos / "new.png", 7)
    picture(photos / "0" / "0.png", 8)
    (photos / "1" / "1.png").unlink()
    again, encoded = update_index(model, photos, tmp_path / "index")
    assert (len(again.images), encoded) == (6, 2)
    fresh, _ = update_index(model, photos, tmp_path / "fresh")
    assert same_features(read_index(tmp_path / "index"), fresh)


def test_old_segments_are_never_written_again(model, photos, tmp_path):
    update_index(model, photos, tmp_path / "index")
    (first,) = (tmp_path / "index").glob("segment-*")
    before = first.read_bytes(), first.stat().st_mtime_ns, first.stat().st_ino
    picture(photos / "new.png", 7)
    (photos / "1" / "1.png").unlink()
    index, _ = update_index(model, photos, tmp_path / "index")
    assert (first.read_bytes(), first.stat().st_mtime_ns, first.stat().st_ino) == before
    assert [segment.rows for segment in index.segments] == [6, 1]
    assert len(index) == 6
    (photos / "new.png").unlink()
    index, encoded = update_index(model, photos, tmp_path / "index")
    assert (len(index), encoded, index.rows) == (5, 0, 5)  # two of seven rows are dead: it was written anew
    assert not first.exists()
    assert same_features(index, update_index(model, photos, tmp_path / "fresh")[0])


def test_renamed_copied_and_touched_files_are_not_encoded_again(model, photos, tmp_path):
    before, _ = update_index(model, photos, tmp_path / "index")
    known = all_features(before)
    (photos / "0" / "0.png").rename(photos / "renamed.png")
    (photos / "copy.png").write_bytes((photos / "1" / "1.png").read_bytes())
    (photos / "1" / "3.png").touch()
    index, encoded = update_index(model, photos, tmp_path / "index")
    assert (len(index), encoded) == (7, 0)
    states = {stamp.path: stamp.state for stamp in index.images}
    changed = ("renamed.png", "copy.png", "1/3.png")
    assert states == {name: COPIED if name in changed else ENCODED for name in states}
    now = all_features(index)
    for name, earlier in (("renamed.png", "0/0.png"), ("copy.png", "1/1.png"), ("1/3.png", "1/3.png")):
        assert torch.allclose(now[name], known[earlier], atol=1e-6)
    assert same_features(index, update_index(model, photos, tmp_path / "fresh")[0])


def test_a_file_that_changes_into_garbage_is_left_out(model, photos, tmp_path):
    update_index(model, photos, tmp_path / "index")
    (photos / "0" / "0.png").write_bytes(b"no image any more")
    index, encoded = update_index(model, photos, tmp_path / "index")
    assert (len(index), encoded, len(index.problems)) == (5, 0, 1)


class Killed(BaseException):
    """What ends a process between two of its steps."""


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_write_an_index_is_whole_and_continues(model, photos, tmp_path, monkeypatch, after):
    """At every write and every removal of an update that adds, ends rows and compacts: before it, and after it."""
    monkeypatch.setattr("dear.retrieval.update.WRITE_EVERY", 2)
    update_index(model, photos, tmp_path / "start")
    earlier = all_features(read_index(tmp_path / "start"))
    for i in range(4):
        picture(photos / f"new{i}.png", 10 + i)
    for i in range(3):
        (photos / str(i % 2) / f"{i}.png").unlink()
    fresh, _ = update_index(model, photos, tmp_path / "fresh")
    later = all_features(fresh)
    unlink = Path.unlink
    for stop in itertools.count():
        out = Path(shutil.copytree(tmp_path / "start", tmp_path / f"{after}-{stop}"))
        steps = itertools.count()

        def step(do, *given, steps=steps, stop=stop, **told):
            ends = next(steps) == stop
            if ends and not after:
                raise Killed
            do(*given, **told)
            if ends:
                raise Killed

        with monkeypatch.context() as patched:
            for place in ("storage.columns", "retrieval.index"):
                patched.setattr(f"dear.{place}.write_atomic", partial(step, write_atomic))
            patched.setattr(Path, "unlink", lambda path, **how: step(unlink, path, **how))
            try:
                update_index(model, photos, out, batch_size=2)
            except Killed:
                killed = True
            else:
                killed = False
        found = all_features(read_index(out))
        for name, features in found.items():
            assert torch.allclose(features, (earlier | later)[name], atol=2e-3)
        assert earlier.keys() - later.keys() >= found.keys() - later.keys()
        index, _ = update_index(model, photos, out)
        assert same_features(index, fresh)
        named = {entry.file for entry in index.manifest.segments}
        assert {path.name for path in out.glob("segment-*")} == named
        if not killed:
            break
    assert stop > 8


def test_a_reader_starts_again_if_a_writer_replaced_segments(model, photos, tmp_path, monkeypatch):
    update_index(model, photos, tmp_path / "index")
    opened, tries = Entry.open, []

    def gone(*values):
        tries.append(values)
        if len(tries) == 1:
            raise FileNotFoundError
        return opened(*values)

    monkeypatch.setattr(Entry, "open", gone)
    assert len(read_index(tmp_path / "index")) == 6
    assert len(tries) == 2


def test_a_stopped_index_goes_on(model, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("dear.retrieval.update.WRITE_EVERY", 2)

    def stop(done):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_index(model, photos, tmp_path / "index", batch_size=2, progress=stop)
    index, encoded = update_index(model, photos, tmp_path / "index", batch_size=2)
    assert (len(index.images), encoded) == (6, 2)


def test_stopped_between_its_files_an_index_is_still_whole(model, photos, tmp_path, monkeypatch):
    update_index(model, photos, tmp_path / "index")
    picture(photos / "new.png", 7)
    written = []

    def full(path, data):
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        write_atomic(path, data)

    monkeypatch.setattr("dear.storage.columns.write_atomic", full)
    monkeypatch.setattr("dear.retrieval.index.write_atomic", full)
    with pytest.raises(DataError, match="make room and try again"):
        update_index(model, photos, tmp_path / "index")
    assert len(read_index(tmp_path / "index").images) == 6
    monkeypatch.undo()
    assert update_index(model, photos, tmp_path / "index")[1] == 1
    assert sorted(path.name for path in (tmp_path / "index").glob("[!.d]*")) == [
        "index.json",
        "segment-000001.safetensors",
        "segment-000002.safetensors",
    ]


def test_a_text_may_have_a_full_stop(model, photos, tmp_path):
    index, _ = update_index(model, photos, tmp_path / "index")
    assert len(find(model, index, "a photo of Mr. Cat.", top_k=2)) == 2


def test_an_image_finds_itself_by_every_feature(model, photos, tmp_path):
    index, _ = update_index(model, photos, tmp_path / "index")
    for kind in index.kinds:
        hits = find(model, index, photos / "1" / "3.png", by=kind, top_k=2)
        assert hits[0].path == photos.resolve() / "1" / "3.png"
        assert hits[0].score == pytest.approx(1, abs=1e-3)
    assert len(find(model, index, "a red thing", by="color", top_k=4)) == 4


def test_search_is_one_call(model, photos, tmp_path):
    folder = model.save_pretrained(tmp_path / "run")
    index, _ = update_index(model, photos, folder / "index")
    expected = find(model, index, photos / "1" / "3.png", by="shape", top_k=3)
    for run in (dear.load(folder, model.clip), model):
        with pytest.warns(DearWarning, match="The shape feature is nearly the"):  # tokens that were never trained
            found = search(run, photos / "1" / "3.png", index=folder / "index", by="shape", top_k=3)
        assert [hit.path for hit in found] == [hit.path for hit in expected]
    with pytest.raises(ConfigError, match=r"search\(model, query, index=FOLDER\)"):
        search(model, "a star")


def test_features_do_not_need_classes(clip, roles, photos, tmp_path):
    model = dear.DeAR(clip, roles)
    assert model.classes is None
    index, _ = update_index(model, photos, tmp_path / "index")
    named = update_index(model.for_classes(["cat", "dog"]), photos, tmp_path / "named")[0]
    assert same_features(index, named, atol=0)


def test_bad_images_are_left_out_and_named(model, photos, tmp_path):
    (photos / "broken.jpg").write_bytes(b"not an image")
    index, encoded = update_index(model, photos, tmp_path / "index")
    assert (len(index.images), encoded) == (6, 6)
    assert "broken.jpg cannot be read" in index.problems[0]


def test_what_cannot_be_searched_says_so(model, photos, tmp_path):
    index, _ = update_index(model, photos, tmp_path / "index")
    with pytest.raises(ConfigError, match=r"no feature 'colour'.*Did you mean 'color'"):
        find(model, index, "red", by="colour")
    with pytest.raises(ConfigError, match=r"There is no image gone\.png"):
        find(model, index, "gone.png")
    move_parameters(model)
    with pytest.raises(DataError, match="another model"):
        find(model, index, "red")
    with pytest.raises(DataError, match="contains no index"):
        read_index(tmp_path)
    (tmp_path / "index" / "index.json").write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        read_index(tmp_path / "index")
    assert update_index(model, photos, tmp_path / "index", overwrite=True)[1] == 6  # another model: all are new


def test_sheets(photos, tmp_path):
    hits = tuple(Hit(path, 0.5) for path in sorted(photos.rglob("*.png")))
    found = [Found("color", "By color", hits, 0.0)]
    write_found(tmp_path / "sheet.html", Ask(image=hits[0].path), found)
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("<img") == 7
    assert "http" not in page
    write_found(tmp_path / "sheet.png", Ask(), found)
    assert Image.open(tmp_path / "sheet.png").size == (6 * 168 + 8, 192 + 24)
    write_found(tmp_path / "sheet.html", Ask(text="a <b>striped</b> star"), found)
    assert "“a &lt;b&gt;striped&lt;/b&gt; star”" in (tmp_path / "sheet.html").read_text()
    with pytest.raises(ConfigError, match=r"not 'sheet\.txt'"):
        write_found(tmp_path / "sheet.txt", Ask(), found)
