"""What the role mask promises, checked head by head, each with a counter-test that shows the check can fail."""

import copy

import pytest
import torch

import dear
from dear.backbone.layer_kinds import layer_of
from dear.backbone.layers import Layer
from dear.methods.dear.masks import layer_mask, token_kinds
from dear.roles.rolemap import CORE_ATTRIBUTES, HeadRole
from helpers import move_parameters


def rows_changed_by(clip, head_role, perturbed_attribute):
    """Which rows of a layer's output change when one attribute's token does, with only the given head at work?"""
    block = copy.deepcopy(clip.model.visual.transformer.resblocks[-1])
    head_dim = block.attn.head_dim
    keep = torch.zeros(block.attn.embed_dim)
    keep[head_role.head * head_dim : (head_role.head + 1) * head_dim] = 1
    block.attn.out_proj.weight.data *= keep  # silences every other head
    originals = clip.geometry.vision_tokens
    kinds = token_kinds(originals, len(CORE_ATTRIBUTES))
    silent = [HeadRole(layer=1, head=h, role="mixed") for h in range(clip.geometry.vision_heads)]
    heads = [head_role if h == head_role.head else silent[h] for h in range(len(silent))]
    mask = layer_mask(heads, CORE_ATTRIBUTES, kinds)
    x = torch.randn(2, len(kinds), clip.geometry.vision_width, generator=torch.Generator().manual_seed(5))
    moved = x.clone()
    moved[:, originals + CORE_ATTRIBUTES.index(perturbed_attribute)] = torch.linspace(-2, 2, x.shape[-1])
    layer = layer_of(block)
    change = (layer.run(moved, mask=mask) - layer.run(x, mask=mask)).abs().amax((0, 2))
    return {row for row, size in enumerate(change.tolist()) if size > 0}


def token_row(clip, attribute):
    return clip.geometry.vision_tokens + CORE_ATTRIBUTES.index(attribute)


@pytest.mark.parametrize("role", ["generalization", "other_specialized"])
@pytest.mark.parametrize("attribute", CORE_ATTRIBUTES)
def test_isolated_head_hides_attribute_tokens_from_originals(clip, role, attribute):
    head = HeadRole(layer=1, head=2, role=role, concept="style")
    originals = set(range(clip.geometry.vision_tokens))
    assert not rows_changed_by(clip, head, attribute) & originals
    assert originals <= rows_changed_by(clip, HeadRole(layer=1, head=2, role="mixed"), attribute)


@pytest.mark.parametrize("other", [a for a in CORE_ATTRIBUTES if a != "texture"])
def test_core_head_sees_only_its_own_attribute(clip, other):
    head = HeadRole(layer=1, head=4, role="core_attribute", concept="texture")
    assert rows_changed_by(clip, head, other) == {token_row(clip, other)}  # the moved row itself, as a query
    everything = set(range(clip.geometry.vision_tokens + len(CORE_ATTRIBUTES)))
    assert rows_changed_by(clip, head, "texture") == everything


@pytest.mark.parametrize("backbone", ["plain", "odd", "shallow"])
def test_all_generalization_leaves_cls_as_it_was(tiny_clips, backbone):
    clip = tiny_clips[backbone]
    sizes = clip.geometry
    first = max(1, sizes.vision_layers - 3)
    images = torch.randn(3, 3, sizes.image_size, sizes.image_size, generator=torch.Generator().manual_seed(2))
    frozen = clip.encode_image(images)
    differences = {}
    for role in (dear.Role.GENERALIZATION, dear.Role.MIXED):
        uniform = dear.RoleMap.uniform(role, first_layer=first, layers=sizes.vision_layers, heads=sizes.vision_heads)
        model = dear.DeAR(clip, uniform).for_classes(["cat"])
        move_parameters(model)
        with torch.no_grad():
            differences[role] = (model(images).features["cls"] - frozen).abs().max().item()
    assert differences[dear.Role.GENERALIZATION] <= 1e-6
    assert differences[dear.Role.MIXED] > 1e-4


def test_start_and_inserted_tokens_never_see_the_words(model, monkeypatch):
    """In every adapted text layer these rows, and those of a common beginning, run once for all classes."""
    seen = []
    original = Layer.run
    monkeypatch.setattr(Layer, "run", lambda *a, **k: seen.append(original(*a, **k)) or seen[-1])
    for template, beginning in (("{}", 6), ("a photo of a {}.", 10)):  # start, five inserted tokens, "a photo of a"
        view = model.for_classes(["cat", "dog"], template)
        view.frozen_parts()
        seen.clear()
        view.class_features()
        shapes = [tuple(x.shape[:2]) for x in seen]
        assert shapes == [(2, 2 if template == "{}" else 3), (1, beginning)] * 3 + [(2, 1)]  # last: end rows alone


def test_the_end_token_sees_inserted_tokens_and_padding_does_not_matter(model):
    features = model.for_classes(["cat", "dog"], "{}").class_features()
    gradient = torch.autograd.grad(features[0].sum(), model.method.text_tokens)[0]
    assert gradient.abs().max() > 0  # the end token sees the inserted tokens
    longer = model.for_classes(["cat", "a much longer class name than cat"], "{}")
    assert torch.allclose(longer.class_features()[0], features[0], atol=1e-6)  # padding and neighbours do not matter
