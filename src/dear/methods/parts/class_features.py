"""Frozen class features from several sentences.

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
"""The templates that are averaged for ImageNet's classes."""
EIGHT = (*SEVEN, DEFAULT_TEMPLATE)
"""The templates that TaskRes and CLAP average for them."""


def text_weights(
    clip: FrozenClip, classes: ClassList, templates: Sequence[str] = (), *, described: bool = False
) -> Tensor:
    """Class features (C, E): unit features of the prompts, and of descriptions if `described`, averaged and normalised.

    `templates` replace the list's own template. Sentences that are too long are truncated.
    """
    tokens_of(clip, classes)  # raises an error for classes with the same tokens
    descriptions = classes.descriptions or {} if described else {}
    prompts = [classes.prompts(template) for template in templates or (classes.template,)]
    sentences = [[*own, *descriptions.get(name, ())] for name, *own in zip(classes.names, *prompts, strict=True)]
    features = unit(clip.text.encode([one for of_class in sentences for one in of_class], cut=bool(descriptions)))
    counts = torch.tensor([len(of_class) for of_class in sentences], device=features.device)
    owner = torch.arange(len(sentences), device=features.device).repeat_interleave(counts)
    sums = features.new_zeros(len(sentences), features.shape[1]).index_add(0, owner, features)
    return unit(sums / counts[:, None])


def usual_templates(classes: ClassList, chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The chosen templates; by default seven for ImageNet's classes and the list's own for all others."""
    if not chosen and classes.dataset in IMAGENETS and classes.template == DEFAULT_TEMPLATE:
        return SEVEN
    return tuple(chosen) or (classes.template,)


def raw_class_features(clip: FrozenClip, classes: ClassList) -> Tensor:
    """Class features (C, E) as TaskRes and CLAP start from: features of the prompts are averaged, not normalised."""
    tokens_of(clip, classes)  # raises an error for classes with the same tokens
    templates = usual_templates(classes)
    prompts = [classes.prompts(template) for template in (EIGHT if templates == SEVEN else templates)]
    features = clip.text.encode([one for of_template in prompts for one in of_template])
    exact = features.to(torch.promote_types(features.dtype, torch.float32))
    return exact.view(len(prompts), len(classes.names), -1).mean(0)
