"""Which classes are the ones that a method was trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from dear.data.catalog import declarations
from dear.data.families import BROAD_WORLD, IMAGENETS, WORLD_PREFIX
from dear.data.prompts import ClassList


def name_bytes(name: str | None) -> Tensor:
    """A data set's name as a tensor that is saved with others."""
    return torch.tensor(list((name or "").encode()), dtype=torch.uint8)


def same_classes(trained: Tensor, dataset: str | None) -> bool:
    """Whether equal names are the same classes as those of the data set that was trained on, known by `name_bytes`."""
    return shares_classes(bytes(trained.tolist()).decode(errors="replace"), dataset)


def shares_classes(one: str | None, other: str | None) -> bool:
    """Whether equal names mean the same in two data sets. In two different ones of the catalogue or of the world they
    do not, but in the variants of ImageNet; a person's own folders and lists are taken at their word.
    """
    if not one or not other or one == other or {one, other} <= set(IMAGENETS):
        return True
    if one.startswith(BROAD_WORLD) and other.startswith(BROAD_WORLD):
        return True
    known = declarations()
    return not all(name in known or name.startswith(WORLD_PREFIX) for name in (one, other))


def places(classes: ClassList, device: torch.device) -> Tensor:
    """Place of each class (C,) in the list that was trained on, -1 if it is not in it."""
    return torch.tensor(classes.seen or range(len(classes.names)), device=device)
