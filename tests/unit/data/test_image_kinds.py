"""Every kind of image file, good or bad, through opening, training, evaluation and prediction."""

import errno
import os

import numpy as np
import pytest
from PIL import Image

import dear
from dear.data.images import as_rgb, folder_images, open_image
from dear.data.open import open_dataset
from dear.errors import DataError, ImageError
from dear.evaluation.evaluate import evaluate_items
from dear.model.predict import Prediction, stream
from helpers import build
from kinds import BAD, GOOD, SIZE, gradient, photo, write_all

REASONS = {
    "truncated.jpg": "it is damaged or not an image; replace or remove it.",
    "truncated.png": "it is damaged or not an image; replace or remove it.",
    "empty.jpg": "it is empty; replace or remove it.",
    "text.jpg": "it is damaged or not an image; replace or remove it.",
    "bomb.png": "it has far too many pixels to be a photograph; make it smaller or remove it.",
    "large_bomb.png": "it has far too many pixels to be a photograph; make it smaller or remove it.",
}


def opened(tmp_path, name) -> np.ndarray:
    (path,) = write_all(tmp_path, {name: GOOD[name]})
    image = open_image(path)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("name", GOOD)
def test_what_a_viewer_shows(tmp_path, name):
    pixels = opened(tmp_path, name)
    height, width = (SIZE[0], SIZE[1]) if name == "turned.jpg" else (SIZE[1], SIZE[0])
    assert pixels.shape == (height, width, 3)


@pytest.mark.parametrize("name", ["gray16.png", "gray32.tif", "float.tif"])
def test_deep_gray_keeps_its_gradient(tmp_path, name):
    np.testing.assert_array_equal(opened(tmp_path, name)[..., 1], gradient())


