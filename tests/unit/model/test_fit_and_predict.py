"""`dear.fit` and `model.predict`: from a folder of photos to an answer, in Python."""

import numpy as np
import pytest
import torch
from PIL import Image

import dear
from dear import errors
from dear.data.open import open_dataset
from dear.model.predict import stream
from helpers import make_photos

SHORT = dear.TrainSettings(epochs=1, batch_size=4)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("photos"), ["green frog", "red_fox", "blue_jay"], 3)


@pytest.fixture(scope="module")
def fitted(photos, tiny_clips):
    return dear.fit(photos, tiny_clips["plain"], mask="all_mixed", shots=2, train=SHORT, workers=1)


def test_fit_and_predict(fitted, photos):
    assert fitted.classes.names == ("blue jay", "green frog", "red fox")
    paths = sorted(photos.rglob("*.png"))
    found = fitted.predict(paths, top_k=2)
    assert [one.image for one in found] == [str(path) for path in paths]
    for one in found:
        assert len(one.top) == 2
        assert one.top[0] == (one.label, one.probability)
        assert one.top[0][1] >= one.top[1][1]
    assert found[0].as_dict()["label"] == found[0].label
    assert len(fitted.predict(paths[0])[0].top) == 3
    assert sum(p for _, p in fitted.predict(str(paths[0]))[0].top) == pytest.approx(1)
    assert fitted.predict([]) == []


def test_predictions_are_those_of_the_model(fitted, photos):
    paths = sorted(photos.rglob("*.png"))
    images = torch.stack([fitted.clip.preprocess_eval(Image.open(path)) for path in paths])
    with torch.no_grad():
        for readout in ("fusion", "decoupled"):
            expected = fitted(images).readouts[readout].softmax(1)
            found = fitted.predict(paths, readout=readout)
            for one, row in zip(found, expected, strict=True):
                assert one.probability == pytest.approx(row.max().item(), abs=1e-5)


def test_pil_images_and_other_classes(fitted, photos):
    path = next(photos.rglob("*.png"))
    (by_path,) = fitted.predict(path)
    (by_image,) = fitted.predict(Image.open(path))
    assert by_image.image == "image 0"
    assert by_image.top == by_path.top
    before = fitted.classes
    (other,) = fitted.predict([path], classes=["boat", "car"], template="a drawing of a {}.")
    assert {name for name, _ in other.top} == {"boat", "car"}
    assert fitted.classes == before
    assert fitted.predict(path)[0].top == by_path.top


def test_own_classes_stay_whatever_happens(fitted, photos, tmp_path):
    before = fitted.classes
    with pytest.raises(errors.ImageError, match=r"none\.png cannot be read: it does not exist"):
        fitted.predict([tmp_path / "none.png"], classes=["boat", "car"])
    assert fitted.classes == before
    with pytest.raises(errors.ClassListError):
        fitted.predict(next(photos.rglob("*.png")), classes=["boat", "boat"])
    assert fitted.classes == before
    half_read = stream(fitted, sorted(photos.rglob("*.png")), classes=["boat", "car"])
    next(half_read)
    assert not torch.is_inference_mode_enabled()
    half_read.close()
    assert fitted.classes == before


