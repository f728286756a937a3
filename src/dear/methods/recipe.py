"""How a method is trained, as data: optimiser, rates, batch, epochs, augmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    floors: dict[str, float] = Field(default_factory=dict)
    """Smallest learning rates, by such patterns, the first that fits; also the rates of the warm-up."""
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
    """Number of epochs; 0 for a method that needs no gradient steps."""
    steps_per_shot: int | None = Field(default=None, ge=1)
    """Number of updates per shot, in the place of epochs."""
    batch_size: int = Field(default=16, ge=1)
    """Images per update, over all processes."""
    drop_last: bool = False
    """Leave a last, smaller batch of an epoch out."""
    one_class: bool = False
    """Every batch holds images of one class, if each class has enough for a whole one; what is left over waits."""
    warmup_epochs: int | float = Field(default=1, ge=0)
    """Epochs at a constant, small rate before the schedule begins; a fraction takes the place of the first steps."""
    warmup_lr: float = Field(default=1e-5, gt=0)
    """That rate."""
    schedule: Literal["epoch", "step", "constant"] = "epoch"
    """Cosine with one value per epoch, one per step, or no change."""
    cosine_epochs: int = Field(default=0, ge=0)
    """Epochs that a cosine with one value per epoch is spread over, if they are more than those of the training."""
    last_lr: float = Field(default=0.0, ge=0)
    """What the cosine falls to."""
    average: Literal["equal", "gaussian"] | None = None
    """Average the states after each epoch, with equal or Gaussian weights; None: the last state is the result."""
    gaussian: tuple[float, float] = Field(default=(15.0, 1.0), strict=False)
    """Mean and deviation of Gaussian weights, in epochs."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this number of epochs without a better accuracy on held-out images, and keep the best epoch's state;
    without held-out images, all epochs are trained and the last is kept."""
    augment: bool = True
    """Train on random crops, mirrored half the time; else on images as they are tested."""
    crop: tuple[float, float] = Field(default=(0.5, 1.0), strict=False)
    """Smallest and largest share of an image's area that a random crop takes."""


SHARED = Recipe()
"""One recipe for all methods, for a comparison of methods rather than of budgets."""


@dataclass(frozen=True)
class Special:
    """Published values that hold in some cases only, of a method's recipe and of its config."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    protocols: tuple[str, ...] = ()
    """The protocols it is for; none named: all of them."""
    data: tuple[str, ...] = ()
    """The data sets it is for; none named: all of them."""
    shots: tuple[int, int] = (1, 10**9)
    """Smallest and largest number of shots it is for."""
    when: Mapping[str, Any] = field(default_factory=dict)
    """Values of the config that must have been asked for, such as the method that another one builds on."""

    def holds(self, case: Case) -> bool:
        """Whether this is such a case."""
        least, most = self.shots
        return (
            (not self.protocols or case.protocol in self.protocols)
            and (not self.data or case.data in self.data)
            and least <= case.shots <= most
            and all(case.config.get(name) == value for name, value in self.when.items())
        )


@dataclass(frozen=True)
class Case:
    """What decides which published values hold."""

    protocol: str | None = None
    data: str | None = None
    shots: int = 16
    config: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for."""


def resolve(
    own: Recipe,
    special: Sequence[Special],
    which: RecipeName,
    case: Case = Case(),  # noqa: B008 (it is immutable)
    changes: Mapping[str, Any] | None = None,
) -> Recipe:
    """The recipe of a training: a method's own for this case, or the shared one, then what was asked for.

    Of `special`, the later ones win.
    """
    values = own.model_dump() if which == "own" else SHARED.model_dump()
    return Recipe(**{**values, **_holding(special, which, case, "recipe"), **(changes or {})})


def special_config(special: Sequence[Special], which: RecipeName, case: Case) -> dict[str, Any]:
    """Values of a method's config that were published for this case; none by the shared recipe."""
    return _holding(special, which, case, "config")


def _holding(special: Sequence[Special], which: RecipeName, case: Case, part: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for one in special if which == "own" else ():
        if one.holds(case):
            values |= getattr(one, part)
    return values
