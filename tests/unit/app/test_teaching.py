"""Teach in the app: a corrected photo is learned, a new class is added, and too few photos are said to be too few."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from dear.app.run_photos import RunPhotos, answers, run_photos
from dear.app.studio import ALL_PHOTOS, Lesson, Session, Studio
from dear.app.teaching import (
    AS_CORRECTED,
    AS_NEW,
    HELD_OUT,
    Outcome,
    Score,
    add_lessons,
    divided,
    learn,
    lessons_html,
    packed,
    repeats,
)
from dear.data.dataset import Dataset, Item
from dear.errors import ClassListError, InputError
from dear.evaluation.test_data import TestData
from dear.model.load import load
from helpers import build

NAMES = ("cat", "dog", "hot air balloon")
NO_PHOTOS = Score(0, 0, 0)


def picture(label, number):
    """Noise around a pattern of the label's own."""
    base = np.random.default_rng(label).integers(0, 255, (8, 8, 3))
    noise = np.random.default_rng((label, number)).integers(-20, 20, (8, 8, 3))
    return Image.fromarray((base + noise).clip(0, 255).astype(np.uint8)).resize((40, 40), Image.Resampling.NEAREST)


@pytest.fixture
def photos(model):
    """A data set of three classes with 8 training and 4 test photos each."""
    train = tuple(Item(f"{label} {number}", label) for label in range(3) for number in range(8))
    test = tuple(Item(f"{label} {number}", label) for label in range(3) for number in range(8, 12))
    data = Dataset("made", NAMES, "a photo of a {}.", train, (), test, lambda name: picture(*map(int, name.split())))
    return run_photos(TestData(data, train, None), model)


@pytest.fixture
def studio(model, photos):
    return Studio(model=model, photos=photos)


def saved(folder, label, numbers):
    paths = []
    for number in numbers:
        picture(label, number).save(path := folder / f"{label}-{number}.png")
        paths.append(str(path))
    return paths


def lesson(label, number=0):
    return Lesson(label, f"{number}.png", Image.new("RGB", (4, 4)), torch.zeros(3, 32, 32), "cat")


def test_photos_of_a_run_are_divided_into_trained_and_tested(photos):
    assert (len(photos.shots), len(photos.tested)) == (24, 12)
    assert not {item.id for item in photos.shots} & {item.id for item in photos.tested}
    found = photos.features("shots")
    assert found.labels_N.tolist() == [item.label for item in photos.shots]
    assert photos.features("shots") is found
    assert photos.examples().names[:3] == ("0 8", "1 8", "2 8")


def test_only_the_models_own_classes_count(photos, model):
    other = replace(photos.dataset, class_names=("owl", "dog", "cat"))
    found = run_photos(TestData(other, other.train, None), model)
    assert {item.label for item in found.shots} == {0, 1}
    assert all(NAMES[item.label] == other.class_names[int(item.id[0])] for item in (*found.shots, *found.tested))


def test_a_corrected_photo_is_learned(studio, tmp_path):
    paths = saved(tmp_path, 7, [1])  # a pattern of no class
    wrong = NAMES[(NAMES.index(studio.model.predict(paths)[0].label) + 1) % 3]
    session = add_lessons(studio, Session(), paths, ALL_PHOTOS, wrong)
    assert session.taught is None
    session, outcome = learn(studio, session)
    assert session.taught.predict(paths)[0].label == wrong
    assert outcome.taught == Score(1, 0, 1)
    assert outcome.tested.photos == 12
    assert outcome.tested.before == int(studio.photos.features("tested").right_N.sum())
    assert outcome.tested.after >= 10  # patterns are easy; a random CLIP names them by chance
    assert outcome.shots == 24
    assert studio.model.predict(paths)[0].label != wrong, "the run's own model is as it was"


def test_a_new_class_is_tested_on_photos_that_were_set_aside(studio, tmp_path):
    paths = saved(tmp_path, 9, range(8))
    session, outcome = learn(studio, add_lessons(studio, Session(), paths, None, "  zebra "))
    assert session.taught.required_classes().names == (*NAMES, "zebra")
    assert outcome.held_out.photos == 2
    assert outcome.held_out.before == 0
    assert outcome.taught == Score(6, 0, 6)
    assert outcome.untested == ()
    assert "your photos that were not taught" in lessons_html(session, outcome)


def test_too_few_photos_are_said_to_be_too_few(studio, tmp_path):
    paths = saved(tmp_path, 9, range(HELD_OUT - 1))
    session, outcome = learn(studio, add_lessons(studio, Session(), paths, None, "<zebra>"))
    assert outcome.held_out == NO_PHOTOS
    assert outcome.untested == ("<zebra>",)
    assert any("Too few photos to test “<zebra>”" in one for one in outcome.sentences())
    assert "12 test photos are too few" in " ".join(outcome.sentences())
    assert "<zebra>" not in lessons_html(session, outcome)


