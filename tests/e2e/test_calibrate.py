"""`dear calibrate`: on held-out shots, on a validation split, with too few photos, after the photos changed."""

import json
import shutil

import pytest
from PIL import Image

import dear
from dear.data.dataset import Item
from dear.data.splits import folds
from helpers import TINY_CONFIGS, make_photos

CLASSES = ["ant", "bee", "cow", "dog"]

pytestmark = [pytest.mark.xdist_group("calibrate"), pytest.mark.usefixtures("loaded_once")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("calibrate")
    (root / "clip").mkdir()
    (root / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["shallow"]}))
    make_photos(root / "photos", CLASSES, 14)
    return root


def trained(dear_, place, out, data="photos", *more):
    clip = ["--clip", f"local-dir:{place / 'clip'}", "--pretrained", "random", "--workers", 1]
    code, _, stderr = dear_("train", place / data, *clip, "--method", "linear_probe", "--out", out, *more)
    assert code == 0, stderr
    return out


def test_probabilities_are_fitted_on_shots_that_a_second_training_leaves_out(dear_, place, tmp_path):
    run = trained(dear_, place, tmp_path / "run")
    before = dear.load(run)
    code, stdout, stderr = dear_("calibrate", run, "--workers", 1)
    assert code == 0, stderr
    assert "photos held out from the shots" in stdout
    assert "training without 12 of 44 photos" in stderr
    after = dear.load(run)
    assert after.calibration is not None
    assert after.calibration.images == 44  # every shot was held out once
    assert after.calibration.source == "shots"
    assert all(bool((one == after.state_dict()[name]).all()) for name, one in before.state_dict().items())
    assert dear.calibrate(run, workers=1) == after.calibration


def test_a_validation_split_needs_no_second_training(dear_, place, tmp_path):
    data = tmp_path / "split"
    for split, images in (("train", 6), ("val", 9), ("test", 2)):
        make_photos(data / split, CLASSES, images, seed=len(split))
    run = trained(dear_, place, tmp_path / "run", data, "--shots", 9)
    code, stdout, stderr = dear_("calibrate", run, "--workers", 1, "--json")
    assert code == 0, stderr
    assert (json.loads(stdout)["source"], json.loads(stdout)["images"]) == ("validation", 36)
    assert "training without" not in stderr


def test_too_few_photos_are_one_sentence(dear_, place, tmp_path):
    run = trained(dear_, place, tmp_path / "run", "photos", "--shots", 2)
    code, _, stderr = dear_("calibrate", run, "--workers", 1)
    assert code == 2
    assert "Only 8 images" in stderr
    assert "30 are needed" in stderr
    assert dear.load(run).calibration is None


def test_photos_that_cannot_be_read_are_too_few(dear_, place, tmp_path):
    """It ended in an error of torch.cat."""
    data = tmp_path / "split"
    for split, images in (("train", 3), ("val", 9), ("test", 2)):
        make_photos(data / split, CLASSES, images, seed=len(split))
    for path in (data / "val").rglob("*.png"):
        path.write_bytes(b"not an image")
    clip = ["--clip", f"local-dir:{place / 'clip'}", "--pretrained", "random", "--workers", 1]
    out = tmp_path / "run"
    assert dear_("train", data, *clip, "--method", "zero_shot", "--shots", 2, "--out", out)[0] == 0
    code, _, stderr = dear_("calibrate", out, "--workers", 1)
    assert code == 2
    assert "Only 0 images" in stderr
    assert "Traceback" not in stderr


def test_changed_photos_are_noticed(dear_, place, tmp_path):
    make_photos(tmp_path / "photos", CLASSES, 14)
    run = trained(dear_, place, tmp_path / "run", tmp_path / "photos")
    shutil.rmtree(tmp_path / "photos" / "ant")
    code, _, stderr = dear_("calibrate", run, "--workers", 1)
    assert code == 2
    assert "have changed since it was trained" in stderr


def test_every_item_is_held_out_once_and_never_trained_on_in_its_fold():
    items = tuple(Item(f"{label}/{index}", label) for label, count in enumerate((8, 5, 1)) for index in range(count))
    parts = folds(items, 4, seed=1)
    held = [item for _, part in parts for item in part]
    assert sorted(held) == sorted(item for item in items if item.label != 2)
    for rest, part in parts:
        assert set(rest) | set(part) == set(items)
        assert not set(rest) & set(part)
        assert {item.label for item in rest} == {0, 1, 2}
    assert folds(tuple(reversed(items)), 4, seed=1)[0][1] == parts[0][1]


def test_eval_and_report_say_how_far_confidence_and_accuracy_differ(dear_, place, tmp_path):
    run = trained(dear_, place, tmp_path / "run")
    assert "(ECE)" not in dear_("eval", run, "--workers", 1)[1]
    assert dear_("calibrate", run, "--workers", 1)[0] == 0
    assert "points on average (ECE), and by" in dear_("eval", run, "--workers", 1)[1]
    assert dear_("report", run, "--workers", 1)[0] == 0
    assert "after calibration" in (run / "report.html").read_text()


def test_predict_uses_the_fit_for_the_classes_it_was_fitted_for(dear_, place, tmp_path):
    run = trained(dear_, place, tmp_path / "run")
    photo = str(place / "photos" / "ant" / "0.png")
    code, _, stderr = dear_("predict", run, photo, "--reject")
    assert code == 2
    assert "run 'dear calibrate RUN'" in stderr
    before = dear.predict(run, photo, top_k=4)[0]
    fitted = dear.calibrate(run, workers=1)
    after = dear.predict(run, photo, top_k=4)[0]
    assert after.label == before.label
    assert dict(after.top) != dict(before.top)
    model = dear.load(run)
    images = model.clip.preprocess_eval(Image.open(photo))[None]
    expected = fitted.probabilities(model(images).logits)[0]
    assert dict(after.top) == pytest.approx(dict(zip(CLASSES, expected.tolist(), strict=True)), abs=1e-6)
    single = fitted.label_probabilities(model(images).logits)[0]
    several = dear.predict(run, photo, multi_label=True, threshold=0)[0]
    assert dict(several.labels) == pytest.approx(dict(zip(CLASSES, single.tolist(), strict=True)), abs=1e-6)
    with pytest.raises(dear.DearError, match="No threshold is fitted for these classes"):
        dear.predict(run, photo, ["ant", "owl"], reject=True)


def test_an_answer_that_is_not_likely_enough_is_rejected(dear_, place, tmp_path):
    run = trained(dear_, place, tmp_path / "run")
    photos = [str(place / "photos" / name / "0.png") for name in CLASSES]
    sure = sorted(one.probability for one in dear.predict(run, photos))
    between = (sure[1] + sure[2]) / 2
    found = dear.predict(run, photos, reject=True, threshold=between)
    assert sum(one.labels == () for one in found) == 2
    code, stdout, _ = dear_("predict", run, *photos, "--reject", "--threshold", between)
    assert (code, stdout.count("none of these (likeliest: ")) == (0, 2)
    code, stdout, _ = dear_(
        "predict", run, *photos, "--reject", "--threshold", between, "--sort-into", tmp_path / "sorted"
    )
    assert (code, len(list((tmp_path / "sorted").rglob("*.png")))) == (0, 2)
