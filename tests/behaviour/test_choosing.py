"""What a method may choose on, whose classes it knows again, and what it says about images that cannot be read."""

import warnings
from dataclasses import replace

import pytest
import torch

import dear
from dear.data.dataset import Item
from dear.engine.job import make_job
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from dear.errors import CorruptArtefactError
from dear.evaluation.test_data import items_to_test
from dear.methods.linear_probe import Probe
from dear.methods.parts.class_identity import shares_classes
from helpers import plain_images
from toys import CLASSES, Toy

SEARCH = {"tip_adapter": {"passes": 2, "search_steps": (5, 4)}, "ape": {"passes": 2, "search_steps": (5, 4, 3)}}


def job_of(dataset, method="tip_adapter", **others):
    train = TrainSettings(epochs=1, batch_size=4, cached_views=others.pop("cached_views", 0))
    usual = {"shots": 4, "seed": 1, "config": SEARCH.get(method, {}), "train": train}
    return make_job(dataset, method=method, **{**usual, **others})


def with_validation(toy, count=3):
    items = tuple(Item(f"val/{label}/{i}", label) for label in range(len(CLASSES)) for i in range(count))
    return replace(toy.dataset, val=items)


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("name", ["toy", "imagenet"])
@pytest.mark.parametrize("val", [0, 3])
@pytest.mark.parametrize("test", [0, 2])
def test_nothing_is_chosen_on_what_is_tested(validate, name, val, test):
    toy = Toy(per_class=9, test_per_class=test)
    dataset = replace(with_validation(toy, val), name=name)
    job = job_of(dataset, validate=validate)
    kept, chosen_on = job.held()
    tested = items_to_test(dataset, "all", trained_items=job.items, validate=validate)
    assert {item.label for item in chosen_on} == {0, 1, 2}
    assert not {item.id for item in chosen_on} & {item.id for item in (*tested, *kept)}


def test_imagenet_is_chosen_on_images_outside_the_shots():
    """It has no validation split of its own; sixteen shots stay sixteen."""
    dataset = replace(Toy(per_class=9).dataset, name="imagenet")
    job = job_of(dataset)
    kept, chosen_on = job.held()
    assert kept == job.items
    assert len(chosen_on) == 3 * 4
    assert {item.id for item in chosen_on} <= {item.id for item in dataset.train} - {item.id for item in job.items}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("imagenet", "imagenet_a", True),
        ("imagenet", "caltech101", False),
        ("world-broad", "world-broad-sketch", True),
        ("world-broad", "world-things", False),
        ("photos", "photos-of-today", True),
        ("photos", "caltech101", True),
        ("dtd", None, True),
        (None, "dtd", True),
    ],
)
def test_equal_names_are_equal_classes_but_in_two_published_data_sets(one, other, same):
    assert shares_classes(one, other) is same
    assert shares_classes(other, one) is same


@pytest.mark.parametrize("method", ["tip_adapter", "linear_probe"])
@torch.no_grad()
def test_the_same_classes_in_another_folder_are_known_again(method, clip):
    model, _ = run_job(job_of(replace(Toy(per_class=4).dataset, name="photos"), method), clip, workers=0)
    elsewhere, shown = replace(Toy().dataset, name="photos of today").classes(CLASSES), plain_images(clip, 4)
    assert torch.equal(model.for_classes(elsewhere)(shown).logits, model(shown).logits)


@pytest.mark.parametrize("method", ["clip_adapter", "tip_adapter", "tip_adapter_f", "mm_adapter", "ape"])
@torch.no_grad()
def test_only_methods_that_say_so_read_descriptions(method, clip):
    told = {name: ["something else altogether"] for name in CLASSES}
    dataset, shown = Toy().dataset, plain_images(clip, 4)
    how = {"method": method, "clip": clip, "shots": 1, "train": TrainSettings(epochs=1, batch_size=3), "workers": 0}
    plain, described = (dear.fit(dataset, descriptions=one, **SEARCH.get(method, {}), **how) for one in (None, told))
    assert torch.equal(plain(shown).logits, described(shown).logits) is (method != "ape")
    assert ("descriptions" in dear.get_method(method).about.needs) is (method == "ape")


