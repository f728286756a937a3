"""Predict and explain in the app: limits on input, class lists that never mix, and names that are never markup."""

import re
from dataclasses import replace

import pytest
from PIL import Image

import dear
from dear.app.predicting import NONE, explain_photo, predict_photos
from dear.app.studio import (
    LARGEST_PHOTO,
    LONGEST_NAME,
    MOST_CLASSES,
    MOST_PHOTOS,
    VIEWS,
    Photo,
    Session,
    Studio,
    chosen,
    dropped,
    opened,
    typed_classes,
)
from dear.errors import ClassListError, ImageError, InputError
from dear.model.calibration import Calibration

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def studio(model, roles):
    return Studio(model=model, roles=roles)


@pytest.fixture
def photos(tmp_path):
    """Three pictures that differ."""
    paths = []
    for color in ("red", "lime", "navy"):
        Image.new("RGB", (40, 40), color).save(path := tmp_path / f"{color}.png")
        paths.append(str(path))
    return paths


def calibrated(model, reject_below):
    fit = Calibration(
        temperature=2.0,
        reject_below=reject_below,
        label_scale=1.0,
        label_bias=0.0,
        images=40,
        source="validation",
        ece_before=0.2,
        ece_after=0.1,
    )
    model.calibration = fit
    return model


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, None),
        (" ,; \n", None),
        ("cat, dog", ("cat", "dog")),
        ("cat;dog\nowl,", ("cat", "dog", "owl")),
        ("cat,cat", ("cat",)),
    ],
)
def test_classes_are_typed_with_commas_or_lines(text, names):
    assert typed_classes(text) == names


@pytest.mark.parametrize("text", ["x" * (LONGEST_NAME + 1), "cat\x07", ",".join(map(str, range(MOST_CLASSES + 1)))])
def test_a_class_list_has_limits(text):
    with pytest.raises(ClassListError):
        typed_classes(text)


def test_answers_are_those_of_predict(studio, photos):
    found = predict_photos(studio, Session(), photos, None)
    expected = studio.model.predict(photos)
    assert found.labels == [one.label for one in expected]
    for answer, one in zip(found.answers, expected, strict=True):
        assert [name for name, _ in answer.bars] == [name for name, _ in one.top]
        assert [p for _, p in answer.bars] == pytest.approx([100 * p for _, p in one.top])
    assert "not calibrated" in found.basis


def test_every_list_of_classes_has_a_view_of_its_own(studio, photos):
    lists = [f"first {number}, second {number}" for number in range(VIEWS + 3)]
    for text in (*lists, *lists[:2]):
        found = predict_photos(studio, Session(), photos[:1], text)
        assert {name for name, _ in found.answers[0].bars} == set(typed_classes(text))
    assert len(studio._views) == VIEWS
    assert predict_photos(studio, Session(), photos, None).labels == [one.label for one in studio.model.predict(photos)]


def test_names_are_never_markup(studio, tmp_path):
    path = tmp_path / "a<b>&.png"
    Image.new("RGB", (40, 40)).save(path)
    html = predict_photos(studio, Session(), [path], f"{EVIL}, ${{1+1}}").html()
    assert "<img src=x" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert "a&lt;b&gt;&amp;.png" in html
    assert "<b>" not in html
    page = explain_photo(studio, Session(), [path], None, f"{EVIL}, dog")
    assert "<img src=x" not in page


def test_photos_are_passed_as_pictures_not_as_places(studio, photos):
    html = predict_photos(studio, Session(), photos, None).html()
    assert re.findall(r'src="([^:"]+):', html) == ["data"] * 3
    assert str(photos[0]) not in html


def test_none_of_these_needs_a_calibration_of_these_classes(studio, photos):
    own = replace(studio, model=calibrated(studio.model, reject_below=0.999))
    assert predict_photos(own, Session(), photos, None).labels == [NONE] * 3
    assert NONE not in predict_photos(own, Session(), photos, None, reject=False).labels
    typed = predict_photos(own, Session(), photos, "cat, dog")
    assert NONE not in typed.labels
    assert "not calibrated" in typed.basis
    low = replace(studio, model=calibrated(studio.model, reject_below=0.0))
    assert NONE not in predict_photos(low, Session(), photos, None).labels


def test_an_unreadable_photo_is_one_sentence_and_the_others_are_answered(studio, photos, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"not an image")
    found = predict_photos(studio, Session(), [str(bad), *photos], None)
    assert found.answers[0].problem == "bad.png cannot be read: it is damaged or not an image; replace or remove it."
    assert found.labels[1:] == [one.label for one in studio.model.predict(photos)]
    assert 'role="alert"' in found.html()


def test_a_photo_has_limits(tmp_path, monkeypatch):
    Image.new("RGB", (64, 64)).save(path := tmp_path / "photo.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageError, match=r"^photo\.png cannot be read: it has far too many pixels"):
        opened(Photo(path, path.name))
    with path.open("ab") as file:
        file.truncate(LARGEST_PHOTO + 1)
    with pytest.raises(ImageError, match=r"^photo\.png is larger than 20 MB"):
        opened(Photo(path, path.name))
    path.unlink()
    with pytest.raises(ImageError, match=r"^photo\.png is no longer there"):
        opened(Photo(path, path.name))


def test_a_drop_has_limits(photos):
    for paths in (None, [], photos * MOST_PHOTOS):
        with pytest.raises(InputError):
            dropped(paths)


def test_photos_of_one_name_are_told_apart(studio, tmp_path):
    """Phones call every photo image.jpg: the first one was explained, whichever was chosen."""
    for folder, color in (("a", "red"), ("b", "lime"), ("c", "navy")):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (40, 40), color).save(tmp_path / folder / "image.png")
    paths = [tmp_path / folder / "image.png" for folder in "abc"]
    photos = dropped(paths)
    assert [one.name for one in photos] == ["image.png", "image.png (2)", "image.png (3)"]
    assert [chosen(photos, one.name).path for one in photos] == paths
    assert chosen(photos, None) == chosen(photos, "") == photos[0]
    clash = dropped([tmp_path / "x" / "a (2)", tmp_path / "y" / "a", tmp_path / "z" / "a"])
    assert [one.name for one in clash] == ["a (2)", "a", "a (3)"]
    pages = [explain_photo(studio, Session(), paths, one.name, None) for one in photos]
    assert len(set(pages)) == 3
    assert explain_photo(studio, Session(), paths[1:], None, None).replace("image.png", "image.png (2)") == pages[1]
    with pytest.raises(InputError, match=r"no photo called image\.jpg here: choose another one"):
        chosen(photos, "image.jpg")


def test_a_plain_clip_asks_for_classes(clip, photos):
    plain = Studio(model=dear.Model(clip, dear.get_method("zero_shot")(clip, dear.get_method("zero_shot").Config())))
    assert plain.class_names == ()
    with pytest.raises(ClassListError, match="Type the classes"):
        predict_photos(plain, Session(), photos, None)
    assert set(predict_photos(plain, Session(), photos, "cat, dog").labels) <= {"cat", "dog"}


def test_an_explanation_has_the_probability_of_the_prediction(studio, photos):
    own = replace(studio, model=calibrated(studio.model, reject_below=0.0))
    found = predict_photos(own, Session(), photos, None)
    name, percent = found.answers[1].bars[0]
    page = explain_photo(own, Session(), photos, "lime.png", None)
    assert f"“{name}”, {percent:.0f} % likely" in page
    assert "Why" in page


def test_one_class_is_no_question(studio, photos):
    with pytest.raises(InputError, match="type a second one"):
        predict_photos(studio, Session(), photos, "dolphin")
