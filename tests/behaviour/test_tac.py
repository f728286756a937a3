"""TAC: clusters of classes, views and dropout, and what of them other class lists and cut batches see."""

from dataclasses import replace

import pytest
import torch

import dear
from dear.data.descriptions import with_descriptions
from dear.data.prompts import class_list
from dear.engine.run import run_job
from dear.errors import ClassListError, ConfigError
from dear.methods.base import Batch
from dear.methods.tac import cluster_centres, described
from helpers import build, plain_images
from toys import CLASSES, Toy


@pytest.fixture
def clip(tiny_clips):
    return tiny_clips["odd"]


def test_clusters_that_lose_everything_keep_their_centre():
    rows = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [1, 0.01], [1, 0.02], [0, 1]]), dim=-1)
    centres = cluster_centres(rows[[0, 0, 3, 1, 2]], [0, 1, 2])
    assert centres.isfinite().all()
    assert torch.equal(centres[1], rows[0])
    assert cluster_centres(rows, [3]).shape == (1, 2)


def test_fewer_classes_than_clusters(clip):
    toy = Toy()
    model, _ = run_job(toy.job(method="tac", epochs=1), clip, workers=0)
    centres = model.method.get_buffer("centres")
    assert centres.shape[0] == 5 > len(CLASSES)
    assert torch.allclose(centres.norm(dim=1), torch.ones(5), atol=1e-5)
    assert torch.allclose(centres[3:], centres[:2])
    novel = model.for_classes(["a cat", "a dog"])
    assert novel(plain_images(clip, 1)).logits.isfinite().all()


def test_descriptions_decide_clusters_and_targets(clip):
    toy = Toy()
    descriptions = {name: [f"{name} on a table.", f"A drawing of one {name}, large."] for name in CLASSES}
    job = toy.job(method="tac", epochs=1)
    plain, _ = run_job(job, clip, workers=0)
    with_words, _ = run_job(replace(job, dataset=with_descriptions(toy.dataset, descriptions)), clip, workers=0)
    assert not torch.allclose(plain.method.get_buffer("centres"), with_words.method.get_buffer("centres"))
    first = clip.text.encode(descriptions[CLASSES[0]]).mean(0)
    found = described(clip, with_words.classes)[0]
    assert torch.allclose(found, first / first.norm(), atol=1e-5)


def test_long_descriptions_are_cut_and_long_names_are_not(clip):
    told = class_list(CLASSES, "a photo of a {}.", descriptions={one: ["very long " * 60] for one in CLASSES})
    assert described(clip, told).isfinite().all()
    with pytest.raises(ClassListError, match="do not fit"):
        described(clip, class_list(["very long " * 60], "a photo of a {}."))


def test_dropout_is_in_training_only_and_by_name(clip):
    model, images = build("tac", clip, list(CLASSES)), plain_images(clip, 4)
    assert torch.equal(model(images).logits, model(images).logits)
    batch = Batch(torch.tensor([0, 1, 2, 0]), seed=1, step=1, size=4)
    states = model.states(images, training=True)
    one, same = model(given=states, batch=batch), model(given=states, batch=batch)
    assert torch.equal(one.logits, same.logits)
    assert not torch.equal(one.logits, model(given=states, batch=replace(batch, step=2)).logits)
    zeros = (one.features["cls"] == 0).float().mean()
    assert 0.1 < zeros < 0.5
    assert not torch.equal(one.features["cls"] == 0, one.rest["plain_image"] == 0)


def test_views_are_never_cut_into_micro_batches(clip):
    with pytest.raises(ConfigError, match="tac needs the whole batch at once: train it without micro_batch="):
        run_job(Toy().job(method="tac", micro_batch=2), clip, workers=0)


def test_trains_from_cached_views(clip, tmp_path):
    toy = Toy(per_class=2)
    job = toy.job(method="tac", epochs=1, cached_views=4)
    run_job(job, clip, cache=tmp_path, workers=0)
    opened = toy.opened.total()
    model, progress = run_job(job, clip, cache=tmp_path, workers=0)
    assert progress.step == 2
    assert toy.opened.total() == opened
    assert all(p.isfinite().all() for p in model.method.parameters())


def test_rows_that_do_not_fit_are_refused(clip):
    with pytest.raises(ConfigError, match=r"use at most \d+ rows \(text_context\)"):
        build("tac", clip, ["cat"], text_context=64)(plain_images(clip, 1))


def test_published_data_sets_have_one_prompt(clip):
    method = build("tac", clip).method
    lists = [dear.Model(clip, method, c) for c in (_listed("dtd"), _listed("mine"))]
    shown = plain_images(clip, 1)
    assert not torch.allclose(lists[0](shown).logits, lists[1](shown).logits)


def _listed(dataset):
    from dear.data.prompts import class_list

    return class_list(["banded", "dotted"], "{} texture.", dataset=dataset)
