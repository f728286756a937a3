"""Published settings of CLIP-LoRA, MMA, TextRefiner and LLaMP, as data."""

import math

import pytest
import torch
from torch import nn

import dear
from dear.engine.optim import make_optimiser, rate, total_steps
from dear.engine.settings import TrainSettings
from dear.methods.recipe import Case, resolve, special_config


def own(name, protocol="base-to-novel", data="dtd", shots=16, **changes):
    """The resolved recipe and config of a method's own recipe."""
    method, case = dear.get_method(name), Case(protocol, data, shots)
    recipe = resolve(method.recipe, method.special, "own", case, changes)
    return recipe, method.Config(**special_config(method.special, "own", case))


def rates(recipe, steps_per_epoch, shots=16, base=None, floor=None):
    last = total_steps(recipe, steps_per_epoch, shots)
    return [rate(recipe, base or recipe.lr, step, steps_per_epoch, last, floor) for step in range(last)]


@pytest.mark.parametrize("shots", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("protocol", ["few-shot", "base-to-novel", "cross-dataset", "domain"])
def test_clip_lora_is_the_same_everywhere(protocol, shots):
    recipe, config = own("clip_lora", protocol, "imagenet", shots)
    assert (recipe.optimiser, recipe.lr, recipe.decay, recipe.betas) == ("adamw", 2e-4, 1e-2, (0.9, 0.999))
    assert (recipe.batch_size, recipe.drop_last, recipe.warmup_epochs, recipe.clip_norm) == (32, False, 0, None)
    assert config.model_dump() == {
        "encoder": "both",
        "position": "all",
        "matrices": "qkv",
        "rank": 2,
        "alpha": 1.0,
        "dropout": 0.25,
        "template": "a photo of a {}.",
    }
    assert config.scale == pytest.approx(0.70710678)
    count = 500 * shots
    expected = [1e-6 + (2e-4 - 1e-6) * (1 + math.cos(math.pi * i / count)) / 2 for i in range(count)]
    assert rates(recipe, 7, shots) == pytest.approx(expected)


def test_epochs_that_are_told_take_the_place_of_steps_per_shot():
    recipe, _ = own("clip_lora", **TrainSettings(epochs=3).changes())
    assert total_steps(recipe, 7, 16) == 21
    assert TrainSettings(lr=0.1).changes() == {"lr": 0.1}


def test_mma():
    recipe, config = own("mma")
    assert (recipe.optimiser, recipe.momentum, recipe.decay, recipe.batch_size) == ("sgd", 0.9, 5e-4, 16)
    assert recipe.drop_last
    assert rates(recipe, 1) == pytest.approx([1.5e-3, 1.357e-3, 9.82e-4, 5.18e-4, 1.43e-4], rel=2e-3)
    assert (config.first, config.last, config.width, config.scale) == (5, 12, 32, 0.001)
    assert own("mma", data="imagenet")[0].batch_size == 128
    for protocol in ("cross-dataset", "domain"):
        recipe, config = own("mma", protocol, "imagenet")
        assert (recipe.epochs, recipe.batch_size, config.first) == (1, 128, 9)


@pytest.mark.parametrize("protocol", ["base-to-novel", "cross-dataset", "domain", "few-shot"])
def test_textrefiner(protocol):
    recipe, config = own("textrefiner", protocol, "imagenet")
    assert (recipe.optimiser, recipe.lr, recipe.batch_size, recipe.drop_last) == ("sgd", 2e-3, 32, True)
    assert rates(recipe, 1)[:3] == pytest.approx([1e-5, 2e-3, 2e-3 * (1 + math.cos(math.pi / 10)) / 2])
    assert len(rates(recipe, 1)) == 10
    assert (config.words, config.slots, config.alpha, config.momentum) == ("a photo of a", 25, 0.2, 0.8)
    assert (config.balance, config.distill, config.patches) == (50, 20, 5)


def test_llamp():
    recipe, config = own("llamp")
    assert (recipe.optimiser, recipe.decay, recipe.clip_norm, recipe.batch_size) == ("adamw", 5e-5, 1.0, 4)
    assert (recipe.lr, recipe.groups, recipe.drop_last) == (2e-4, {"lora.*": 2e-5}, False)
    found = rates(recipe, 20, floor=1e-5)
    assert len(found) == 400
    assert found[:2] == [1e-5] * 2
    assert found[2:20] == [2e-4] * 18
    cosine = [2e-4 * (1 + math.cos(math.pi * epoch / 20)) / 2 for epoch in range(1, 20)]
    assert found[20::20] == pytest.approx([max(1e-5, one) for one in cosine])
    assert found[-1] == 1e-5
    assert rates(recipe, 20, base=2e-5, floor=5e-6)[::40][:2] == pytest.approx(
        [5e-6, 2e-5 * (1 + math.cos(math.pi / 10)) / 2]
    )
    assert (config.paraphrases, config.llm_prompts, config.llm_depth, config.lambda_dist) == (11, 16, 9, 2.5)
    short, _ = own("llamp", data="imagenet")
    assert rates(short, 20, floor=1e-5) == found[:200]
    recipe, config = own("llamp", "few-shot")
    assert (recipe.epochs, recipe.lr, config.lambda_dist) == (50, 2e-5, 1.0)
    assert rates(recipe, 1)[25] == pytest.approx(1e-5)


def test_floors_by_group():
    named = {name: nn.Parameter(torch.zeros(1)) for name in ("lora.6.q.A", "norm.weight")}
    optimiser = make_optimiser(dear.get_method("llamp").recipe, named)
    assert [(group["base_lr"], group["floor"]) for group in optimiser.param_groups] == [(2e-5, 5e-6), (2e-4, 1e-5)]