def test_without_the_runs_photos_that_is_said(studio, tmp_path):
    alone = replace(studio, photos=None)
    paths = saved(tmp_path, 7, [1])
    session, outcome = learn(alone, add_lessons(alone, Session(), paths, None, "dog"))
    assert session.taught.predict(paths)[0].label == "dog"
    assert (outcome.shots, outcome.tested) == (0, NO_PHOTOS)
    assert "only yours were learned" in outcome.sentences()[0]
    assert "unknown" in outcome.sentences()[-1]


def test_a_clip_without_classes_takes_those_that_were_typed(clip, tmp_path):
    bare = Studio(model=build("zero_shot", clip))
    paths = saved(tmp_path, 7, [1])
    session = add_lessons(bare, Session(), paths, None, "jumping dolphin")
    with pytest.raises(InputError, match="One class cannot be confused"):
        learn(bare, session)
    taught, outcome = learn(bare, session, "dolphin, umbrella, cup")
    assert taught.taught.required_classes().names == ("dolphin", "umbrella", "cup", "jumping dolphin")
    assert outcome.untested == ("jumping dolphin",)


def test_a_loss_is_not_hidden():
    outcome = Outcome(NO_PHOTOS, NO_PHOTOS, Score(100, 90, 80), (), 24)
    assert "lost" in outcome.sentences()[-1]
    assert len(replace(outcome, tested=Score(100, 80, 90)).sentences()) == 1


def test_teaching_needs_a_label_photos_and_two_classes(studio, tmp_path):
    paths = saved(tmp_path, 7, [1])
    with pytest.raises(ClassListError):
        add_lessons(studio, Session(), paths, None, " ")
    with pytest.raises(InputError):
        add_lessons(studio, Session(), [], None, "cat")
    with pytest.raises(InputError):
        learn(studio, Session())
    full = Session(tuple(lesson("cat") for _ in range(100)))
    with pytest.raises(InputError, match="At most 100"):
        add_lessons(studio, full, paths, None, "cat")


def test_one_photo_of_several_can_be_chosen(studio, tmp_path):
    paths = saved(tmp_path, 7, range(3))
    found = add_lessons(studio, Session(), paths, "7-1.png", "cat").lessons
    assert [one.name for one in found] == ["7-1.png"]
    assert torch.equal(found[0].image, studio.model.clip.preprocess_eval(picture(7, 1)))


def test_one_of_two_photos_of_one_name_can_be_chosen(studio, tmp_path):
    """The label of the second one was stored for the first one."""
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        picture(7, number).save(tmp_path / str(number) / "image.png")
    paths = [str(tmp_path / str(number) / "image.png") for number in (1, 2)]
    for name, number in (("image.png", 1), ("image.png (2)", 2)):
        (found,) = add_lessons(studio, Session(), paths, name, "cat").lessons
        assert found.name == name
        assert torch.equal(found.image, studio.model.clip.preprocess_eval(picture(7, number)))


def test_photos_are_set_aside_of_new_classes_only():
    lessons = [lesson("cat", number) for number in range(8)] + [lesson("zebra", number) for number in range(9)]
    taught, held = divided(lessons, ["zebra"])
    assert [one.name for one in held] == ["3.png", "7.png"]
    assert {one.label for one in held} == {"zebra"}
    assert len(taught) == 15


def test_a_new_class_counts_as_much_as_another():
    labels = ["zebra"] * 4 + ["cat"] * 2
    assert repeats(labels, ["zebra"]) == [AS_NEW // 4] * 4 + [AS_CORRECTED] * 2
    assert repeats(["zebra"] * 40, ["zebra"]) == [1] * 40


def test_answers_are_argmax(model):
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    assert torch.equal(answers(model, images), model(images).logits.argmax(1))


def test_an_empty_data_set_has_no_examples(model, photos):
    empty = RunPhotos(model, photos.dataset, (), ())
    assert len(empty.examples()) == 0
    assert empty.features("tested").labels_N.shape == (0,)


def test_what_was_learned_can_be_downloaded(studio, tmp_path):
    """It stayed in the browser window, and was lost with it."""
    with pytest.raises(InputError, match="Nothing is learned yet"):
        packed(Session())
    paths = saved(tmp_path, 5, range(6))
    session, _ = learn(studio, add_lessons(studio, Session(), paths, None, "zebra"))
    content = packed(session)
    assert content == packed(session)
    zipfile.ZipFile(io.BytesIO(content)).extractall(tmp_path)
    opened = load(tmp_path / "taught", clip=studio.model.clip)
    assert opened.required_classes().names == (*NAMES, "zebra")
    shown = torch.stack([studio.model.clip.preprocess_eval(picture(label, 9)) for label in (0, 5)])
    with torch.no_grad():
        assert torch.equal(opened(shown).logits, session.taught(shown).logits)