def test_training_goes_on_after_predicting(fitted, photos):
    fitted.predict(next(photos.rglob("*.png")), classes=["boat", "car"])
    size = fitted.clip.geometry.image_size
    fitted.loss(torch.randn(2, 3, size, size), torch.tensor([0, 1]))["total"].backward()
    gradients = [parameter.grad for parameter in fitted.trainable().values()]
    assert all(one is not None and one.isfinite().all() for one in gradients)
    assert any(one.abs().sum() > 0 for one in gradients)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (3, "preprocessed tensors go to model(images), but got an object of type int."),
        (torch.full((1, 3, 4, 4), -1.5), "but number 0 is torch.float32 (3, 4, 4)."),
        (np.zeros((2, 4, 4, 5), np.uint8), "but number 0 is uint8 (4, 4, 5)."),
        ([np.zeros((4, 4, 3))], "but number 0 is float64 (4, 4, 3)."),
        (["a.png", None], "but number 1 is of type NoneType."),
    ],
)
def test_wrong_images(fitted, images, sentence):
    with pytest.raises(errors.InputError) as error:
        fitted.predict(images)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"top_k": 0}, "top_k is 0, but must be a whole number from 1 on."),
        ({"top_k": "3"}, "top_k is '3'"),
        (
            {"readout": "decopled"},
            "dear has no readout 'decopled': choose fusion or decoupled. Did you mean 'decoupled'?",
        ),
        ({"classes": "cat"}, "The class list is the single word 'cat'"),
        ({"classes": []}, "The class list is empty"),
        ({"template": "a photo"}, "must contain '{}' exactly once"),
    ],
)
def test_wrong_choices(fitted, photos, changes, sentence):
    with pytest.raises(errors.DearError) as error:
        fitted.predict(next(photos.rglob("*.png")), **changes)
    assert sentence in str(error.value)
    assert fitted.classes.names == ("blue jay", "green frog", "red fox")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": 3}, "The data set is of type int: give its name, a folder, a .csv,"),
        ({"data": "world-thing"}, "Did you mean 'world-things'"),
        ({"clip": 3}, "clip is 3: give a name."),
        ({"shots": "16"}, "shots is '16': give a whole number from 1 on."),
        ({"shots": 0}, "shots is 0"),
        ({"seed": -1}, "seed is -1: give a whole number from 0 on."),
        ({"half": ["cat"]}, "half is ['cat']: give all, base or novel."),
        ({"train": {"epochs": 1}}, "train is of type dict: give dear.TrainSettings"),
        ({"method": "deer"}, "Did you mean 'dear'"),
        ({"betta": 0.5}, "There is no option or setting 'betta' of dear. Did you mean 'beta'?"),
        ({"mask": "mixed"}, "mask is 'mixed'"),
        ({"mask": "roles"}, "There is no role map for"),
        ({"template": "no place"}, "must contain '{}' exactly once"),
        ({"resume": True, "overwrite": True, "out": "OUT"}, "choose one of them"),
    ],
)
def test_wrong_calls(photos, clip, tmp_path, changes, sentence):
    call = {"data": photos, "clip": clip, "mask": "all_mixed", "train": SHORT, **changes}
    if "out" in call:
        call["out"] = tmp_path / "out"
    with pytest.raises(errors.DearError) as error:
        dear.fit(**call)
    assert sentence in str(error.value)


@pytest.mark.covers("N12")
def test_fit_takes_training_options_by_name_and_refuses_others_first(photos, one_clip):
    with pytest.raises(errors.ConfigError, match=r"no option or setting 'epoch' of dear\. Did you mean 'epochs'"):
        dear.fit(photos, "ViT-B-16-quickgelu", epoch=1)
    assert one_clip == []  # nothing was loaded
    steps = []
    dear.fit(photos, "ViT-B-16-quickgelu", epochs=1, batch_size=3, lr=1e-4, shots=2, workers=1, on_step=steps.append)
    assert one_clip == [("ViT-B-16-quickgelu", None)]
    assert len(steps) == 2


def test_fit_writes_a_run_that_loads(photos, clip, tmp_path):
    out = tmp_path / "run"
    data = open_dataset(photos)
    call = {"clip": clip, "mask": "all_mixed", "shots": 2, "train": SHORT, "out": out, "template": "my {}."}
    model = dear.fit(data, half="base", **call)
    assert model.classes.names == ("blue jay", "green frog")
    again = dear.load(out, clip)
    assert again.classes == model.classes
    assert again.classes.template == "my {}."
    path = next(photos.rglob("*.png"))
    assert again.predict(path) == model.predict(path)
    with pytest.raises(errors.OverwriteError, match="already contains a run: add resume=True to continue"):
        dear.fit(data, half="base", **call)
    with pytest.raises(errors.ConfigError, match="was begun with other settings"):
        dear.fit(data, half="base", **{**call, "shots": 1}, resume=True)
