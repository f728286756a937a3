"""The learning rate of every step, and what a recipe's other numbers come to."""

import math

import pytest
import torch
from torch import nn

from dear.engine.optim import epoch_weights, make_optimiser, rate, total_steps
from dear.errors import ConfigError
from dear.methods.recipe import Case, Recipe, Special, resolve, special_config

PAPER = [1e-5, 1e-3, 9.76e-4, 9.05e-4, 7.94e-4, 6.55e-4, 5.00e-4, 3.45e-4, 2.06e-4, 9.55e-5]


def rates(recipe, steps_per_epoch=1, shots=0):
    last = total_steps(recipe, steps_per_epoch, shots)
    return [rate(recipe, recipe.lr, step, steps_per_epoch, last) for step in range(last)]


def test_the_papers_ten_rates():
    assert [float(f"{one:.3g}") for one in rates(Recipe())] == PAPER


def test_one_rate_per_epoch():
    found = rates(Recipe(epochs=3), steps_per_epoch=4)
    assert [len(set(found[at : at + 4])) for at in (0, 4, 8)] == [1, 1, 1]
    assert found[::4] == rates(Recipe(epochs=3))


@pytest.mark.parametrize(
    ("epochs", "warmup", "expected"),
    [(1, 1, [1e-5]), (2, 1, [1e-5, 1e-3]), (2, 5, [1e-5, 1e-5]), (2, 0, [1e-3, 5e-4]), (1, 0, [1e-3])],
)
def test_short_trainings(epochs, warmup, expected):
    assert rates(Recipe(epochs=epochs, warmup_epochs=warmup)) == pytest.approx(expected)


def test_one_rate_per_step_as_in_clip_lora():
    """CosineAnnealingLR(T_max=500 · shots, eta_min=1e-6), one call per step, no warm-up."""
    recipe = Recipe(lr=2e-4, steps_per_shot=500, schedule="step", warmup_epochs=0, last_lr=1e-6)
    found = rates(recipe, steps_per_epoch=7, shots=2)
    assert len(found) == 1000
    assert found == pytest.approx([1e-6 + (2e-4 - 1e-6) * (1 + math.cos(math.pi * t / 1000)) / 2 for t in range(1000)])
    optimiser = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=2e-4)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 1000, eta_min=1e-6)
    for step in range(50):
        assert found[step] == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        theirs.step()


def test_no_change():
    recipe = Recipe(epochs=3, schedule="constant", lr=0.5, warmup_lr=0.25)
    assert rates(recipe, steps_per_epoch=2) == [0.25] * 2 + [0.5] * 4


@pytest.mark.parametrize(("shots", "steps"), [(1, 30), (4, 120)])
def test_steps_per_shot_take_the_place_of_epochs(shots, steps):
    assert total_steps(Recipe(steps_per_shot=30, epochs=7), 11, shots) == steps
    assert total_steps(Recipe(epochs=7), 11, shots) == 77
    assert total_steps(Recipe(epochs=0), 11, shots) == 0


def test_groups_have_rates_of_their_own():
    named = {name: nn.Parameter(torch.zeros(1)) for name in ("tokens", "scale.a", "scale.b", "head")}
    optimiser = make_optimiser(Recipe(lr=0.1, groups={"scale*": 0.5, "head": 0.1}), named)
    found = {id(p): (group["lr"], group["base_lr"]) for group in optimiser.param_groups for p in group["params"]}
    assert {name: found[id(p)] for name, p in named.items()} == {
        "tokens": (0.1, 0.1),
        "scale.a": (0.5, 0.5),
        "scale.b": (0.5, 0.5),
        "head": (0.1, 0.1),
    }
    assert sum(len(group["params"]) for group in optimiser.param_groups) == 4
    with pytest.raises(ConfigError, match=r"gives 'sclae\*' a learning rate, but no parameter is called so"):
        make_optimiser(Recipe(groups={"sclae*": 1.0}), named)


@pytest.mark.parametrize(
    ("kind", "of", "told"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.3}),
        ("adam", torch.optim.Adam, {"betas": (0.5, 0.6), "eps": 1e-4, "weight_decay": 0.3}),
        ("adamw", torch.optim.AdamW, {"betas": (0.5, 0.6), "eps": 1e-4, "weight_decay": 0.3}),
    ],
)
def test_every_optimiser_gets_its_numbers(kind, of, told):
    recipe = Recipe(optimiser=kind, momentum=0.8, decay=0.3, betas=(0.5, 0.6), eps=1e-4)
    optimiser = make_optimiser(recipe, {"a": nn.Parameter(torch.zeros(1))})
    assert type(optimiser) is of
    assert {name: optimiser.param_groups[0][name] for name in told} == told


def test_weights_of_averaged_epochs():
    assert epoch_weights(Recipe(), 4) is None
    assert epoch_weights(Recipe(average="equal"), 4) == [0.25] * 4
    found = epoch_weights(Recipe(average="gaussian", gaussian=(2.0, 0.5)), 3)
    heights = [math.exp(-(((n - 2) / 0.5) ** 2) / 2) for n in (1, 2, 3)]
    assert found == pytest.approx([height / sum(heights) for height in heights])
    with pytest.raises(ConfigError, match="Gaussian weights around epoch 900 vanish over 3 epochs: train for longer"):
        epoch_weights(Recipe(average="gaussian", gaussian=(900.0, 0.1)), 3)


def test_the_later_of_the_values_that_hold_win():
    own = Recipe(lr=0.1, epochs=50)
    special = (
        Special({"epochs": 20, "lr": 0.2}, {"depth": 3}, protocols=("few-shot",)),
        Special({"epochs": 5}, protocols=("few-shot",), shots=(1, 4)),
        Special({"lr": 0.3}, data=("pets", "cats")),
        Special({"batch_size": 4}, {"depth": 2}, protocols=("few-shot",), data=("pets",)),
    )
    found = resolve(own, special, "own", Case("few-shot", "pets", 16), {"decay": 0.0})
    assert (found.epochs, found.lr, found.batch_size, found.decay) == (20, 0.3, 4, 0.0)
    assert resolve(own, special, "own", Case("few-shot", "cars", 2)) == Recipe(lr=0.2, epochs=5)
    assert resolve(own, special, "own") == own
    assert resolve(own, special, "shared", Case("few-shot", "pets", 16)) == Recipe()
    assert special_config(special, "own", Case("few-shot", "cars")) == {"depth": 3}
    assert special_config(special, "own", Case("few-shot", "pets")) == {"depth": 2}
    assert special_config(special, "shared", Case("few-shot", "pets")) == {}
