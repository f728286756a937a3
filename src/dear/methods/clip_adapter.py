"""CLIP-Adapter: two small layers on the image feature, blended with the feature itself.

Shapes: B images, C classes, E joint embedding, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.data.prompts import ClassList
from dear.methods.api import About, Batch, Draw, Method, Needs, Output, Recipe, Settings, Special, cosine_output, unit
from dear.methods.parts.class_features import text_weights
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import random_linear

RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Ratios to try if the ratio is chosen."""


class ClipAdapterConfig(Settings):
    """Config of CLIP-Adapter."""

    ratio: float = Field(default=0.2, ge=0, le=1)
    """Share of the adapted feature."""
    reduction: int = Field(default=4, ge=1)
    """Width of the feature divided by the width of the hidden layer."""
    choose_ratio: bool = False
    """Choose the ratio after training, on held-out images."""


class ClipAdapter(Method[ClipAdapterConfig]):
    """Two small layers on the image feature, blended with the feature itself."""

    name = "clip_adapter"
    recipe = Recipe(**DASSL, epochs=200)
    special = (
        Special({"epochs": 100}, protocols=("few-shot",), shots=(2, 7)),
        Special({"epochs": 50}, protocols=("few-shot",), shots=(1, 1)),
        Special({"epochs": 50}, protocols=("cross-dataset", "domain")),
        Special({"epochs": 50}, data=("imagenet",)),
    )
    about = About(
        citation="Gao et al., CLIP-Adapter: Better Vision-Language Models with Feature Adapters, IJCV 2023",
        year=2023,
        touches="the image feature",
        parameters=131_072,
        code="gaopengcuhk/CLIP-Adapter 08d07f8",
        licence="none stated",
    )

    def __init__(self, clip: FrozenClip, config: ClipAdapterConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.needs = Needs(drawn_images=False, held_out=self.config.choose_ratio)
        width = clip.geometry.embed_dim
        hidden = max(1, width // self.config.reduction)
        self.down = random_linear(self.generator, width, hidden, bias=False)
        self.up = random_linear(self.generator, hidden, width, bias=False)
        self.ratio: Tensor
        self.register_buffer("ratio", torch.tensor(self.config.ratio))

    def classes(self, clip: FrozenClip, classes: ClassList) -> Tensor:
        """Text features (C, E) of the list's template."""
        return text_weights(clip, classes)

    def adapted(self, feature_BE: Tensor) -> Tensor:
        """Apply the two layers to image features."""
        adapted_BE: Tensor = self.up(self.down(feature_BE).relu()).relu()
        return adapted_BE

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of blended image features and class features."""
        feature_BE = image["feature"]
        blended_BE = unit(self.ratio * self.adapted(feature_BE) + (1 - self.ratio) * feature_BE)
        return cosine_output(clip, blended_BE, text)

    @torch.no_grad()
    def finish(self, clip: FrozenClip, draw: Draw, held: Draw | None) -> None:
        """Choose the ratio if `choose_ratio` is set; unchanged if none is better."""
        if held is None or not self.config.choose_ratio:
            return
        text, best, most = self.classes(clip, held.classes), self.config.ratio, -1
        for ratio in (self.config.ratio, *RATIOS):
            self.ratio.fill_(ratio)
            right = int((self(clip, held.image, text).logits.argmax(1) == held.labels).sum())
            best, most = (ratio, right) if right > most else (best, most)
        self.ratio.fill_(best)

    def facts(self) -> dict[str, str]:
        """The ratio."""
        return {"ratio": f"{float(self.ratio):g}"}
