"""A recipe at work: its optimiser, the learning rate of every step, the weights of averaged epochs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from typing import TypeVar

import torch
from torch import Tensor, nn

from dear.engine.ranks import Ranks
from dear.errors import ConfigError
from dear.methods.recipe import Recipe

Default = TypeVar("Default", bound=float | None)


def make_optimiser(recipe: Recipe, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """The recipe's optimiser, one group per combination of learning rate, floor and weight decay.

    A group stores its rate as `base_lr` and its smallest one as `floor`.
    """
    for what, patterns in (("learning rate", (*recipe.groups, *recipe.floors)), ("weight decay", recipe.decays)):
        if unused := [one for one in patterns if not any(fnmatch(name, one) for name in parameters)]:
            raise ConfigError(f"The recipe gives {unused[0]!r} a {what}, but no parameter is called so.")
    members: dict[tuple[float, float | None, float], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        lr, decay = _of(name, recipe.groups, recipe.lr), _of(name, recipe.decays, recipe.decay)
        members.setdefault((lr, _of(name, recipe.floors, None), decay), []).append(parameter)
    groups = [
        {"params": some, "lr": lr, "base_lr": lr, "floor": floor, "weight_decay": decay}
        for (lr, floor, decay), some in members.items()
    ]
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    kind = torch.optim.AdamW if recipe.optimiser == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps)


def _of(name: str, values: Mapping[str, float], default: Default) -> float | Default:
    """The value of the first pattern that a parameter's name matches."""
    return next((value for pattern, value in values.items() if fnmatch(name, pattern)), default)


def total_steps(recipe: Recipe, steps_per_epoch: int, shots: int) -> int:
    """Number of updates of a training."""
    if recipe.steps_per_shot is not None:
        return recipe.steps_per_shot * shots
    return recipe.epochs * steps_per_epoch


def rate(
    recipe: Recipe, base_lr: float, step: int, steps_per_epoch: int, steps: int, floor: float | None = None
) -> float:
    """Learning rate of a step, counted from 0: small and constant at first, then a cosine over the whole period, never
    below the floor.
    """
    epoch, whole = step // steps_per_epoch, int(recipe.warmup_epochs)
    if step < recipe.warmup_epochs * steps_per_epoch:
        return recipe.warmup_lr if floor is None else floor
    if recipe.schedule == "constant":
        return base_lr
    if recipe.schedule == "epoch":
        done, period = epoch - whole, max(1, -(-steps // steps_per_epoch), recipe.cosine_epochs)
    else:
        done, period = step - whole * steps_per_epoch, max(1, steps)
    found = recipe.last_lr + (base_lr - recipe.last_lr) * (1 + math.cos(math.pi * done / period)) / 2
    return max(found, floor or 0.0)


def epoch_weights(recipe: Recipe, epochs: int) -> list[float] | None:
    """Weight of each epoch's state in the result, summing to 1; None if the last state is the result."""
    if recipe.average is None or not epochs:
        return None
    if recipe.average == "equal":
        return [1 / epochs] * epochs
    mean, deviation = recipe.gaussian
    heights = [math.exp(-(((epoch - mean) / deviation) ** 2) / 2) for epoch in range(1, epochs + 1)]
    if not sum(heights):
        raise ConfigError(f"Gaussian weights around epoch {mean:g} vanish over {epochs} epochs: train for longer.")
    return [height / sum(heights) for height in heights]


class Best:
    """The state after the epoch that was best on held-out images, and when to stop waiting for a better one."""

    def __init__(
        self, patience: int, judge: Callable[[], float], found: Sequence[float] | None, state: dict[str, Tensor]
    ) -> None:
        self._patience, self._judge, self.found = patience, judge, found
        self.sums: dict[str, Tensor] = state

    def add(self, epochs: int, state: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Rate the state after a number of epochs in the first process; of equal ones the first is stored."""
        score = float(ranks.gather(json.dumps(self._judge()))[0])
        if self.found is None or score > self.found[0]:
            self.found = [score, epochs]
            self.sums = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}

    def waited(self, epochs: int) -> bool:
        """Whether the last epochs brought nothing better."""
        return self.found is not None and epochs - self.found[1] >= self._patience


class Average:
    """The weighted average of a method's states after each epoch; whole numbers are taken from the last one."""

    def __init__(self, weights: list[float], sums: dict[str, Tensor] | None = None) -> None:
        self._weights = weights
        self.sums: dict[str, Tensor] = sums or {}

    def add(self, epoch: int, state: Mapping[str, Tensor]) -> None:
        """Add the state after an epoch, counted from 0."""
        for name, tensor in state.items():
            value = tensor.detach().to("cpu", copy=True)
            if value.is_floating_point():
                value = self._weights[epoch] * value
                value = self.sums[name] + value if name in self.sums else value
            self.sums[name] = value
