"""MaPLe: learned words in the first layers of the text tower, and their images under linear maps in the image tower.

Shapes: n learned rows per layer, Dt and Dv widths of the towers, B images, C classes, E joint embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.rows import Rows
from dear.config import Settings
from dear.data.prompts import ClassList
from dear.methods.about import About
from dear.methods.base import Batch, Method, Needs, Output, unit
from dear.methods.coop import DASSL
from dear.methods.parts.tokens import (
    WORDS,
    deep_words,
    placeholders,
    prompt_rows,
    prompted_image,
    random_linear,
    random_rows,
    with_words,
    word_rows,
)
from dear.methods.recipe import Recipe, Special

MOST_WORDS = 4
"""Longer contexts start at random, as published."""


class SlotConfig(Settings):
    """How learned words take the place of the first words of a prompt."""

    words: str = WORDS
    """Words that the prompt begins with, the first of which are learned; "" for a random start."""


def slot_template(words: str, count: int) -> str:
    """The prompt whose first `count` words are learned; words beyond them stay as they are."""
    return f"{words if words and count <= MOST_WORDS else placeholders(count)} {{}}."


def slot_start(clip: FrozenClip, words: str, count: int, generator: torch.Generator) -> nn.Parameter:
    """The start of learned words: those words, or random rows if there are none or too many are learned."""
    if words and count <= MOST_WORDS:
        return nn.Parameter(word_rows(clip, words, count))
    return random_rows(generator, count, clip.text.width)


class MaPLeConfig(SlotConfig):
    """Config of MaPLe."""

    context: int = Field(default=2, ge=1, le=64)
    """Number of learned words, and of learned image rows."""
    depth: int = Field(default=9, ge=1)
    """Number of layers, from the first on, that get learned rows of their own."""


class MaPLe(Method):
    """Learned words in the first layers of the text tower, mapped into the image tower."""

    name: ClassVar[str] = "maple"
    Config: ClassVar[type[Settings]] = MaPLeConfig
    recipe: ClassVar[Recipe] = Recipe(**{**DASSL, "lr": 3.5e-3, "batch_size": 4}, epochs=5)
    special: ClassVar[tuple[Special, ...]] = (
        Special({"epochs": 50}, protocols=("few-shot",)),
        Special({"lr": 2.6e-3, "epochs": 2}, {"depth": 3}, protocols=("cross-dataset", "domain")),
    )
    about: ClassVar[About] = About(
        citation="Khattak et al., MaPLe: Multi-modal Prompt Learning, CVPR 2023",
        year=2023,
        touches="both towers, layers 1–9",
        parameters=3_555_072,
        code="muzairkhattak/multimodal-prompt-learning 69bce21",
        licence="MIT",
    )
    config: MaPLeConfig

    def __init__(self, clip: FrozenClip, config: Settings, *, seed: int = 0, **saved: Any) -> None:
        super().__init__(clip, config, seed=seed, **saved)
        self.needs = Needs(image=("rows@1",))
        generator = torch.Generator().manual_seed(seed)
        wide, narrow = clip.vision.width, clip.text.width
        self._later = [str(layer) for layer in range(1, min(self.config.depth, clip.text.depth, clip.vision.depth))]
        self.ctx = slot_start(clip, self.config.words, self.config.context, generator)
        self.proj = random_linear(generator, narrow, wide)
        self.deep_text = nn.ParameterDict(
            {layer: random_rows(generator, self.config.context, narrow) for layer in self._later}
        )
        start = random_linear(generator, narrow, wide)
        self.deep_proj = nn.ModuleDict({layer: copy.deepcopy(start) for layer in self._later})

    def classes(self, clip: FrozenClip, classes: ClassList) -> Rows:
        """Embedded prompts, whose first words are overwritten."""
        template = slot_template(self.config.words, self.config.context)
        return prompt_rows(clip, classes, template, self.config.context)

    def text_rows(self) -> list[Tensor]:
        """Learned words (n, Dt) of each layer; the dictionary itself is in the order of text: 1, 10, 11, 2."""
        return [self.ctx, *(self.deep_text[layer] for layer in self._later)]

    def text(self, clip: FrozenClip, frozen: Rows, batch: Batch | None = None) -> Tensor:
        """Class features of unit length (C, E)."""
        return unit(clip.text.features(with_words(clip, frozen, self.ctx), edit=deep_words(self.text_rows())))

    def image_rows(self) -> list[Tensor]:
        """Learned image rows (n, Dv) of each layer."""
        return [self.proj(self.ctx), *(self.deep_proj[layer](self.deep_text[layer]) for layer in self._later)]

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of prompted image and class features."""
        feature_BE = unit(prompted_image(clip, image["rows@1"], self.image_rows()))
        return Output({"logits": clip.temperature * feature_BE @ text.T}, {"cls": feature_BE}, classes=text)
