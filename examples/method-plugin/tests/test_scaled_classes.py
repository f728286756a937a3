"""Run with `pytest` after `pip install -e .`."""

import torch
from dear_scaled_classes import ScaledClasses

import dear
from dear.methods.api import misfits


def test_it_is_found_by_name():
    assert "scaled_classes" in dear.list_methods()
    assert dear.get_method("scaled_classes") is ScaledClasses
    assert misfits(ScaledClasses) == []


def test_it_begins_as_plain_clip_and_can_be_trained():
    clip = dear.load_clip("world")
    model = dear.Model(clip, ScaledClasses(clip, ScaledClasses.Config())).for_classes(["circle", "star"])
    size = clip.geometry.image_size
    images, labels = torch.randn(4, 3, size, size), torch.tensor([0, 1, 0, 1])
    with torch.no_grad():
        torch.testing.assert_close(model(images).logits, model.plain()(images).logits)
    model.loss(images, labels)["total"].backward()
    assert model.trainable()["up"].grad.abs().sum() > 0
