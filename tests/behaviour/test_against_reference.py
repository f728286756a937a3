"""The fast model and the plain reference agree: outputs, loss terms and gradients, to 1e-4 relative in fp32."""

import pytest
import torch

import dear
from dear.methods.dear.masks import layer_mask, token_kinds
from helpers import move_parameters, varied_roles
from oracle import TOLERANCE, assert_matches, compare_with_reference
from reference import reference

TEMPLATES = ["{} in the middle of a photo", "a photo of a {}, a type of pet.", "the photo shows {}"]
NAMES = ["cat", "a very long name of a class that nobody would ever choose for a photo", "dog", "x"]


def build(tiny_clips, backbone, **choices):
    clip = tiny_clips[backbone]
    model = dear.DeAR(clip, varied_roles(clip, choices.get("first_layer")), **choices)
    move_parameters(model)
    size = clip.geometry.image_size
    return model, torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("backbone", ["plain", "odd", "shallow"])
def test_backbones_and_templates(tiny_clips, backbone, template):
    model, images = build(tiny_clips, backbone)
    assert_matches(compare_with_reference(model, images, torch.tensor([0, 1, 2, 3]), NAMES, template))


@pytest.mark.parametrize("count", [1, 300])
def test_number_of_classes(tiny_clips, count):
    model, images = build(tiny_clips, "plain")
    names = [f"thing {i}{' with more words' * (i % 5)}" for i in range(count)]
    labels = torch.tensor([0, count // 2, count - 1, 0])
    errors = compare_with_reference(model, images, labels, names, "a photo of a {}.")
    if count == 1:  # one class: the cross-entropy is 0 whatever the features, and so is the projection's gradient
        del errors["gradient.attribute_projection"]
        model.for_classes(names).loss(images, labels)["total"].backward()
        assert model.method.attribute_projection.grad.abs().max() == 0
    assert_matches(errors)


@pytest.mark.parametrize(
    "choices",
    [
        {"tokens_per_attribute": 3},
        {"routing": "strict"},
        {"beta": 0.0},
        {"beta": 1.0},
        {"text_tokens": 1},
        {"first_layer": 6, "text_first_layer": 2},
        {"first_layer": 1, "text_first_layer": 6},
        {"lambda_reg": 0.0, "lambda_fusion": 2.0, "fusion_loss": "one_minus"},
        {"projection": "random", "alpha_cls": 1 / 6},
        {"projection": "low_rank", "projection_rank": 3},
        {"text_tokens": 0},
    ],
    ids=str,
)
def test_every_choice(tiny_clips, choices):
    model, images = build(tiny_clips, "plain", **choices)
    assert_matches(compare_with_reference(model, images, torch.tensor([0, 1, 2, 3]), NAMES, "a photo of a {}."))


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("logits", lambda method: _remask(method, method.roles.all_mixed())),
        ("gradient.vision_tokens", lambda method: _start_at(method, 4)),
        ("gradient.text_tokens", lambda method: setattr(method, "text_first", 4)),
        ("loss.total", lambda method: setattr(method, "config", method.config.model_copy(update={"lambda_reg": 2.0}))),
    ],
    ids=["roles", "vision layer", "text layer", "loss weight"],
)
def test_the_comparison_can_fail(tiny_clips, monkeypatch, what, spoil):
    """A model that deviates from what the reference is told does not pass."""
    import oracle

    model, images = build(tiny_clips, "plain")
    honest, _ = build(tiny_clips, "plain")
    spoil(model.method)
    monkeypatch.setattr(oracle, "reference", lambda _, *rest: _as_if(honest, model, *rest))
    errors = compare_with_reference(model, images, torch.tensor([0, 1, 2, 3]), NAMES, TEMPLATES[0])
    assert errors[what] > TOLERANCE
    with pytest.raises(AssertionError):
        assert_matches(errors)


def _as_if(honest, model, *rest):
    """The reference for the unspoilt settings, differentiable in the spoilt model's parameters."""
    for name, parameter in model.trainable().items():
        setattr(honest.method, name, parameter)
    return reference(honest, *rest)


def _remask(method, roles):
    for layer in range(method.first, 7):
        mask = layer_mask(roles.layer(layer), roles.attributes, token_kinds(17, len(roles.attributes)))
        method.register_buffer(f"mask_{layer}", mask[None], persistent=False)


def _start_at(method, layer):
    method.first = layer
    method.needs = dear.Needs(image=(f"rows@{layer}",), training=("feature",))
