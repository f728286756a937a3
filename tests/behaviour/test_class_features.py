"""Class features are recomputed when classes or tokens changed, and only then."""

import pytest
import torch

import dear.methods.dear.method as model_module


@pytest.fixture
def runs(monkeypatch):
    """Counts how often the text tail runs."""
    calls = []
    original = model_module.text_tail
    monkeypatch.setattr(model_module, "text_tail", lambda *a, **k: calls.append(1) or original(*a, **k))
    return calls


@torch.no_grad()
def test_kept_between_batches(model, images, runs):
    for _ in range(3):
        model(images)
    assert len(runs) == 1


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.text_tokens.add_(0.5),
        lambda model: model.text_tokens.data.mul_(1.5),
        lambda model: model.load_state_dict({"text_tokens": model.text_tokens + 1}, strict=False),
        lambda model: setattr(model.text_tokens, "data", model.text_tokens + 1),
    ],
    ids=["in place", "through .data", "load_state_dict", "replaced"],
)
def test_recomputed_after_any_change_of_the_tokens(model, images, runs, change):
    before = model(images).class_features
    change(model)
    after = model(images).class_features
    assert len(runs) == 2
    assert not torch.equal(before, after)


def test_recomputed_after_an_optimizer_step(model, images, runs):
    with torch.no_grad():
        before = model(images).class_features
    optimizer = torch.optim.AdamW(model.trainable().values(), lr=0.1)
    model.loss(model(images), torch.tensor([0, 1, 2])).total.backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.equal(model(images).class_features, before)
        model(images)
    assert len(runs) == 3


@torch.no_grad()
def test_recomputed_for_new_classes_and_not_for_vision_changes(model, images, runs):
    model(images)
    model.vision_tokens.add_(1)
    model.fusion_scalars.add_(torch.arange(6.0))
    model(images)
    assert len(runs) == 1
    model.set_classes(["fish"])
    assert model(images).logits.shape == (3, 1)
    assert len(runs) == 2


def test_gradients_after_evaluation_and_inference_mode(model, images):
    with torch.inference_mode():
        model.set_classes(["cat", "dog", "fish"])
        model(images)
    model.loss(model(images), torch.tensor([0, 1, 2])).total.backward()
    assert model.text_tokens.grad.abs().max() > 0


@pytest.mark.parametrize(("names", "length"), [(["cat"], 6), (["cat", "a b c d"], 9)])
def test_no_position_past_the_longest_prompt_is_computed(model, names, length):
    model.set_classes(names, "a photo of {}")
    assert model._text_prefix_CTD.shape[1] == length  # start, "a photo of", the longest name, end


def test_the_same_classes_again_cost_nothing(model, monkeypatch):
    monkeypatch.setattr(type(model.clip.text), "prefix", lambda *a: pytest.fail("computed again"))
    model.set_classes(["cat", "dog", "hot air balloon"])


def test_prefix_runs_once_for_both_branches(model, images, monkeypatch):
    calls = []
    original = type(model.clip.vision).prefix
    monkeypatch.setattr(type(model.clip.vision), "prefix", lambda *a: calls.append(1) or original(*a))
    model.loss(model(images), torch.tensor([0, 1, 2]), images=images)
    assert len(calls) == 1
    with torch.no_grad():
        model.loss(model(images), torch.tensor([0, 1, 2]), images=images)
    assert len(calls) == 3
