"""The README's story: a dozen photos per class, from training to a comparison, without a test folder."""

import json
import shutil

import pytest

import dear
from dear.engine.run_folder import read_run
from dear.evaluation.test_data import data_of_run
from helpers import TINY_CONFIGS, make_photos

CLASSES = ["ant", "bee", "cow", "dog"]

pytestmark = [
    pytest.mark.xdist_group("dozen"),
    pytest.mark.usefixtures("loaded_once"),
    pytest.mark.covers("N3"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("dozen")
    (root / "clip").mkdir()
    (root / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["shallow"]}))
    make_photos(root / "photos", CLASSES, 12)
    return root


def clip(place):
    return ["--clip", f"local-dir:{place / 'clip'}", "--pretrained", "random", "--workers", 1, "--epochs", 1]


def train(place, out, *more, data="photos"):
    return ["train", place / data, *clip(place), "--set", "mask=all_mixed", "--out", out, *more]


def fitted(place, out, *more):
    return ["train", place / "photos", *clip(place)[:-2], "--method", "linear_probe", "--out", out, *more]


def ids_tested(run, data=None):
    """Ids of the images that a run is tested on, by the folder of their class."""
    return sorted(item.id for item in data_of_run(run, data).items())


def test_every_command_of_the_story_ends_well(dear_, place, tmp_path):
    run, grid = tmp_path / "mine", tmp_path / "compared"
    code, stdout, stderr = dear_(*train(place, run))
    assert code == 0, stderr
    assert "note: 12 images per class: 9 for training, 3 set aside for the test; --test-share 0 trains on" in stderr
    assert "dear eval" in stdout
    code, stdout, stderr = dear_("eval", run)
    assert code == 0, stderr
    assert "of 12 images it was not trained on" in stdout
    code, _, stderr = dear_("report", run, "--workers", 1)
    assert code == 0, stderr
    assert "9 training images per class, seed 1" in (run / "report.html").read_text()
    assert dear_("predict", run, place / "photos" / "ant" / "0.png")[0] == 0

    words = ["--data", place / "photos", *clip(place), "--methods", "zero_shot,tip_adapter", "--seeds", 1]
    code, stdout, stderr = dear_("compare", *words, "--protocol", "few-shot", "--shots", 16, "--out", grid)
    assert code == 0, stderr
    assert "tip_adapter, photos, seed 1, 9 of 16 shots: " in stderr
    assert "with up to 16 photos per class" in stdout
    said = "Classes of photos have 9 training images instead of 16, because they have too few images."
    assert said in (grid / "table.md").read_text()
    assert said in (grid / "compare.html").read_text()
    (cell,) = (grid / "runs").glob("tip_adapter-*")
    assert ids_tested(cell) == ids_tested(run)
    for path in (grid / "cells").iterdir():
        assert json.loads(path.read_text())["scores"][0]["images"] == 12
    assert "Methods are trained on the first half" not in stderr
    code, _, stderr = dear_("compare", *words, "--shots", 16, "--out", tmp_path / "halves")
    assert code == 0, stderr
    assert "Methods are trained on the first half of the classes (base) and tested on both halves; to train" in stderr


def test_the_share_can_be_chosen_and_is_recorded(dear_, place, tmp_path):
    assert dear_(*train(place, tmp_path / "half", "--test-share", 0.5))[0] == 0
    assert len(ids_tested(tmp_path / "half")) == 4 * 6
    assert read_run(tmp_path / "half")["test_share"] == 0.5
    assert dear_(*train(place, tmp_path / "few", "--shots", 9, "--test-share", 0))[0] == 0
    assert dear_(*train(place, tmp_path / "few", "--shots", 9, "--resume"))[0] == 0  # the same images, so the same run
    code, _, stderr = dear_(*train(place, tmp_path / "no", "--test-share", 1))
    assert code == 2
    assert "--test-share is 1.0: give a number from 0 to less than 1." in stderr
    model = dear.fit(
        place / "photos",
        clip=f"local-dir:{place / 'clip'}",
        pretrained="random",
        method="tip_adapter",
        test_share=0.75,
        out=tmp_path / "python",
    )
    assert model.trained_on == tuple(CLASSES)
    assert len(ids_tested(tmp_path / "python")) == 4 * 9


def test_a_run_of_before_set_nothing_aside(dear_, place, tmp_path):
    """Its record has no share: what is tested follows from its shots alone."""
    run = tmp_path / "run"
    assert dear_(*train(place, run, "--shots", 4, "--half", "base"))[0] == 0
    now = ids_tested(run)
    record = json.loads((run / "run.json").read_text())
    del record["test_share"]
    (run / "run.json").write_text(json.dumps(record))
    assert ids_tested(run) == now
    assert dear_(*train(place, run, "--shots", 4, "--half", "base", "--resume"))[0] == 0
    record["description"]["shots"] = 16
    (run / "run.json").write_text(json.dumps(record))
    assert len(ids_tested(run)) == 2 * 8  # of the other half, all would have been sampled


def test_a_run_of_before_is_resumed_with_its_share(dear_, place, tmp_path):
    run = tmp_path / "run"
    assert dear_(*train(place, run, "--test-share", 0))[0] == 0
    probe = tmp_path / "probe"  # by a method that chooses on some of its training images
    assert dear_(*fitted(place, probe, "--test-share", 0))[0] == 0
    assert "begun with other training images: resume with --test-share 0" in dear_(*fitted(place, probe, "--resume"))[2]
    record = json.loads((run / "run.json").read_text())
    del record["test_share"]
    (run / "run.json").write_text(json.dumps(record))
    code, _, stderr = dear_(*train(place, run, "--resume"))
    assert code == 2
    assert "was begun with other training images: resume with --test-share 0, or start over with --overwrite" in stderr
    assert dear_(*train(place, run, "--resume", "--test-share", 0))[0] == 0


def test_photos_that_are_added_later_are_ids_tested(dear_, place, tmp_path):
    photos, run = make_photos(tmp_path / "photos", CLASSES, 3), tmp_path / "run"
    code, stdout, stderr = dear_(*train(tmp_path, run, *clip(place)))
    assert code == 0, stderr
    assert "note: 4 class(es) have no image left for the test, such as 'ant' with 3: add images" in stderr
    assert f"dear eval {run} DATA" in stdout
    assert dear_("eval", run)[0] == 2
    other = make_photos(tmp_path / "other", CLASSES, 3, seed=5)  # the same names of files, other photos
    assert len(ids_tested(run, other)) == 12
    assert dear_("eval", run, other)[0] == 0
    shutil.copy(other / "ant" / "0.png", photos / "ant" / "new.png")
    shutil.copy(other / "bee" / "0.png", photos / "bee" / "new.png")
    assert ids_tested(run) == ["ant/new.png", "bee/new.png"]
    shutil.copytree(photos, tmp_path / "renamed")
    assert ids_tested(run, tmp_path / "renamed") == ["ant/new.png", "bee/new.png"]
