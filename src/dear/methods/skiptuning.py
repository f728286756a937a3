"""SkipTuning: trains copies of the last layers of both towers, in each step on the classes relevant to its batch.

Shapes: B images, C classes, K classes of a step, E joint embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.rows import Rows
from dear.data.prompts import DEFAULT_TEMPLATE
from dear.methods.api import About, Batch, Can, ClassList, Method, Needs, Output, Recipe, Settings, Special, unit
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import prompt_rows
from dear.methods.parts.trainable_copies import own_blocks, own_copy, own_tensor, with_blocks

TEMPLATES = {
    "caltech101": "itap of a {}.",
    "dtd": "itap of a {}.",
    "eurosat": "a centered satellite photo of {}.",
    "fgvc_aircraft": "a bright photo of a {}, a type of aircraft.",
    "food101": "a photo of the nice {}.",
    "imagenet": DEFAULT_TEMPLATE,
    "imagenet_a": "a bad photo of a {}.",
    "imagenet_r": "a rendition of a {}.",
    "imagenet_sketch": "a sketch of a {}.",
    "imagenetv2": DEFAULT_TEMPLATE,
    "oxford_flowers": "a close-up photo of a {}.",
    "oxford_pets": "a bad photo of a {}, a type of pet.",
    "stanford_cars": "a photo of the {}, a type of car.",
    "sun397": DEFAULT_TEMPLATE,
    "ucf101": "a photo of a {}, a type of sport.",
}
LARGE = ("imagenet", "sun397", "food101")
"""Data sets with a quarter of the epochs."""
DEPTH = 12
"""Layers of the published towers, which `first_layer` refers to."""
FAR = 5.0
"""Range of the exponential law, before it is shifted to end at 0."""
FIRST = 1e4
"""A similarity that puts labels before all other classes."""


class SkipTuningConfig(Settings):
    """Config of SkipTuning."""

    first_layer: int = Field(default=7, ge=1, le=DEPTH)
    """First trained layer of twelve; counted from the end in other towers."""
    top: float = Field(default=0.5, gt=0)
    """Share of the classes that a step always uses, or their number if it is above 1; 1 skips none."""
    most: int = Field(default=50, ge=1)
    """Maximum number of classes that a step always uses."""
    falloff: float = Field(default=0.3, gt=0)
    """How slowly the probability of using a further class decreases with its rank."""
    redraw: bool = False
    """Sample the further ranks in every step, as in the paper, instead of once per run, as in its code."""


@dataclass
class FrozenClasses:
    """Everything about a class list that training does not change."""

    rows: Rows
    """Prompts at the input of the first trained layer."""
    prototypes: Tensor | None = None
    """(C, E): plain CLIP's class features, computed by the first training step."""


class TrainedClasses(NamedTuple):
    """Classes of a training step, before the relevant ones are selected."""

    words: Tensor
    end: Tensor
    past: Tensor
    """Shared rows of the prompts, repeated per class so that classes are the first dimension."""
    mask: Tensor
    """`Rows.mask`."""
    prototypes: Tensor
    draws: Tensor


class Blocks(nn.Module):
    """Trained copies of a tower's last blocks, with OpenAI's names."""

    def __init__(self, blocks: list[nn.Module], first: int) -> None:
        super().__init__()
        self.resblocks = own_blocks(blocks, first)


class ImageTail(nn.Module):
    """Trained copy of an image tower from a layer on, with OpenAI's names."""

    def __init__(self, clip: FrozenClip, first: int) -> None:
        super().__init__()
        self.transformer = Blocks(clip.vision.blocks, first)
        self.ln_post = own_copy(clip.vision.final_norm)
        weight = clip.vision.pool.weight
        self.proj = None if weight is None else own_tensor(weight)


def chances(count: int, top: int, falloff: float) -> Tensor:
    """Probability of using each rank: 1 for the first `top`, then an exponential law that ends at 0."""
    others = count - top
    if others < 2:
        return torch.tensor([1.0] * top + [0.0] * others)
    law = torch.exp(-torch.linspace(0, FAR, others) / falloff)
    return torch.cat([torch.ones(top), (law - law[-1]) / (law[0] - law[-1])])


