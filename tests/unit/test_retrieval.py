"""An index of a folder: incremental, exact, and not to be used with another model."""

import random

import pytest
import torch
from PIL import Image

import dear
from dear.errors import ConfigError, DataError
from dear.files import write_atomic
from dear.reports.sheet import write_sheet
from dear.retrieval.index import Hit, find, nearest, read_index, search, update_index
from helpers import move_parameters


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
    monkeypatch.setattr("dear.retrieval.index.BLOCK", 4)
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
    assert torch.allclose(read_index(tmp_path / "index").features_NGE, fresh.features_NGE, atol=2e-3)


def test_a_stopped_index_goes_on(model, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("dear.retrieval.index.KEEP_EVERY", 2)

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

    monkeypatch.setattr("dear.retrieval.index.write_atomic", full)
    with pytest.raises(DataError, match="make room and try again"):
        update_index(model, photos, tmp_path / "index")
    assert len(read_index(tmp_path / "index").images) == 6
    monkeypatch.undo()
    assert update_index(model, photos, tmp_path / "index")[1] == 1
    assert len(list((tmp_path / "index").glob("[!.d]*"))) == 2


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
        found = search(run, photos / "1" / "3.png", index=folder / "index", by="shape", top_k=3)
        assert [hit.path for hit in found] == [hit.path for hit in expected]
    with pytest.raises(ConfigError, match=r"search\(model, query, index=FOLDER\)"):
        search(model, "a star")


def test_features_do_not_need_classes(clip, roles, photos, tmp_path):
    model = dear.DeAR(clip, roles)
    assert model.classes is None
    index, _ = update_index(model, photos, tmp_path / "index")
    named = update_index(model.for_classes(["cat", "dog"]), photos, tmp_path / "named")[0]
    assert torch.equal(index.features_NGE, named.features_NGE)


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
    with pytest.raises(DataError, match="holds no index"):
        read_index(tmp_path)
    (tmp_path / "index" / "index.json").write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        read_index(tmp_path / "index")
    assert update_index(model, photos, tmp_path / "index", overwrite=True)[1] == 6  # another model: all are new


def test_sheets(photos, tmp_path):
    hits = [Hit(path, 0.5) for path in sorted(photos.rglob("*.png"))]
    write_sheet(tmp_path / "sheet.html", "By color", hits[0].path, hits)
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("<img") == 7
    assert "http" not in page
    write_sheet(tmp_path / "sheet.png", "By color", None, hits)
    assert Image.open(tmp_path / "sheet.png").size == (6 * 168 + 8, 192 + 24)
    write_sheet(tmp_path / "sheet.html", "By color", "a <b>striped</b> star", hits)
    assert "“a &lt;b&gt;striped&lt;/b&gt; star”" in (tmp_path / "sheet.html").read_text()
    with pytest.raises(ConfigError, match=r"not 'sheet\.txt'"):
        write_sheet(tmp_path / "sheet.txt", "", None, hits)
