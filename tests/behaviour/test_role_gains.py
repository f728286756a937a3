"""Role gains: plain CLIP at 1, the optimum of a convex loss, readable names, fitted from terms computed once."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import dear
from dear.engine.run import run_job
from dear.methods.role_gains import best_gains, groups_of
from helpers import build, plain_images, varied_roles
from toys import Toy

NAMES = ["cat", "dog", "hot air balloon"]


@pytest.fixture
def clip(tiny_clips):
    return tiny_clips["odd"]


@torch.no_grad()
def test_gains_of_one_are_plain_clip(clip):
    model, images = build("role_gains", clip, NAMES, roles=varied_roles(clip), mask="roles"), plain_images(clip, 4)
    out = model(images)
    expected = model.plain()(images).logits
    assert torch.equal(out.readouts["gains"], out.readouts["plain"])
    assert (out.logits - expected).abs().max() < 1e-4  # of order τ
    assert model.readout("novel") == "gains"
    assert model.readout("transfer") == "plain"


def test_groups_are_named_by_concept_then_role(clip):
    groups = groups_of(varied_roles(clip))
    assert list(groups) == ["color", "shape", "texture", "object", "location", "animal", "generalization", "mixed"]
    assert sum(map(len, groups.values())) == len(varied_roles(clip).heads)


def test_the_shipped_map_gives_this_many_numbers():
    groups = groups_of(dear.RoleMap.load("vit-b-16"))
    trained = dear.get_method("role_gains").about.trained
    assert trained == f"{len(groups) + 1} (shipped map)"


@torch.no_grad()
def test_features_of_groups_are_their_terms(clip):
    model, images = build("role_gains", clip, NAMES, roles=varied_roles(clip), mask="roles"), plain_images(clip, 2)
    out, method = model(images), model.method
    terms = model.states(images)[method.quantity]
    assert set(out.features) == {"cls", *method.groups[:-1]}
    assert torch.allclose(out.features["color"], F.normalize(terms[:, 0], dim=-1), atol=1e-6)
    assert list(out.weights) == list(method.groups)


def test_the_fit_is_the_optimum():
    random = torch.Generator().manual_seed(0)
    terms, classes = torch.randn(300, 4, 8, generator=random), F.normalize(torch.randn(5, 8, generator=random), dim=-1)
    labels = (terms[:, 1] @ classes.T).argmax(1)  # only group 1 knows
    found = best_gains(terms, classes, labels, 0.01).requires_grad_()
    logits = torch.einsum("g,bge->be", found, terms.double()) @ classes.double().T
    loss = F.cross_entropy(logits, labels) + 0.01 * (found - 1).square().sum()
    (slope,) = torch.autograd.grad(loss, found)
    assert slope.abs().max() < 1e-6
    assert found.argmax() == 1
    assert best_gains(terms, classes, labels, 1e6) == pytest.approx(torch.ones(4).tolist(), abs=1e-3)


@pytest.mark.parametrize("recipe", ["own", "shared"])
def test_fitted_from_the_cache_without_steps(clip, tmp_path, recipe):
    toy = Toy()
    job = toy.job(method="role_gains")
    job = replace(job, train=job.train.model_copy(update={"recipe": recipe}))
    alone, progress = run_job(job, clip, workers=0)
    assert progress.step == 0
    kept, _ = run_job(job, clip, cache=tmp_path, workers=0)
    opened = toy.opened.total()
    again, _ = run_job(job, clip, cache=tmp_path, workers=0)
    assert toy.opened.total() == opened
    assert not torch.equal(alone.method.gains, torch.ones(2))
    assert torch.equal(kept.method.gains, again.method.gains)
    assert torch.allclose(alone.method.gains, kept.method.gains, atol=1e-3)


def test_an_unreadable_photo_is_left_out(clip):
    toy = Toy()
    toy.bad.add(toy.dataset.train[0].id)
    model, _ = run_job(toy.job(method="role_gains"), clip, workers=0)
    assert model.method.gains.isfinite().all()


def test_saved_with_its_map(clip, tmp_path):
    model = build("role_gains", clip, NAMES, roles=varied_roles(clip), mask="roles")
    loaded = dear.load(model.save_pretrained(tmp_path / "a"), clip=clip)
    assert loaded.method.groups == model.method.groups
    assert "gains" in loaded.method.facts()