def test_deep_colour(tmp_path):
    red, green, blue = np.moveaxis(opened(tmp_path, "rgb16.png"), -1, 0)
    assert abs(red - gradient()).max() <= 1
    assert abs(green - gradient() // 2).max() <= 1
    assert blue.max() == 0


def test_cmyk_has_the_right_colours(tmp_path):
    assert abs(opened(tmp_path, "cmyk.jpg") - np.asarray(photo()).astype(int)).mean() < 8


@pytest.mark.parametrize("name", ["palette.png", "gray_alpha.png", "alpha.png", "alpha.webp"])
def test_transparent_is_white(tmp_path, name):
    pixels = opened(tmp_path, name)
    assert pixels[:, : SIZE[0] // 2].min() == 255
    assert pixels[:, SIZE[0] // 2 :, 1:].max() == 0


def test_exif_turns_upright_and_broken_exif_does_no_harm(tmp_path):
    upright = opened(tmp_path, "turned.jpg")
    assert upright[0].mean() < 40
    assert upright[-1].mean() > 60
    assert opened(tmp_path, "broken_exif.jpg")[:, -1].mean() > 60


def test_first_frame(tmp_path):
    assert opened(tmp_path, "animated.gif")[0, 0].tolist() == [255, 0, 0]


def test_pil_images_are_treated_alike(tmp_path):
    for path in write_all(tmp_path, GOOD):
        with Image.open(path) as image:
            np.testing.assert_array_equal(np.asarray(as_rgb(image)), np.asarray(open_image(path)))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_sentence(tmp_path, name):
    (path,) = write_all(tmp_path, {name: BAD[name]})
    with pytest.raises(ImageError) as error:
        open_image(path)
    assert str(error.value) == f"{path} cannot be read: {REASONS[name]}"


def test_what_is_no_file(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    with pytest.raises(ImageError, match=r"folder.jpg cannot be read: it is a folder; give the images in it\."):
        open_image(tmp_path / "folder.jpg")
    with pytest.raises(ImageError, match=r"none.jpg cannot be read: it does not exist; check the path\."):
        open_image(tmp_path / "none.jpg")


def test_permission(tmp_path, monkeypatch):
    (path,) = write_all(tmp_path, {"upper.JPEG": GOOD["upper.JPEG"]})
    path.chmod(0)
    if os.access(path, os.R_OK):  # nothing stops root: refuse in the system's place

        def refuse(*_):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr("dear.storage.files.os.open", refuse)
    with pytest.raises(ImageError, match="reading it is not permitted; change its permissions"):
        open_image(path)


@pytest.fixture
def mixed(tmp_path):
    """Two classes: one of every good kind, one of good and bad files."""
    write_all(tmp_path / "data" / "fine", GOOD)
    write_all(tmp_path / "data" / "mixed", BAD)
    write_all(tmp_path / "data" / "mixed", {"a.jpg": GOOD["gray.jpg"], "._a.jpg": BAD["text.jpg"]})
    (tmp_path / "data" / "mixed" / "folder.jpg").mkdir()
    (tmp_path / "data" / "mixed" / "nowhere.jpg").symlink_to(tmp_path / "gone.jpg")
    return tmp_path / "data"


UNREADABLE = {*BAD, "nowhere.jpg"}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_training_skips_and_counts(mixed, clip, tmp_path):
    met = []
    data = open_dataset(mixed)
    assert len(data.train) == len(GOOD) + len(UNREADABLE) + 1
    settings = dear.TrainSettings(epochs=2, batch_size=5)
    dear.fit(data, clip, mask="all_mixed", shots=16, test_share=0, train=settings, workers=1, on_step=met.append)
    assert met[-1]["skipped"] == 2 * len(UNREADABLE)
    named = {problem.split(" cannot be read")[0].rsplit("/", 1)[-1] for one in met for problem in one["problems"]}
    assert named == UNREADABLE


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("cached", [False, True])
def test_evaluation_counts_as_wrong_and_names(mixed, clip, tmp_path, cached):
    data = open_dataset(mixed)
    model = build("zero_shot", clip, data.class_names)
    found = evaluate_items(model, data, data.train, cache=tmp_path / "cache" if cached else None, batch_size=4)
    names = {data.train[index].id.rsplit("/", 1)[-1] for index in found.problems}
    assert names == UNREADABLE
    assert found.scores.unreadable == len(UNREADABLE)
    assert found.scores.images == len(data.train)
    assert all(found.picks[index] == -1 for index in found.problems)
    right = sum(int(found.picks[i]) == item.label for i, item in enumerate(data.train))
    assert found.scores.accuracy["logits"] == pytest.approx(100 * right / len(data.train))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_prediction_goes_on(mixed, clip):
    model = build("zero_shot", clip, ["fine", "mixed"])
    paths = sorted(mixed.rglob("*.*"))
    found = dict(zip(paths, stream(model, paths, batch_size=3), strict=True))
    good = {path.name for path, one in found.items() if isinstance(one, Prediction)}
    assert good == {*GOOD, "a.jpg"}
    assert all(str(path) in str(one) for path, one in found.items() if isinstance(one, ImageError))


def test_only_bad_images_stop_the_training(clip, tmp_path):
    for name in ("a", "b"):
        write_all(tmp_path / "data" / name, {"empty.jpg": BAD["empty.jpg"]})
    with pytest.raises(DataError, match=r"None of the 2 training images could be .* epoch 1; the last: .*empty.jpg"):
        dear.fit(tmp_path / "data", clip, mask="all_mixed", train=dear.TrainSettings(epochs=1, batch_size=1))


def test_folder_images_leaves_hidden_files_and_folders(mixed):
    names = set(folder_images(mixed / "mixed").names)
    assert names == {*BAD, "a.jpg", "nowhere.jpg"}


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_deep_gray_is_converted_in_parts(mode):
    random = np.random.default_rng(1)
    pixels = {
        "I;16": random.integers(0, 2**16, (600, 3), np.uint16),
        "I": random.integers(0, 2**20, (600, 3), np.int32),
    }
    values = pixels.get(mode, random.random((600, 3), np.float32))
    white = {"I;16": 65535.0, "F": 1.0}.get(mode, float(values.max()))
    expected = (values.astype(np.float64) * (255 / white)).round().clip(0, 255).astype(np.uint8)
    assert (np.asarray(as_rgb(Image.fromarray(values)))[..., 0] == expected).all()


def test_the_film_of_a_motion_photo_does_not_count(tmp_path):
    """A film behind the photo has the bytes of a scan by chance, and the photo was refused for too many pixels."""
    Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "a.jpg")
    film = np.random.default_rng(0).bytes(10_000) + 200 * b"\xff\xda\x00\x08"
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes() + film)
    assert open_image(tmp_path / "a.jpg").size == (64, 64)


def test_a_name_that_no_disk_can_hold_is_one_unreadable_image(tmp_path):
    """It was an OSError, which ends a whole training."""
    with pytest.raises(ImageError, match="cannot be read"):
        open_image(tmp_path / ("x" * 300 + ".jpg"))
