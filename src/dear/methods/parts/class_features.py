"""Frozen class features from several sentences, and which classes are those that were trained on.

Shapes: C classes, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.data.families import IMAGENETS
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