class SkipTuning(Method[SkipTuningConfig]):
    """Trains copies of the last six layers of both towers, in each step on the classes relevant to its batch."""

    name = "skiptuning"
    needs_of_clip = frozenset({Can.IMAGE_LAYERS, Can.TEXT_LAYERS})
    recipe = Recipe(
        **{**DASSL, "lr": 2e-5, "batch_size": 4},
        groups={"visual.*": 5e-6},
        epochs=20,
        warmup_lr=1e-6,
        one_class=True,
    )
    special = (
        Special(
            {"lr": 1e-5, "groups": {"visual.*": 1e-6}, "warmup_lr": 1e-8},
            protocols=("cross-dataset", "domain"),
        ),
        Special({"epochs": 5}, data=LARGE),
        Special({"lr": 1e-5, "groups": {}, "warmup_epochs": 0, "epochs": 40}, protocols=("few-shot",)),
        Special({"epochs": 10}, protocols=("few-shot",), data=LARGE),
    )
    about = About(
        citation="Wu et al., Skip Tuning: Pre-trained Vision-Language Models are Effective and Efficient Adapters "
        "Themselves, CVPR 2025",
        year=2025,
        touches="both towers, layers 7–12 (on copies)",
        parameters=62_099_456,
        code="Koorye/SkipTuning 8c4636e",
        licence="none stated",
    )

    def __init__(self, clip: FrozenClip, config: SkipTuningConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        before = DEPTH - self.config.first_layer
        self._first_text, self._first_image = (max(1, t.depth - before) for t in (clip.text, clip.vision))
        self.needs = Needs(image=(f"rows@{self._first_image}",), whole_batch=True)
        self.visual = ImageTail(clip, self._first_image)
        self.transformer = Blocks(clip.text.blocks, self._first_text)
        self.ln_final = own_copy(clip.text.final_norm)
        frozen = clip.text.projection
        self.text_projection = own_tensor(frozen) if isinstance(frozen, Tensor) else frozen and own_copy(frozen)

    def classes(self, clip: FrozenClip, classes: ClassList) -> FrozenClasses:
        """Prompts after the frozen layers, with the published template of the data set or its own."""
        template = TEMPLATES.get(classes.dataset or "", classes.template)
        return FrozenClasses(clip.text.run(prompt_rows(clip, classes, template, 0), 1, self._first_text - 1))

    def text(self, clip: FrozenClip, frozen: FrozenClasses, batch: Batch | None = None) -> Tensor | TrainedClasses:
        """Class features of unit length (C, E); in training their inputs, as most features are not needed."""
        rows = frozen.rows
        if batch is None:
            return self.class_features(clip, rows)
        if frozen.prototypes is None:
            with torch.no_grad():
                frozen.prototypes = unit(clip.text.features(rows, self._first_text))
        draws_C = (batch if self.config.redraw else replace(batch, step=0)).draw("ranks").to(clip.device)
        past = rows.past.expand(rows.words.shape[0], -1, -1)
        return TrainedClasses(rows.words, rows.end, past, rows.mask, frozen.prototypes, draws_C)

    def class_features(self, clip: FrozenClip, rows: Rows) -> Tensor:
        """Class features of unit length (C, E) with the trained layers."""
        layers = with_blocks(clip.text.layers, self.transformer.resblocks)
        first, projection = self._first_text, self.text_projection
        return unit(clip.text.features(rows, first, layers=layers, norm=self.ln_final, projection=projection))

    def image_features(self, clip: FrozenClip, rows_BND: Tensor) -> Tensor:
        """Image features of unit length (B, E) with the trained layers."""
        layers = with_blocks(clip.vision.layers, self.visual.transformer.resblocks)
        x_BQD = clip.vision.run(rows_BND, self._first_image, layers=layers, read=clip.vision.pooled)
        pool = replace(clip.vision.pool, norm=self.visual.ln_post, weight=self.visual.proj)
        return unit(clip.vision.feature(x_BQD, pool))

    @torch.no_grad()
    def selected(self, feature_BE: Tensor, text: TrainedClasses, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        """(C,) selected ranks and (C,) selected classes; classes are ranked by similarity to any image of the step."""
        count = text.prototypes.shape[0]
        wanted = self.config.top * count if self.config.top <= 1 else min(self.config.top, count)
        top = count if self.config.top == 1 else min(math.ceil(wanted), self.config.most, count)
        ranks_C = text.draws < chances(count, top, self.config.falloff).to(text.draws.device)
        similar_BC = (feature_BE @ text.prototypes.T).scatter(1, labels_B[:, None], FIRST)
        order_C = similar_BC.amax(0).argsort(descending=True, stable=True)
        classes_C = torch.zeros_like(ranks_C).scatter(0, order_C, ranks_C)
        return ranks_C, classes_C.scatter(0, labels_B, True)  # a batch of many classes must not lose a label

    def forward(self, clip: FrozenClip, image: Mapping[str, Tensor], text: Any, batch: Batch | None = None) -> Output:
        """Cosines of image and class features; in training of the selected classes."""
        feature_BE = self.image_features(clip, image[f"rows@{self._first_image}"])
        if batch is None:
            logits_BC = clip.temperature * feature_BE @ text.T
            return Output({"logits": logits_BC}, {"cls": feature_BE}, classes=text)
        ranks_C, classes_C = self.selected(feature_BE.detach(), text, batch.required_labels)
        kept_K = classes_C.nonzero()[:, 0]
        rows = Rows(text.past[:1].detach(), text.words[kept_K].detach(), text.end[kept_K]).masked(text.mask[kept_K])
        text_KE = self.class_features(clip, rows)
        rest = {"ranks": ranks_C, "kept": kept_K, "labels": (classes_C.cumsum(0) - 1)[batch.required_labels]}
        logits_BK = clip.temperature * feature_BE @ text_KE.T
        return Output({"logits": logits_BK}, {"cls": feature_BE}, classes=text_KE, rest=rest)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy over the selected classes."""
        return {"ce": F.cross_entropy(out.logits, out.rest["labels"])}
