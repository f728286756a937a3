"""Stored views: the same numbers as images, for every method."""

import pytest
import torch

import dear


@pytest.fixture(params=["dear", "zero_shot"])
def method(request, model, clip):
    if request.param == "dear":
        return model
    plain = dear.ZeroShot(clip)
    plain.set_classes(model.classes.names)
    return plain


def test_a_view_gives_what_its_images_give(method, images):
    labels = torch.tensor([0, 1, 2])
    rows = method.image_view(images)
    assert rows.shape == (3, *method.view_kind.shape)
    assert rows.ndim == 2
    direct, stored = method(images), method.from_view(rows)
    assert torch.allclose(direct.logits, stored.logits, atol=1e-5)
    by_images, by_view = method.loss(direct, labels), method.loss(stored, labels)
    assert by_images.scalars() == pytest.approx(by_view.scalars(), abs=1e-5)


def test_gradients_are_the_same(model, images):
    labels = torch.tensor([0, 1, 2])
    found = []
    for out in (model(images), model.from_view(model.image_view(images))):
        model.zero_grad()
        model.loss(out, labels).total.backward()
        found.append({name: p.grad.clone() for name, p in model.trainable().items()})
    for name, gradient in found[0].items():
        assert torch.allclose(gradient, found[1][name], atol=1e-5), name
