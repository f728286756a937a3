"""Help oneself: what a machine has, what caches hold, names that say nothing, photos twice, one more class."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import dear
from dear.data.dataset import Item
from dear.data.names import unspoken, with_class, with_names
from dear.data.splits import few_shot
from dear.errors import CacheError, ConfigError, DataError
from dear.evaluation.duplicates import duplicates_sentence, near_duplicates
from dear.storage.locks import mark
from dear.storage.user_cache import clear_cache, list_cache, size_of
from helpers import make_photos


def test_the_doctor_says_what_a_bug_report_needs(dear_, monkeypatch):
    monkeypatch.setenv("HF_HOME", os.path.expanduser("~/weights"))  # noqa: PTH111
    code, out, err = dear_("doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == {
        **dear.doctor(),
        "threads": found["threads"],
        "memory": found["memory"],
        "remarks": found["remarks"],
    }
    assert found["dear"] == dear.__version__
    assert found["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert set(found["extras"]) == {
        "roles",
        "hf",
        "heic",
        "tensorboard",
        "wandb",
        "data",
        "search",
        "ray",
        "onnx",
        "app",
    }
    assert found["device"]["chosen"] in ("cpu", "cuda")
    assert found["environment"]["HF_HOME"] == "~/weights"  # a bug report is public
    code, out, _ = dear_("doctor")
    assert code == 0
    for word in ("dear ", "packages", "extras", "device", "threads", "memory", "cache"):
        assert any(line.startswith(word) for line in out.splitlines()), word


@pytest.fixture
def cache(tmp_path):
    """A cache of three entries, used one after the other."""
    mark(tmp_path / "cache", "cache")
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / "cache" / name).mkdir()
        path = tmp_path / "cache" / name / "rows"
        path.write_bytes(b"x" * 1000)
        os.utime(path, (1e9 - 1e6 * age, 1e9 - 1e6 * age))
    return tmp_path / "cache"


def test_caches_are_listed_and_cleared_down_to_a_size(dear_, cache):
    code, out, _ = dear_("cache", "list", cache)
    assert code == 0
    assert [line.split()[-1].rsplit("/", 1)[-1] for line in out.splitlines()[1:4]] == ["oldest", "older", "new"]
    assert out.splitlines()[-1] == "3.0 kB in all"
    assert dear_("cache", "clear", cache, "--max-size", "2KB")[1] == "1 entries removed, 1.0 kB\n"
    assert [one.path.name for one in list_cache(cache)] == ["older", "new"]
    assert [one.path.name for one in clear_cache(cache)] == ["older", "new"]
    assert dear_("cache", "list", cache)[1] == "nothing is cached\n"


def test_only_caches_of_ours_are_cleared(dear_, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "photo.jpg").write_text("keep me")
    code, _, err = dear_("cache", "clear", tmp_path / "mine")
    assert code == 2
    assert "is not a cache of DeAR, nor the folder of a run that has one" in err
    assert (tmp_path / "mine" / "photo.jpg").exists()
    with pytest.raises(CacheError):
        list_cache(tmp_path / "none")


def test_the_user_s_cache_is_left_alone_if_it_is_not_ours(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path))  # by mistake
    assert list_cache() == clear_cache() == []
    assert (tmp_path / "photos").exists()


def test_sizes():
    assert [size_of(one) for one in (12, "12", "1.5kb", "2 GB", "0")] == [12, 12, 1500, 2 * 10**9, 0]
    for bad in ("much", "-1", "2XB", True, -1):
        with pytest.raises(ConfigError, match="is not a size: give one such as 500MB or 2GB"):
            size_of(bad)


def test_names_that_say_nothing_are_known():
    words = ["cat", "747 400", "boeing 747", "jeep", "v8 engine", "2 euro coin", "T-shirt", "été", "猫", "x-ray"]
    codes = ["n01440764", "003", "class 12", "12", "c3", "label_7", "id-004", "_"]
    assert unspoken([*words, *codes]) == ["747 400", *codes]  # an aircraft may well be a number: it is a note, no error


def test_class_folders_that_are_no_words_get_names(dear_, tmp_path, tiny_folders):
    photos = make_photos(tmp_path / "photos", ["n01440764", "n01443537", "cat"], 4)
    clip = ("--clip", f"local-dir:{tiny_folders['shallow']}", "--pretrained", "random", "--method", "zero_shot")
    train = ("train", photos, *clip, "--shots", 2)
    err = dear_(*train, "--out", tmp_path / "one")[2]
    assert "note: 2 of 3 class names are codes, such as 'n01440764', but CLIP needs words" in err
    assert "--names FILE" in err
    (tmp_path / "names.txt").write_text("n01440764 tench\nn01443537\tgoldfish, Carassius\n")
    code, _, err = dear_(*train, "--names", tmp_path / "names.txt", "--out", tmp_path / "two")
    assert (code, err) == (0, "")
    assert dear.load(tmp_path / "two").classes.names == ("cat", "tench", "goldfish, Carassius")
    assert dear_("eval", tmp_path / "two")[0] == 0  # the names are kept with the run
    assert dear_("report", tmp_path / "two")[0] == 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a", "needs a folder and its name in every line, but one is 'a' alone"),
        ("dog hound", "photos has no class 'dog' to rename"),
        ("ant bee", "Two classes of photos would be called 'bee'"),
        ("", "is not a list of names"),
    ],
)
def test_names_that_cannot_be_used(tmp_path, content, sentence):
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 1)
    (tmp_path / "names.txt").write_text(content)
    with pytest.raises(DataError, match=sentence):
        dear.open_dataset(photos, names=tmp_path / "names.txt")
    with pytest.raises(DataError, match="cannot be read"):
        dear.open_dataset(photos, names=tmp_path / "none.txt")
    (tmp_path / "names.json").write_text('{"ant": "wood ant"}')
    assert dear.open_dataset(photos, names=tmp_path / "names.json").class_names == ("wood ant", "bee")


def test_one_more_class_from_the_command_line(dear_, tmp_path, tiny_folders, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 4)
    make_photos(tmp_path, ["red_panda"], 4, seed=3)
    clip = ("--clip", f"local-dir:{tiny_folders['shallow']}", "--pretrained", "random")
    few = ("--set", "mask=all_mixed", "--shots", 2, "--epochs", 1, "--cached-views", 1, "--workers", 1)
    assert dear_("train", photos, *clip, *few, "--out", "old")[0] == 0
    computed = []
    frozen = dear.FrozenClip.frozen
    monkeypatch.setattr(
        dear.FrozenClip, "frozen", lambda self, x, names: computed.append(len(x)) or frozen(self, x, names)
    )
    more = ("--config", "old/config.yaml", "--cache", "old/cache", "--add-class", "red_panda", "--out", "new")
    code, _, err = dear_("train", photos, *more)
    assert code == 0, err
    # The shots of the new class; those of the others are in the cache. Then all are compared with plain CLIP.
    assert computed == [2, 6]
    model = dear.load("new")
    assert model.classes.names == model.trained_on == ("ant", "bee", "red panda")
    drawn = {name: json.loads((tmp_path / name / "shots.json").read_text())["items"] for name in ("old", "new")}
    assert drawn["new"][: len(drawn["old"])] == drawn["old"]
    code, out, err = dear_("eval", "new")
    assert code == 0, err
    assert "6 images, 3 classes" in out or "6 photos" in out
    assert dear_("predict", "new", "red_panda")[0] == 0
    assert (
        "already has a class 'red panda'"
        in dear_("train", photos, *more[:-1], "third", "--add-class", "red_panda,red_panda")[2]
    )


def test_an_added_class_is_tested_where_others_are(tmp_path):
    for part in ("train", "test"):
        make_photos(tmp_path / "photos" / part, ["ant", "bee"], 3)
    make_photos(tmp_path, ["cow"], 24)
    data = with_class(dear.open_dataset(tmp_path / "photos"), tmp_path / "cow")
    sizes = {split: sum(item.label == 2 for item in data.split(split)) for split in ("train", "test")}
    assert sum(sizes.values()) == 24
    assert 2 <= sizes["test"] <= 11
    assert data.open(data.test[-1].id).size == (40, 36)
    assert data.content_of(data.test[-1].id) != data.content_of(data.test[0].id)
    assert with_names(data, {"cow": "brown cow"}).class_names[-1] == "brown cow"


@pytest.mark.covers("H2")
def test_a_class_of_many_photos_is_added_in_linear_time(tmp_path, monkeypatch):
    """The set of test images was made again for every image."""

    class Counted(Item):
        hashed = 0

        def __hash__(self):
            Counted.hashed += 1
            return super().__hash__()

    for part in ("train", "test"):
        make_photos(tmp_path / "photos" / part, ["ant", "bee"], 1)
    (tmp_path / "cow").mkdir()
    for number in range(100):
        (tmp_path / "cow" / f"{number}.png").write_bytes(b"")
    data = dear.open_dataset(tmp_path / "photos")
    monkeypatch.setattr("dear.data.names.Item", Counted)
    assert len(with_class(data, tmp_path / "cow").train) > 60
    assert Counted.hashed < 300


@pytest.fixture
def twins(tmp_path):
    """Photos of which some are nearly the same: smaller, cropped, mirrored."""
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 6)
    random = np.random.default_rng(5)
    for path in photos.rglob("*.png"):  # something to recognise
        coarse = random.integers(0, 255, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((160, 128), Image.Resampling.BICUBIC).save(path)
    first = Image.open(photos / "ant" / "0.png")
    first.resize((80, 64)).save(photos / "ant" / "smaller.png")
    first.crop((4, 3, 156, 125)).save(photos / "bee" / "cropped.png")
    ImageOps.mirror(first).save(photos / "bee" / "mirrored.png")
    return photos


def test_photos_that_are_nearly_the_same_are_found_and_others_are_not(twins, tiny_clips):
    clip = tiny_clips["plain"]
    data = dear.open_dataset(twins)
    drawn = [item for item in data.train if item.id in ("ant/0.png", "bee/1.png")]
    items = [item for item in data.train if item not in drawn]
    model = dear.Model(clip, dear.get_method("zero_shot")(clip, dear.get_method("zero_shot").Config()))
    pictures = torch.stack([clip.preprocess_eval(data.open(item.id)) for item in items])
    same = dict(enumerate(model.for_classes(["a"]).image_features(pictures)))
    found = near_duplicates(model.for_classes(["a"]), data, items, same, drawn)
    told = {one.test_id for one in found.values()}
    assert {one.train_id for one in found.values()} == {"ant/0.png"}
    assert {"ant/smaller.png", "bee/cropped.png"} <= told <= {"ant/smaller.png", "bee/cropped.png", "bee/mirrored.png"}
    assert near_duplicates(model, data, items, same, []) == {}


def test_eval_says_that_a_result_is_too_good(dear_, twins, tmp_path, tiny_folders):
    clip = ("--clip", f"local-dir:{tiny_folders['plain']}", "--pretrained", "random", "--method", "zero_shot")
    assert dear_("train", twins, *clip, "--shots", 4, "--out", tmp_path / "run")[0] == 0
    data = dear.open_dataset(twins)
    tested = len(data.train) - len(few_shot(data.train, 4, 1))
    err = dear_("eval", tmp_path / "run")[2]
    assert f" of {tested} test photos nearly equal a training photo, such as " in err
    assert "the result is too good; without them" in err
    assert dear.evaluate(tmp_path / "run").warnings


def test_the_sentence_about_duplicates():
    one = {0: dear.evaluation.duplicates.Duplicate("a", "b", 0.99)}
    right = torch.tensor([True, True, False])
    assert duplicates_sentence(one, right).endswith("too good; without them 50.0 % of 2 are right.")
    assert duplicates_sentence(one, right[:1]).endswith("and nothing else was tested.")


def test_a_cache_in_a_run_is_found(cache, tmp_path):
    shutil.move(cache, tmp_path / "kept")
    mark(tmp_path / "run", "run")
    shutil.move(tmp_path / "kept", tmp_path / "run" / "cache")
    assert len(list_cache(tmp_path / "run")) == 3
