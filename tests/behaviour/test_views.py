"""Stored quantities give the same numbers as images, for every method."""

import pytest
import torch

import dear
from dear.backbone.frozen import shape_of
from dear.methods.base import Batch, total_of
from helpers import build

LABELS = torch.tensor([0, 1, 2])


@pytest.fixture(params=dear.list_methods())
def any_model(request, clip):
    return build(request.param, clip, ["cat", "dog", "hot air balloon"])


def terms_of(model, given):
    batch = Batch(LABELS, 0, 0, None, 3)
    return model.method.loss(model(given=given, batch=batch), batch)


def test_quantities_give_what_their_images_give(any_model, images):
    stored = any_model.states(images, training=True)
    assert set(stored) == set(any_model.names(training=True))
    for name, rows in stored.items():
        known = name.removeprefix("plain:") if ":" not in name.removeprefix("plain:") or "terms:" in name else "feature"
        assert rows.shape == (3, *shape_of(any_model.clip.vision, known))
    assert torch.allclose(any_model(images).logits, any_model(given=stored).logits, atol=1e-5)
    by_images, by_states = any_model.loss(images, LABELS), terms_of(any_model, stored)
    for name, value in by_states.items():
        assert by_images[name].item() == pytest.approx(value.item(), abs=1e-5)


def test_gradients_are_the_same(any_model, images):
    found = []
    for total in (
        lambda: any_model.loss(images, LABELS)["total"],
        lambda: total_of(terms_of(any_model, any_model.states(images, training=True))),
    ):
        any_model.zero_grad()
        if any_model.trainable():
            total().backward()
        found.append({name: p.grad.clone() for name, p in any_model.trainable().items() if p.grad is not None})
    for name, gradient in found[0].items():
        assert torch.allclose(gradient, found[1][name], atol=1e-5), name
