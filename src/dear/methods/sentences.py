"""Frozen class features from several sentences, and which classes are those that were trained on.

Shapes: C classes, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.data.catalog import declarations
from dear.data.prompts import DEFAULT_TEMPLATE, ClassList
from dear.methods.base import tokens_of, unit

SEVEN = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""The templates that are used together for ImageNet's classes."""
IMAGENETS = ("imagenet", "imagenetv2", "imagenet_sketch", "imagenet_a", "imagenet_r")
"""Data sets whose classes are ImageNet's."""
WORLD, BROAD_WORLD = "world-", "world-broad"
"""How the world's data sets begin, and what the names of those with the same classes begin with."""


def text_weights(
    clip: FrozenClip, classes: ClassList, templates: Sequence[str] = (), *, described: bool = False
) -> Tensor:
    """Class features (C, E) from the list's template, or others, and, if `described`, what is told about each class:
    unit length each, averaged, unit length again. Sentences that are too long are cut.
    """
    tokens_of(clip, classes)  # refuses classes that look the same
    told = classes.descriptions or {} if described else {}
    prompts = [classes.prompts(template) for template in templates or (classes.template,)]
    sentences = [[*own, *told.get(name, ())] for name, *own in zip(classes.names, *prompts, strict=True)]
    features = unit(clip.text.encode([one for of_class in sentences for one in of_class], cut=bool(told)))
    counts = torch.tensor([len(of_class) for of_class in sentences], device=features.device)
    owner = torch.arange(len(sentences), device=features.device).repeat_interleave(counts)
    sums = features.new_zeros(len(sentences), features.shape[1]).index_add(0, owner, features)
    return unit(sums / counts[:, None])


def usual_templates(classes: ClassList, given: Sequence[str] = ()) -> tuple[str, ...]:
    """The templates that were given, else seven for ImageNet's classes and the list's own for all others."""
    if not given and classes.dataset in IMAGENETS and classes.template == DEFAULT_TEMPLATE:
        return SEVEN
    return tuple(given) or (classes.template,)


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
    return not all(name in known or name.startswith(WORLD) for name in (one, other))


def places(classes: ClassList, device: torch.device) -> Tensor:
    """Place of each class (C,) in the list that was trained on, -1 if it is not in it."""
    return torch.tensor(classes.seen or range(len(classes.names)), device=device)
