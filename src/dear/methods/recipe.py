"""Training recipes as data: optimiser, learning rates, batch size, epochs, augmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from dear.config import Settings
from dear.options.fields import RecipeName


class Recipe(Settings):
    """The published training of a method. The defaults are DeAR's."""

    optimiser: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate."""
    groups: dict[str, float] = Field(default_factory=dict)
    """Other learning rates, by the first matching pattern of the parameters' names, such as "scale*"."""
    floors: dict[str, float] = Field(default_factory=dict)
    """Smallest learning rates, by the first matching pattern; also the rates of the warm-up."""
    betas: tuple[float, float] = Field(default=(0.9, 0.999), strict=False)
    """For adam and adamw."""
    eps: float = Field(default=1e-8, gt=0)
    """For adam and adamw."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """For sgd."""
    decay: float = Field(default=5e-4, ge=0)
    """Weight decay."""
    decays: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Other weight decays, by the first matching pattern of the parameters' names."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Maximum norm of the gradient."""
    epochs: int = Field(default=10, ge=0)
    """Number of epochs; 0 for a method that needs no gradient steps."""
    steps_per_shot: int | None = Field(default=None, ge=1)
    """Number of updates per shot, instead of `epochs`."""
    batch_size: int = Field(default=16, ge=1)
    """Images per update, over all processes."""
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is smaller."""
    one_class: bool = False
    """Each batch has images of one class, if every class has enough; remaining images are used in a later epoch."""
    warmup_epochs: int | float = Field(default=1, ge=0)
    """Epochs at a small constant rate before the schedule; a fraction replaces the first steps of the schedule."""
    warmup_lr: float = Field(default=1e-5, gt=0)
    """Learning rate of the warm-up."""
    schedule: Literal["epoch", "step", "constant"] = "epoch"
    """Cosine with one value per epoch, one per step, or no change."""
    cosine_epochs: int = Field(default=0, ge=0)
    """Length of the per-epoch cosine in epochs, if it is longer than the training."""
    last_lr: float = Field(default=0.0, ge=0)
    """Final learning rate of the cosine."""
    average: Literal["equal", "gaussian"] | None = None
    """Average the states after each epoch, with equal or Gaussian weights; None: use the last state."""
    gaussian: tuple[float, float] = Field(default=(15.0, 1.0), strict=False)
    """Mean and deviation of Gaussian weights, in epochs."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this number of epochs without a better accuracy on held-out images, and use the best epoch. Without
    held-out images, all epochs are trained and the last one is used."""
    augment: bool = True
    """Train on random crops with random flips; otherwise on images preprocessed as for testing."""
    crop: tuple[float, float] = Field(default=(0.5, 1.0), strict=False)
    """Smallest and largest share of an image's area that a random crop takes."""


SHARED = Recipe()
"""The same recipe for all methods, to compare methods rather than budgets."""


@dataclass(frozen=True)
class Special:
    """Published values of recipe and config for some protocols, data sets or shots only."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    protocols: tuple[str, ...] = ()
    """Protocols; empty: all."""
    data: tuple[str, ...] = ()
    """Data sets; empty: all."""
    shots: tuple[int, int] = (1, 10**9)
    """Smallest and largest number of shots."""
    when: Mapping[str, Any] = field(default_factory=dict)
    """Config values that must be set explicitly, such as the base of ATPrompt."""

    def applies(self, case: Case) -> bool:
        """Whether the values apply to a case."""
        least, most = self.shots
        return (
            (not self.protocols or case.protocol in self.protocols)
            and (not self.data or case.data in self.data)
            and least <= case.shots <= most
            and all(case.config.get(name) == value for name, value in self.when.items())
        )


@dataclass(frozen=True)
class Case:
    """Protocol, data set, shots and explicit config: they decide which published values apply."""

    protocol: str | None = None
    data: str | None = None
    shots: int = 16
    config: Mapping[str, Any] = field(default_factory=dict)
    """Explicit settings."""


def resolve(
    own: Recipe,
    special: Sequence[Special],
    which: RecipeName,
    case: Case = Case(),  # noqa: B008 (it is immutable)
    changes: Mapping[str, Any] | None = None,
) -> Recipe:
    """The recipe of a training: the method's own for this case, or the shared one, with explicit changes.

    Later entries of `special` take precedence.
    """
    values = own.model_dump() if which == "own" else SHARED.model_dump()
    return Recipe(**{**values, **_applicable(special, which, case, "recipe"), **(changes or {})})


def special_config(special: Sequence[Special], which: RecipeName, case: Case) -> dict[str, Any]:
    """Config values that were published for a case; none with the shared recipe."""
    return _applicable(special, which, case, "config")


def _applicable(special: Sequence[Special], which: RecipeName, case: Case, part: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for one in special if which == "own" else ():
        if one.applies(case):
            values |= getattr(one, part)
    return values
