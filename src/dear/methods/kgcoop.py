"""KgCoOp: CoOp's learned words, with class features kept near those of a hand-written prompt.

Shapes: B images, C classes, M learned words, D text width, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor

from dear.methods.api import (
    About,
    Batch,
    Can,
    ClassList,
    FrozenClip,
    Method,
    Output,
    Recipe,
    Rows,
    cosine_output,
    unit,
)
from dear.methods.parts.class_text import AdaptedText, FrozenText
from dear.methods.parts.contexts import ContextConfig, context_start, context_template
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import frozen_features, prompt_rows, with_words

TARGETS = {"dtd": "a photo of a {}, a type of texture."}
"""Templates of the frozen class features that are not the data set's own."""


def target_template(classes: ClassList) -> str:
    """Template of the frozen class features."""
    return TARGETS.get(classes.dataset or "", classes.template)


class KgCoOpConfig(ContextConfig):
    """Config of KgCoOp."""

    weight: float = Field(default=8.0, ge=0)
    """Weight of the term that keeps class features near the frozen ones."""


class KgCoOp(Method[KgCoOpConfig]):
    """Learned words as in CoOp, with class features kept near those of a hand-written prompt."""

    name = "kgcoop"
    needs_of_clip = frozenset({Can.WORDS})
    recipe = Recipe(**{**DASSL, "batch_size": 128}, epochs=100)
    about = About(
        citation="Yao et al., Visual-Language Prompt Tuning with Knowledge-guided Context Optimization, CVPR 2023",
        year=2023,
        touches="words of the prompt",
        parameters=2_048,
        code="htyao89/KgCoOp c43ccc3",
        licence="MIT",
    )

    def __init__(self, clip: FrozenClip, config: KgCoOpConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.ctx = context_start(clip, self.config, self.generator)

    def classes(self, clip: FrozenClip, classes: ClassList) -> FrozenText:
        """Embedded prompts without learned words, and frozen class features (C, E)."""
        rows = prompt_rows(clip, classes, context_template(self.config), self.config.length)
        return FrozenText(rows, frozen_features(clip, classes, target_template(classes)))

    def text(self, clip: FrozenClip, frozen: FrozenText, batch: Batch | None = None) -> AdaptedText:
        """Class features of unit length, and the frozen ones."""
        rows: Rows = with_words(clip, frozen.rows, self.ctx)
        return AdaptedText(unit(clip.text.features(rows)), frozen.plain_CE)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: AdaptedText, batch: Batch | None = None
    ) -> Output:
        """Cosines of image and class features."""
        return cosine_output(clip, unit(image["feature"]), text.adapted_CE, rest={"frozen": text.plain_CE})

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy, and the mean of 1 − cosine between class features and the frozen ones.

        For features of unit length that is half the squared distance, which has no rounding of a difference from 1.
        """
        away_C = (out.class_features - out.rest["frozen"]).square().sum(1) / 2
        return {**super().loss(out, batch), "kg": self.config.weight * away_C.mean()}
