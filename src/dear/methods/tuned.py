"""The tuned recipe: for every method, the best of the same few ways to train, chosen on validation images."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from dear.config import Settings
from dear.errors import ConfigError, option
from dear.methods.base import Method
from dear.methods.recipe import SHARED, Case, Recipe, resolve
from dear.options.fields import RecipeName

LONGEST = SHARED.epochs
"""No method trains longer than with the shared recipe."""


class Tuned(Settings):
    """What was chosen for a method; batch size and crops are always the shared recipe's."""

    optimiser: Literal["own", "shared"]
    """Whose optimiser, learning rate and schedule: the method's own, or the shared recipe's."""
    rate: float = Field(gt=0)
    """Factor of that learning rate."""
    epochs: int = Field(ge=1, le=LONGEST)
    """Number of epochs."""

    def recipe(self, own: Recipe) -> Recipe:
        """The tuned recipe of a method, from its own recipe.

        An own learning rate is scaled to the shared batch size: linearly for SGD, by the square root for Adam.
        """
        if self.optimiser == "shared":
            return SHARED.model_copy(update={"lr": SHARED.lr * self.rate, "epochs": self.epochs})
        ratio = SHARED.batch_size / own.batch_size
        scale = self.rate * (ratio if own.optimiser == "sgd" else ratio**0.5)
        shorter = self.epochs / own.epochs
        changed = {
            "lr": own.lr * scale,
            "groups": {pattern: rate * scale for pattern, rate in own.groups.items()},
            "epochs": self.epochs,
            "steps_per_shot": None,
            "batch_size": SHARED.batch_size,
            "cosine_epochs": 0,
            "gaussian": (own.gaussian[0] * shorter, own.gaussian[1] * shorter),
            "patience": None,
            "augment": SHARED.augment,
            "crop": SHARED.crop,
        }
        return Recipe(**{**own.model_dump(), **changed})


@cache
def tuned_choices() -> dict[str, Tuned]:
    """The choice of each method, by name, as `benchmarks/tune_recipes.py` wrote it."""
    text = files(__package__).joinpath("tuned.json").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Tuned]).validate_json(text)


def recipe_for(
    method: type[Method],
    which: RecipeName,
    case: Case = Case(),  # noqa: B008 (it is immutable)
    changes: Mapping[str, Any] | None = None,
) -> Recipe:
    """The recipe of a training: the method's own for this case, the shared or the tuned one, with explicit changes."""
    if which != "tuned" or not takes_steps(method):
        return resolve(method.recipe, method.special, which, case, changes)
    if not is_tuned(method):
        raise ConfigError(
            f"No recipe was tuned for {method.name}: give {option(recipe='own')} or {option(recipe='shared')}."
        )
    found = tuned_choices()[method.name].recipe(method.recipe)
    return Recipe(**{**found.model_dump(), **(changes or {})})


def is_tuned(method: type[Method]) -> bool:
    """Whether there is a tuned recipe for a method; one without gradient steps needs none."""
    return not takes_steps(method) or method.name in tuned_choices()


def takes_steps(method: type[Method]) -> bool:
    """Whether a method is trained by gradient steps."""
    return bool(method.recipe.epochs or method.recipe.steps_per_shot)
