"""ProVP: learned image rows that are passed on from layer to layer, regularised towards plain CLIP (ProVP-Ref).

Shapes: n learned rows per layer, L layers, D image width, B images, C classes, E joint embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.data.prompts import DEFAULT_TEMPLATE
from dear.methods.api import About, Batch, Can, ClassList, Method, Needs, Output, Recipe, Settings, Special, unit
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import frozen_features

TEMPLATES = {
    "caltech101": DEFAULT_TEMPLATE,
    "dtd": "a texture of {}.",
    "eurosat": "a centered satellite photo of {}.",
    "fgvc_aircraft": "a type of aircraft, a photo of a {}.",
    "food101": "a type of food, a photo of {}.",
    "imagenet": DEFAULT_TEMPLATE,
    "imagenet_a": DEFAULT_TEMPLATE,
    "imagenet_r": DEFAULT_TEMPLATE,
    "imagenet_sketch": DEFAULT_TEMPLATE,
    "imagenetv2": DEFAULT_TEMPLATE,
    "oxford_flowers": "a type of flower, a photo of a {}.",
    "oxford_pets": "a type of pet, a photo of a {}.",
    "stanford_cars": DEFAULT_TEMPLATE,
    "sun397": DEFAULT_TEMPLATE,
    "ucf101": "a photo of a person doing {}.",
}
PATCH = 14
"""The published initialisation assumes this patch size for every backbone."""


class ProVPConfig(Settings):
    """Config of ProVP."""

    context: int = Field(default=16, ge=1, le=256)
    """Number of learned image rows per layer."""
    carry: float = Field(default=0.01, ge=0, le=1)
    """Share of the previous layer's output in the input rows of a layer; the remaining share is learned."""
    reformation: float = Field(default=1.0, ge=0)
    """Weight of the term that keeps image features near plain CLIP's; 0 is plain ProVP."""


class ProVP(Method[ProVPConfig]):
    """Learned image rows that are passed on from layer to layer; the text tower is unchanged."""

    name = "provp"
    needs_of_clip = frozenset({Can.IMAGE_LAYERS})
    recipe = Recipe(**{**DASSL, "lr": 0.1}, decay=1e-3, epochs=100)
    special = (
        Special({"epochs": 200, "decay": 5e-4}, {"context": 50}, protocols=("few-shot",)),
        Special({"epochs": 100}, protocols=("few-shot",), shots=(2, 7)),
        Special({"epochs": 50, "decay": 1e-3}, protocols=("few-shot",), shots=(1, 1)),
        Special({"epochs": 100, "decay": 5e-3, "lr": 5.0}, data=("imagenet",)),
    )
    about = About(
        citation="Xu et al., Progressive Visual Prompt Learning with Contrastive Feature Re-formation, arXiv 2023",
        year=2023,
        touches="image tower, all layers",
        parameters=147_456,
        code="MCG-NJU/ProVP 837b8fb",
        licence="MIT",
    )

    def __init__(self, clip: FrozenClip, config: ProVPConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        if self.config.reformation:
            self.needs = Needs(image=("rows@1",), training=("feature",), whole_batch=True)
        else:
            self.needs = Needs(image=("rows@1",))
        shape = clip.vision.depth, self.config.context, clip.vision.width
        bound = math.sqrt(6 / (3 * PATCH**2 + clip.vision.width))
        start = (torch.rand(shape, generator=self.generator) * 2 - 1) * bound
        self.vision_prompts = nn.Parameter(start)

    def classes(self, clip: FrozenClip, classes: ClassList) -> Tensor:
        """Plain CLIP's class features, with the published template of the data set or its own."""
        return frozen_features(clip, classes, TEMPLATES.get(classes.dataset or "", classes.template))

    def prompted_image(self, clip: FrozenClip, rows_BND: Tensor) -> Tensor:
        """Image features of unit length (B, E); learned rows follow the image's rows, whose order does not matter."""
        count, carry = rows_BND.shape[1], self.config.carry

        def edit(layer: int, x_BLD: Tensor) -> Tensor:
            fresh = self.vision_prompts[layer - 1].to(x_BLD.dtype).expand(x_BLD.shape[0], -1, -1)
            if layer > 1:
                fresh = carry * x_BLD[:, count:] + (1 - carry) * fresh
            return torch.cat([x_BLD[:, :count], fresh], dim=1)

        return unit(clip.vision.feature(clip.vision.run(rows_BND, edit=edit, read=clip.vision.pooled)))

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of prompted image features and class features; in training also cosines with plain image features."""
        feature_BE = self.prompted_image(clip, image["rows@1"])
        rest = {}
        if batch is not None and self.config.reformation:
            rest = {"pairs": feature_BE @ unit(image["feature"]).T}
        logits_BC = clip.temperature * feature_BE @ text.T
        return Output({"logits": logits_BC}, {"cls": feature_BE}, classes=text, rest=rest)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy, and the cross-entropy of finding each image among plain CLIP's image features."""
        terms = super().loss(out, batch)
        if "pairs" in out.rest:
            pairs_BB = out.rest["pairs"]
            own_B = torch.arange(pairs_BB.shape[0], device=pairs_BB.device)
            terms["ref"] = self.config.reformation * F.cross_entropy(pairs_BB, own_B)
        return terms
