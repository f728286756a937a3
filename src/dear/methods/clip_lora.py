"""CLIP-LoRA: low-rank terms on the attention matrices of chosen layers of one or both towers.

Shapes: B images, C classes, E joint embedding, D width of a tower, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.layers import Layer
from dear.backbone.rows import Rows
from dear.data.prompts import DEFAULT_TEMPLATE, ClassList, class_list
from dear.methods.api import About, Batch, Can, Method, Needs, Output, Recipe, Settings, cosine_output, tokens_of, unit
from dear.methods.parts.lora import Dropout, LowRank, with_low_rank

Position = Literal["all", "bottom", "mid", "up", "half-bottom", "half-up", "top3"]


class ClipLoraConfig(Settings):
    """Config of CLIP-LoRA."""

    encoder: Literal["both", "vision", "text"] = "both"
    """Towers with low-rank terms."""
    position: Position = "all"
    """Layers with low-rank terms: all, a third (bottom, mid, up), a half, or the last three."""
    matrices: str = Field(default="qkv", pattern=r"^[qkvo]+$")
    """Attention matrices with low-rank terms, of q, k, v and o."""
    rank: int = Field(default=2, ge=1, le=4096)
    """Rank of the terms."""
    alpha: float = Field(default=1.0, gt=0)
    """Terms are multiplied by alpha / √rank."""
    dropout: float = Field(default=0.25, ge=0, lt=1)
    """Dropout rate of the terms' inputs in training."""
    template: str = DEFAULT_TEMPLATE
    """Template of the prompts; "" for the data set's own."""

    @property
    def scale(self) -> float:
        """Factor of the terms."""
        return self.alpha / math.sqrt(self.rank)


def blocks(position: Position, depth: int) -> list[int]:
    """Layers of a tower at a position, counted from 0, at least one."""
    first, last = {
        "all": (0, depth),
        "bottom": (0, depth // 3),
        "mid": (depth // 3, depth - depth // 3),
        "up": (depth - depth // 3, depth),
        "half-bottom": (0, depth // 2),
        "half-up": (depth // 2, depth),
        "top3": (depth - 3, depth),
    }[position]
    first = min(max(first, 0), depth - 1)
    return list(range(first, max(last, first + 1)))


class ClipLora(Method[ClipLoraConfig]):
    """Low-rank terms on the attention matrices of both towers."""

    name = "clip_lora"
    needs_of_clip = frozenset({Can.IMAGE_LAYERS, Can.TEXT_LAYERS})
    recipe = Recipe(
        lr=2e-4,
        decay=1e-2,
        steps_per_shot=500,
        batch_size=32,
        schedule="step",
        last_lr=1e-6,
        warmup_epochs=0,
        crop=(0.08, 1.0),
    )
    about = About(
        citation="Zanella and Ben Ayed, Low-Rank Few-Shot Adaptation of Vision-Language Models, CVPRW 2024",
        year=2024,
        touches="attention of both towers, all layers",
        parameters=184_320,
        code="MaxZanella/CLIP-LoRA 358f0d7",
        licence="none stated",
    )

    def __init__(self, clip: FrozenClip, config: ClipLoraConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        if self.config.template:
            class_list(["x"], self.config.template)
        self.vision_lora = self._terms("vision", clip.vision.depth, clip.vision.width, self.generator)
        self.text_lora = self._terms("text", clip.text.depth, clip.text.width, self.generator)
        first = 1 + min((int(block) for block in self.vision_lora), default=0)
        self.needs = Needs(image=(f"rows@{first}",) if len(self.vision_lora) else ("feature",))

    def _terms(self, tower: str, depth: int, width: int, generator: torch.Generator) -> nn.ModuleDict:
        """The terms of a tower, by block counted from 0 and matrix."""
        chosen = blocks(self.config.position, depth) if self.config.encoder in ("both", tower) else []
        matrices, rank = [letter for letter in "qkvo" if letter in self.config.matrices], self.config.rank
        return nn.ModuleDict(
            {str(b): nn.ModuleDict({m: LowRank(width, rank, generator) for m in matrices}) for b in chosen}
        )

    def _adapted(
        self, layers: Sequence[Layer], terms: nn.ModuleDict, tower: str, batch: Batch | None, read: Tensor | None = None
    ) -> list[Layer]:
        """A tower's layers with low-rank terms; `read` is the output row of each sequence, if not the first."""
        found, probability = list(layers), self.config.dropout
        for block, of_block in terms.items():
            drop = Dropout(batch, probability, f"{tower}.{block}", read) if batch and probability else None
            found[int(block)] = with_low_rank(
                layers[int(block)], dict(of_block.named_children()), self.config.scale, drop
            )
        return found

    def classes(self, clip: FrozenClip, classes: ClassList) -> Rows | Tensor:
        """Rows before the first changed layer, or class features if the text tower is unchanged."""
        template = self.config.template or classes.template
        tokens = tokens_of(clip, classes, template)
        if not len(self.text_lora):
            return clip.encode_text(classes.prompts(template))
        rows = clip.text.rows(clip.text.embed(tokens.ids_CT), tokens.end_C, tokens.shared)
        return clip.text.run(rows, 1, min(map(int, self.text_lora)))

    def text(self, clip: FrozenClip, frozen: Rows | Tensor, batch: Batch | None = None) -> Tensor:
        """Class features of unit length (C, E); with dropout, no rows are shared between classes."""
        if isinstance(frozen, Tensor):
            return frozen
        rows = frozen.unshare(0) if batch is not None and self.config.dropout else frozen
        layers = self._adapted(clip.text.layers, self.text_lora, "text", batch, rows.end)
        return unit(clip.text.features(rows, 1 + min(map(int, self.text_lora)), layers=layers))

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of adapted image and class features."""
        if not len(self.vision_lora):
            return super().forward(clip, image, text, batch)
        first = 1 + min(map(int, self.vision_lora))
        layers = self._adapted(clip.vision.layers, self.vision_lora, "vision", batch)
        x_BQD = clip.vision.run(image[f"rows@{first}"], first, layers=layers, read=clip.vision.pooled)
        feature_BE = unit(clip.vision.feature(x_BQD))
        return cosine_output(clip, feature_BE, text)
