"""How a method is trained, as data: optimiser, rates, batch, epochs, augmentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from dear.config import Settings

RecipeName = Literal["own", "shared"]
RECIPES: tuple[RecipeName, ...] = ("own", "shared")


class Recipe(Settings):
    """Everything about a training that a method's authors publish. The defaults are DeAR's."""

    optimiser: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate."""
    groups: dict[str, float] = Field(default_factory=dict)
    """Other learning rates, by pattern of the parameters' names, such as "scale*"."""
    betas: tuple[float, float] = Field(default=(0.9, 0.999), strict=False)
    """Of adam and adamw."""
    eps: float = Field(default=1e-8, gt=0)
    """Of adam and adamw."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Of sgd."""
    decay: float = Field(default=5e-4, ge=0)
    """Weight decay."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient."""
    epochs: int = Field(default=10, ge=0)
    """Rounds through the images; 0 for a method that needs no gradient steps."""
    steps_per_shot: int | None = Field(default=None, ge=1)
    """Number of updates per shot, in the place of epochs."""
    batch_size: int = Field(default=16, ge=1)
    """Images per update, over all processes."""
    drop_last: bool = False
    """Leave a last, smaller batch of an epoch out."""
    warmup_epochs: int = Field(default=1, ge=0)
    """Epochs at a constant, small rate before the schedule begins."""
    warmup_lr: float = Field(default=1e-5, gt=0)
    """That rate."""
    schedule: Literal["epoch", "step", "constant"] = "epoch"
    """Cosine with one value per epoch, one per step, or no change."""
    last_lr: float = Field(default=0.0, ge=0)
    """What the cosine falls to."""
    average: Literal["equal", "gaussian"] | None = None
    """Average the states after each epoch, with equal or Gaussian weights; None: the last state is the result."""
    gaussian: tuple[float, float] = Field(default=(15.0, 1.0), strict=False)
    """Mean and deviation of Gaussian weights, in epochs."""
    crop: tuple[float, float] = Field(default=(0.5, 1.0), strict=False)
    """Smallest and largest share of an image's area that a random crop takes."""


SHARED = Recipe()
"""One recipe for all methods, for a comparison of methods rather than of budgets."""


def resolve(
    own: Recipe,
    special: Mapping[str, Mapping[str, Any]],
    which: RecipeName,
    *,
    protocol: str | None = None,
    data: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Recipe:
    """The recipe of a training: a method's own for a protocol and a data set, or the shared one, then what was asked.

    `special` holds a method's other values by "PROTOCOL", "DATA" and "PROTOCOL/DATA", the more special ones win.
    """
    values = own.model_dump() if which == "own" else SHARED.model_dump()
    if which == "own":
        for key in (protocol, data, f"{protocol}/{data}"):
            values |= special.get(key or "", {})
    return Recipe(**{**values, **(changes or {})})
