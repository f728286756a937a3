"""MaPLe: learned words in the first layers of the text tower, mapped linearly into the image tower.

Shapes: n learned rows per layer, Dt and Dv widths of the towers, B images, C classes, E joint embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.rows import Rows
from dear.methods.api import About, Batch, Can, ClassList, Method, Needs, Output, Recipe, Special, cosine_output, unit
from dear.methods.parts.contexts import SlotConfig, slot_start, slot_template
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import (
    deep_words,
    prompt_rows,
    prompted_image,
    random_linear,
    random_rows,
    with_words,
)


class MaPLeConfig(SlotConfig):
    """Config of MaPLe."""

    context: int = Field(default=2, ge=1, le=64)
    """Number of learned words, and of learned image rows."""
    depth: int = Field(default=9, ge=1)
    """Number of layers, from the first on, that get learned rows of their own."""


class MaPLe(Method[MaPLeConfig]):
    """Learned words in the first layers of the text tower, mapped into the image tower."""

    name = "maple"
    needs_of_clip = frozenset({Can.WORDS, Can.IMAGE_LAYERS, Can.TEXT_LAYERS})
    recipe = Recipe(**{**DASSL, "lr": 3.5e-3, "batch_size": 4}, epochs=5)
    special = (
        Special({"epochs": 50}, protocols=("few-shot",)),
        Special({"lr": 2.6e-3, "epochs": 2}, {"depth": 3}, protocols=("cross-dataset", "domain")),
    )
    about = About(
        citation="Khattak et al., MaPLe: Multi-modal Prompt Learning, CVPR 2023",
        year=2023,
        touches="both towers, layers 1–9",
        parameters=3_555_072,
        code="muzairkhattak/multimodal-prompt-learning 69bce21",
        licence="MIT",
    )

    def __init__(self, clip: FrozenClip, config: MaPLeConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.needs = Needs(image=("rows@1",))
        wide, narrow = clip.vision.width, clip.text.width
        self._later = [str(layer) for layer in range(1, min(self.config.depth, clip.text.depth, clip.vision.depth))]
        self.ctx = slot_start(clip, self.config.words, self.config.context, self.generator)
        self.proj = random_linear(self.generator, narrow, wide)
        self.deep_text = nn.ParameterDict(
            {layer: random_rows(self.generator, self.config.context, narrow) for layer in self._later}
        )
        start = random_linear(self.generator, narrow, wide)
        self.deep_proj = nn.ModuleDict({layer: copy.deepcopy(start) for layer in self._later})

    def classes(self, clip: FrozenClip, classes: ClassList) -> Rows:
        """Embedded prompts, whose first words are overwritten."""
        template = slot_template(self.config.words, self.config.context)
        return prompt_rows(clip, classes, template, self.config.context)

    def text_rows(self) -> list[Tensor]:
        """Learned words (n, Dt) of each layer; the dictionary itself is sorted as text: 1, 10, 11, 2."""
        return [self.ctx, *(self.deep_text[layer] for layer in self._later)]

    def text(self, clip: FrozenClip, frozen: Rows, batch: Batch | None = None) -> Tensor:
        """Class features of unit length (C, E)."""
        edit = deep_words(self.text_rows(), clip.text.first)
        return unit(clip.text.features(with_words(clip, frozen, self.ctx), edit=edit))

    def image_rows(self) -> list[Tensor]:
        """Learned image rows (n, Dv) of each layer."""
        return [self.proj(self.ctx), *(self.deep_proj[layer](self.deep_text[layer]) for layer in self._later)]

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of prompted image and class features."""
        feature_BE = unit(prompted_image(clip, image["rows@1"], self.image_rows()))
        return cosine_output(clip, feature_BE, text)
