"""Class features are recomputed when classes or the method's tensors changed, and only then."""

import copy

import pytest
import torch

import dear
from dear.methods.dear.method import DearMethod

LABELS = torch.tensor([0, 1, 2])


@pytest.fixture
def runs(monkeypatch):
    """Counts how often class features are made."""
    calls = []
    original = DearMethod.text
    monkeypatch.setattr(DearMethod, "text", lambda *a, **k: calls.append(1) or original(*a, **k))
    return calls


@torch.no_grad()
def test_kept_between_batches(model, images, runs):
    for _ in range(3):
        model(images)
        model.class_features()
        model.states(images)
        model.eval()
        model.requires_grad_(False)
    assert len(runs) == 1
    view = model.for_classes(["fish"])
    view(images)
    view(images)
    model(images)
    assert len(runs) == 2


def _assign(model):
    state = {name: tensor + 1 for name, tensor in model.method.state_dict().items()}
    model.method.load_state_dict(state, assign=True)


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.method.text_tokens.add_(0.5),
        lambda model: model.method.text_tokens.data.mul_(1.5),
        lambda model: model.load_state_dict({"text_tokens": model.method.text_tokens + 1}, strict=False),
        lambda model: setattr(model.method.text_tokens, "data", model.method.text_tokens + 1),
        _assign,
        lambda model: model.method.to(torch.bfloat16),
    ],
    ids=["in place", "through .data", "load_state_dict", "replaced", "assigned", "another type"],
)
def test_recomputed_after_any_change_of_the_tokens(model, images, runs, change):
    before = model(images).classes
    change(model)
    after = model(images).classes
    model(images)
    assert len(runs) == 2
    assert not torch.equal(before, after)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_recomputed_after_an_optimizer_step(model, images, runs, fused):
    """A fused optimiser raises no version counter."""
    with torch.no_grad():
        before = model(images).classes
    optimizer = torch.optim.AdamW(model.trainable().values(), lr=0.1, fused=fused)
    model.loss(images, LABELS)["total"].backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.equal(model(images).classes, before)
        model(images)
    assert len(runs) == 3


@torch.no_grad()
def test_recomputed_after_a_change_of_clip(tiny_clips, roles, images, runs):
    clip = copy.deepcopy(tiny_clips["plain"])  # the backbone is shared by all tests
    model = dear.DeAR(clip, roles).for_classes(["cat", "dog"])
    before = model(images).classes
    clip.model.transformer.resblocks[0].mlp.c_fc.weight.mul_(1.1)
    assert not torch.equal(model(images).classes, before)
    before = model(images).classes
    clip.model.token_embedding.weight.data = clip.model.token_embedding.weight + 1
    assert not torch.equal(model(images).classes, before)
    model(images)
    assert len(runs) == 3


@torch.no_grad()
def test_a_view_has_features_of_its_own(model, images, runs):
    model(images)
    view = model.for_classes(["fish"])
    assert view(images).logits.shape == (3, 1)
    assert model(images).logits.shape == (3, 3)
    assert len(runs) == 2
    assert view.method is model.method


def test_gradients_after_evaluation_and_inference_mode(model, images):
    with torch.inference_mode():
        view = model.for_classes(["cat", "dog", "fish"])
        view(images)
    view.loss(images, LABELS)["total"].backward()
    assert model.method.text_tokens.grad.abs().max() > 0


@pytest.mark.parametrize(("names", "length"), [(["cat"], 6), (["cat", "a b c d"], 9)])
def test_no_position_past_the_longest_prompt_is_computed(model, names, length):
    ((_, frozen),) = model.for_classes(names, "a photo of {}").frozen_parts()
    rows = frozen.rows
    assert rows.past.shape[1] + rows.words.shape[1] == length  # start, "a photo of", the longest name, end


def test_the_frozen_part_of_the_classes_runs_once(model, images, monkeypatch):
    calls = []
    original = DearMethod.classes
    monkeypatch.setattr(DearMethod, "classes", lambda *a: calls.append(1) or original(*a))
    for _ in range(2):
        model.loss(images, LABELS)["total"].backward()
    with torch.no_grad():
        model(images)
    assert len(calls) == 1
    for _ in range(2):  # epochs under autocast, and tests without
        with torch.autocast("cpu", torch.bfloat16):
            model.loss(images, LABELS)
        with torch.no_grad():
            model(images)
    assert len(calls) == 2  # once per type


def test_the_image_tower_starts_once_for_both_branches(model, images, monkeypatch):
    calls = []
    tower = type(model.clip.vision)
    original = tower.embed
    monkeypatch.setattr(tower, "embed", lambda *a: calls.append(1) or original(*a))
    model.loss(images, LABELS)
    assert len(calls) == 1
    with torch.no_grad():
        model.loss(images, LABELS)
    assert len(calls) == 2
