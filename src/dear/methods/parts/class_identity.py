"""Whether classes are the same as the classes that a method was trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from dear.data.catalog import declarations
from dear.data.families import BROAD_WORLD, IMAGENETS, WORLD_PREFIX
from dear.data.prompts import ClassList
from dear.errors import ConfigError, option


def name_bytes(name: str | None) -> Tensor:
    """A data set's name as a tensor, to be saved with the method."""
    return torch.tensor(list((name or "").encode()), dtype=torch.uint8)


def same_classes(trained: Tensor, dataset: str | None) -> bool:
    """Whether equal names mean the same classes as in the training data set, stored by `name_bytes`."""
    return shares_classes(bytes(trained.tolist()).decode(errors="replace"), dataset)


def shares_classes(one: str | None, other: str | None) -> bool:
    """Whether equal names mean the same classes in two data sets.

    They do in the versions of ImageNet, and in the user's own folders and lists. In other data sets of the catalogue or
    of the world, they do not.
    """
    if not one or not other or one == other or {one, other} <= set(IMAGENETS):
        return True
    if one.startswith(BROAD_WORLD) and other.startswith(BROAD_WORLD):
        return True
    known = declarations()
    return not all(name in known or name.startswith(WORLD_PREFIX) for name in (one, other))


def places(classes: ClassList, device: torch.device) -> Tensor:
    """Index of each class (C,) in the training list; -1 for a new class."""
    return torch.tensor(classes.seen or range(len(classes.names)), device=device)


def known_rows(seen: Tensor, dataset: str | None, trained: Tensor, count: int) -> Tensor:
    """Row of each class (C,) in a table of `count` trained classes; `count` itself for a class that is not in it."""
    known = (seen >= 0) & (seen < count) & same_classes(trained, dataset)
    return torch.where(known, seen, count)


def only_trained(method: str, seen: Tensor, dataset: str | None, trained: Tensor) -> None:
    """Raise a ConfigError if a list has classes that a method was not trained on."""
    if not same_classes(trained, dataset) or bool((seen < 0).any()):
        half = f"test the half that was trained, such as {option(half='base')}"
        raise ConfigError(f"{method} predicts only classes it was trained on: leave out the others, or {half}.")
