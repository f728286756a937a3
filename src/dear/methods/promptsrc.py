"""PromptSRC: IVLP regularised towards plain CLIP by three terms, with a Gaussian average over epochs.

Shapes: B images, C classes, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dear.methods.api import About, Batch, ClassList, FrozenClip, Output, Recipe, Rows, Special, unit
from dear.methods.ivlp import IVLP, IVLPConfig
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.templates import SIXTY


class PromptSRCConfig(IVLPConfig):
    """Config of PromptSRC."""

    text_context: int = Field(default=4, ge=1, le=64)
    """Number of learned words per layer."""
    image_context: int = Field(default=4, ge=1, le=256)
    """Number of learned image rows per layer."""
    text_depth: int = Field(default=9, ge=1)
    """Number of text layers, from the first on, that get learned words of their own."""
    image_depth: int = Field(default=9, ge=0)
    """Number of image layers, from the first on, that get learned rows of their own; 0 leaves the tower unchanged."""
    text_weight: float = Field(default=25.0, ge=0)
    """Weight of the distance of class features from plain CLIP's, which are averaged over sixty templates."""
    image_weight: float = Field(default=10.0, ge=0)
    """Weight of the distance of image features from plain CLIP's."""
    logits_weight: float = Field(default=1.0, ge=0)
    """Weight of the divergence of the predictions from plain CLIP's."""


@dataclass
class FrozenClasses:
    """Everything about a class list that training does not change."""

    rows: Rows
    """Embedded prompts, whose first words are overwritten."""
    classes: ClassList
    targets: Tensor | None = None
    """(C, E): plain CLIP's class features, averaged over sixty templates.

    The first training step computes them: only training needs them, and they cost sixty times as much as the rest.
    """


class TrainedClasses(NamedTuple):
    """Class features of a training step, and their targets."""

    features: Tensor
    targets: Tensor


@torch.no_grad()
def averaged_features(clip: FrozenClip, classes: ClassList, templates: tuple[str, ...] = SIXTY) -> Tensor:
    """Plain CLIP's class features (C, E): the mean of raw features over templates, normalised."""
    total = sum(clip.text.encode(classes.prompts(template)) for template in templates)
    return unit(torch.as_tensor(total) / len(templates))


class PromptSRC(IVLP):
    """Learned words and image rows, regularised towards plain CLIP; epochs are averaged with Gaussian weights."""

    name = "promptsrc"
    Config = PromptSRCConfig
    recipe = Recipe(**{**DASSL, "lr": 2.5e-3, "batch_size": 4}, epochs=20, average="gaussian", gaussian=(15.0, 1.0))
    special = (
        Special({"gaussian": (6.0, 10.0)}, {"text_depth": 3, "image_depth": 3}, protocols=("cross-dataset", "domain")),
        Special({"epochs": 50, "gaussian": (30.0, 30.0)}, protocols=("few-shot",)),
        Special(
            {"gaussian": (45.0, 5.0)},
            protocols=("few-shot",),
            data=("stanford_cars", "oxford_flowers", "fgvc_aircraft", "dtd", "eurosat"),
        ),
    )
    about = About(
        citation="Khattak et al., Self-regulating Prompts: Foundational Model Adaptation without Forgetting, ICCV 2023",
        year=2023,
        touches="both towers, layers 1–9",
        parameters=46_080,
        code="muzairkhattak/PromptSRC bb95c77",
        licence="MIT",
    )
    config: PromptSRCConfig

    def __init__(self, clip: FrozenClip, config: PromptSRCConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.needs = replace(self.needs, training=("feature",))

    def classes(self, clip: FrozenClip, classes: ClassList) -> FrozenClasses:
        """Embedded prompts, and the class list for the targets."""
        return FrozenClasses(super().classes(clip, classes), classes)

    def text(self, clip: FrozenClip, frozen: FrozenClasses, batch: Batch | None = None) -> Tensor | TrainedClasses:
        """Class features of unit length (C, E); in training with plain CLIP's as targets."""
        features_CE = self.prompted_text(clip, frozen.rows)
        if batch is None:
            return features_CE
        if frozen.targets is None:
            frozen.targets = averaged_features(clip, frozen.classes)
        return TrainedClasses(features_CE, frozen.targets)

    def forward(self, clip: FrozenClip, image: Mapping[str, Tensor], text: Any, batch: Batch | None = None) -> Output:
        """Cosines of prompted image and class features; in training also plain CLIP's features and logits."""
        if batch is None:
            return super().forward(clip, image, text)
        out = super().forward(clip, image, text.features, batch)
        plain_BE, plain_CE = unit(image["feature"]), text.targets.detach()
        plain = {"image": plain_BE, "text": plain_CE, "logits": clip.temperature * plain_BE @ plain_CE.T}
        return Output(out.readouts, out.features, classes=out.class_features, rest=plain)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy, and distances of class features, image features and predictions from plain CLIP's."""
        config, plain = self.config, out.rest
        wanted_BC, found_BC = plain["logits"].log_softmax(1), out.logits.log_softmax(1)
        divergence = F.kl_div(found_BC, wanted_BC, reduction="sum", log_target=True)
        return {
            **super().loss(out, batch),
            "scl_text": config.text_weight * F.l1_loss(out.class_features, plain["text"]),
            "scl_image": config.image_weight * F.l1_loss(out.features["cls"], plain["image"]),
            "scl_logits": config.logits_weight * divergence / found_BC.numel(),  # per logit, not per image
        }