@pytest.mark.parametrize("method", ["ape", "linear_probe"])
def test_unreadable_images_are_told_without_steps_as_well(method, clip):
    toy = Toy(per_class=4)
    job = job_of(toy.dataset, method)
    kept, _ = job.split(dear.get_method(method)(clip, job.build(clip).method.config))
    toy.bad = {item.id for item in kept if item.label == 1} | {kept[0].id}
    _, progress = run_job(job, clip, workers=0)
    assert progress.problems[-1] == f"None of the images of {CLASSES[1]!r} can be read: nothing is learned of it."
    assert {one.split()[0] for one in progress.problems[:-1]} == toy.bad
    assert progress.skipped == len(toy.bad)


def changed(model, folder, **tensors):
    for name, tensor in tensors.items():
        getattr(model.method, name).data = tensor
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", torch.full((9,), 10**13)),
        ("labels", torch.full((9,), -1)),
        ("keys", torch.zeros(9, 7)),
        ("keys", torch.zeros(4, 24)),
        ("per_class", torch.tensor([9])),
    ],
)
def test_a_cache_that_does_not_fit_is_refused(name, value, clip, tmp_path):
    model, _ = run_job(job_of(Toy(per_class=4).dataset), clip, workers=0)
    with pytest.raises(CorruptArtefactError, match="does not fit its settings"):
        dear.load(changed(model, tmp_path / "bad", **{name: value}), clip)


def test_a_probe_that_does_not_fit_is_refused(clip, tmp_path):
    model, _ = run_job(job_of(Toy(per_class=4).dataset, "linear_probe"), clip, workers=0)
    with pytest.raises(CorruptArtefactError, match="not of width 24"):
        dear.load(changed(model, tmp_path / "narrow", coef=torch.zeros(3, 7)), clip)
    cut = changed(model, tmp_path / "cut", coef=torch.zeros(2, 24), intercept=torch.zeros(2))
    with pytest.raises(CorruptArtefactError, match="The linear probe has 2 classes, fewer than it was trained on"):
        dear.load(cut, clip)(plain_images(clip, 1))


def test_a_probe_of_one_shot_warns_of_nothing():
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Probe(features, torch.arange(40).numpy()).fit(1.0)
    assert found.classes_.tolist() == list(range(40))


@torch.no_grad()
def test_passes_over_cached_views_are_computed_once(clip, tmp_path):
    """For every method, seed and resumption: encoding the views is nearly all that a cache costs."""
    toy = Toy(per_class=4)
    how = {"cache": tmp_path / "cache", "workers": 0}
    found, _ = run_job(job_of(toy.dataset, cached_views=2), clip, **how)
    once = {name: count for name, count in toy.opened.items() if name.startswith("train")}
    assert set(once.values()) == {1}  # both views of an image are made from one reading
    again, _ = run_job(job_of(toy.dataset, "ape", cached_views=2, seed=1), clip, **how)
    assert sum(toy.opened.values()) == sum(once.values()) + 3  # the held-out ones
    assert torch.equal(again.method.keys, found.method.keys)
    live, _ = run_job(job_of(toy.dataset), clip, workers=0)
    assert torch.nn.functional.cosine_similarity(live.method.keys, found.method.keys).min() > 0.9


def test_an_image_without_readable_views_is_left_out(clip, tmp_path):
    toy = Toy(per_class=4)
    job = job_of(toy.dataset, cached_views=2)
    toy.bad = {job.held()[0][0].id}
    model, progress = run_job(job, clip, cache=tmp_path / "cache", workers=0)
    assert model.method.keys.shape[0] == 8
    assert [problem.split()[0] for problem in progress.problems] == list(toy.bad)
