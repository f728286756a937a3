"""MMRL: tokens of a shared space that are mapped into later layers of both towers and give a second image feature.

Shapes: n tokens, R width of their space, K layers with tokens, Dt and Dv widths of the towers, N original image rows,
B images, C classes, E joint embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.precision import wide
from dear.backbone.rows import Rows
from dear.methods.api import (
    About,
    Batch,
    Can,
    ClassList,
    Method,
    Needs,
    Output,
    Recipe,
    Settings,
    Special,
    tokens_of,
    unit,
)
from dear.methods.parts.class_text import AdaptedText, FrozenText
from dear.methods.parts.published_layers import PUBLISHED_DEPTH, counted_from_end
from dear.methods.parts.recipes import TRANSFER, by_data
from dear.methods.parts.tokens import random_linear, random_rows


class MMRLConfig(Settings):
    """Config of MMRL."""

    tokens: int = Field(default=5, ge=1, le=64)
    """Number of representation tokens."""
    width: int = Field(default=512, ge=1, le=4096)
    """Width of the token space."""
    layers: tuple[int, ...] = Field(default=(6, 7, 8, 9, 10, 11, 12), min_length=1, strict=False)
    """Layers with tokens, numbered for a tower of twelve; counted from the last layer in other towers."""
    alpha: float = Field(default=0.7, ge=0, le=1)
    """Weight of the class token's logits; the representation tokens have the remaining weight."""
    reg_weight: float = Field(default=4.0, ge=0)
    """Weight of the two terms that keep the features near plain CLIP's; default: the median of the published values."""

    @field_validator("layers")
    @classmethod
    def _ascending(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if list(layers) != sorted(set(layers)) or layers[0] < 1 or layers[-1] > PUBLISHED_DEPTH:
            raise ValueError(f"must be ascending numbers from 1 to {PUBLISHED_DEPTH}")
        return layers


REG_WEIGHTS = {
    "imagenet": 0.5,
    "caltech101": 0.5,
    "oxford_pets": 0.2,
    "stanford_cars": 7.0,
    "oxford_flowers": 4.0,
    "food101": 5.0,
    "fgvc_aircraft": 6.0,
    "sun397": 6.0,
    "dtd": 6.0,
    "eurosat": 0.01,
    "ucf101": 3.0,
}


class MMRL(Method[MMRLConfig]):
    """Tokens of a space shared by both towers in their later layers; a second image feature read from them."""

    name = "mmrl"
    needs_of_clip = frozenset({Can.IMAGE_LAYERS, Can.TEXT_LAYERS})
    recipe = Recipe(batch_size=4, drop_last=True)
    special = (
        *by_data("reg_weight", REG_WEIGHTS),
        Special(config={"width": 2048}, data=("eurosat",)),
        Special({"batch_size": 32, "epochs": 50}, protocols=("few-shot",)),
        Special({"batch_size": 32, "epochs": 5}, data=("imagenet",)),
        Special({"batch_size": 32, "epochs": 1, "warmup_epochs": 0}, {"reg_weight": 0.2}, protocols=TRANSFER),
    )
    about = About(
        citation="Guo and Gu, MMRL: Multi-Modal Representation Learning for Vision-Language Models, CVPR 2025",
        year=2025,
        touches="both towers, layers 6–12",
        parameters=4_992_256,
        code="yunncheng/MMRL 27d8821",
        licence="MIT",
    )
    readouts: ClassVar[Mapping[str, str]] = {"default": "fused", "novel": "logits", "transfer": "logits"}
    carries = False
    """Whether a layer's token depends on the previous layer's output."""

    def __init__(self, clip: FrozenClip, config: MMRLConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.vision_layers = counted_from_end(self.config.layers, clip.vision.depth)
        self.text_layers = counted_from_end(self.config.layers, clip.text.depth)
        self.needs = Needs(image=(f"rows@{self.vision_layers[0]}",), training=("feature",))
        self.tokens = random_rows(self.generator, self.config.tokens, self.config.width)
        self._make_maps(clip, self.generator)

    def _make_maps(self, clip: FrozenClip, generator: torch.Generator) -> None:
        """One map per layer and tower, with the same initial values in a tower, and a separate projection."""
        wide_map = random_linear(generator, self.config.width, clip.vision.width)
        narrow_map = random_linear(generator, self.config.width, clip.text.width)
        self.to_vision = nn.ModuleList(copy.deepcopy(wide_map) for _ in self.vision_layers)
        self.to_text = nn.ModuleList(copy.deepcopy(narrow_map) for _ in self.text_layers)
        self.projection = random_rows(generator, *clip.vision.projection.shape, std=clip.vision.width**-0.5)

    def mapped(self, maps: nn.ModuleList, place: int) -> Tensor:
        """The tokens of one layer, (n, Dv) or (n, Dt)."""
        rows: Tensor = maps[place](self.tokens)
        return rows

    def token_projection(self, clip: FrozenClip) -> Tensor:
        """Projection of the mean token into the joint space, (Dv, E) or as `Pool.start`."""
        return self.projection

    def carried(self, fresh: Tensor, previous: Tensor) -> Tensor:
        """Input tokens of a layer from its own tokens and the previous layer's output."""
        return fresh

    def classes(self, clip: FrozenClip, classes: ClassList) -> FrozenText:
        """The frozen part of the text tower."""
        tokens, first = tokens_of(clip, classes), self.text_layers[0]
        rows = clip.text.rows(clip.text.embed(tokens.ids_CT), tokens.end_C, tokens.shared)
        rows = clip.text.run(rows, last=first - 1)
        return FrozenText(rows, unit(clip.text.features(rows, first)))

    def text(self, clip: FrozenClip, frozen: FrozenText, batch: Batch | None = None) -> AdaptedText:
        """Class features with tokens between the start token and the words."""
        first, count, at = self.text_layers[0], self.config.tokens, clip.text.first

        def edit(layer: int, rows: Rows) -> Rows:
            if layer not in self.text_layers:
                return rows
            fresh = self.mapped(self.to_text, self.text_layers.index(layer))[None]
            return rows.insert(at, fresh) if layer == first else rows.put(at, self.carried(fresh, rows.take(at, count)))

        return AdaptedText(unit(clip.text.features(frozen.rows, first, edit=edit)), frozen.plain_CE)

    def image_features(self, clip: FrozenClip, rows_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Unit features (B, E) of the class token and of the mean representation token.

        The tokens follow the patches instead of [CLS]: without positions and masks, the order does not matter.
        """
        first, originals, count = self.vision_layers[0], rows_BND.shape[1], self.config.tokens

        def edit(layer: int, x_BLD: Tensor) -> Tensor:
            if layer not in self.vision_layers:
                return x_BLD
            fresh = self.mapped(self.to_vision, self.vision_layers.index(layer)).to(x_BLD.dtype)
            each = fresh.expand(x_BLD.shape[0], -1, -1)
            if layer != first and self.carries:
                each = self.carried(each, x_BLD[:, originals:])
            return torch.cat([x_BLD[:, :originals], each], dim=1)

        def kept(layer: int) -> int | None:
            return originals if layer + 1 in self.vision_layers and not self.carries else None

        read = [*clip.vision.pooled, *range(originals, originals + count)]
        x_BQD = clip.vision.run(rows_BND, first, edit=edit, read=read, kept=kept)
        tokens_BE = clip.vision.read(x_BQD[:, -count:], projection=self.token_projection(clip)).mean(1)
        return unit(clip.vision.feature(x_BQD)), unit(tokens_BE)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: AdaptedText, batch: Batch | None = None
    ) -> Output:
        """Logits of the class token, of the representation tokens, and of both together."""
        cls_BE, rep_BE = self.image_features(clip, image[f"rows@{self.vision_layers[0]}"])
        cls_BC, rep_BC = (clip.temperature * feature_BE @ text.adapted_CE.T for feature_BE in (cls_BE, rep_BE))
        plain = {"plain_image": unit(image["feature"]), "plain_classes": text.plain_CE} if batch else {}
        return Output(
            {"fused": self.config.alpha * cls_BC + (1 - self.config.alpha) * rep_BC, "logits": cls_BC},
            features={"cls": cls_BE, "representation": rep_BE},
            classes=text.adapted_CE,
            rest={"representation": rep_BC, **plain},
        )

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of both sets of logits, and the distance of both towers' features from plain CLIP's."""
        config = self.config
        return {
            "ce": config.alpha * F.cross_entropy(out.readouts["logits"], batch.required_labels),
            "ce_rep": (1 - config.alpha) * F.cross_entropy(out.rest["representation"], batch.required_labels),
            "reg_image": config.reg_weight * distance(out.features["cls"], out.rest["plain_image"]),
            "reg_text": config.reg_weight * distance(out.class_features, out.rest["plain_classes"]),
        }


def distance(features_XE: Tensor, frozen_XE: Tensor) -> Tensor:
    """Mean of 1 - cosine over rows of unit length."""
    return 1 - (features_XE * wide(frozen_XE)).sum(-1).mean()
