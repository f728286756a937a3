"""IVLP: learned words in the text tower and learned rows in the image tower, independent of each other.

Shapes: n learned rows per layer, B images, C classes, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from dear.backbone.rows import Rows
from dear.methods.api import (
    About,
    Batch,
    Can,
    ClassList,
    FrozenClip,
    Method,
    Needs,
    Output,
    Recipe,
    cosine_output,
    unit,
)
from dear.methods.parts.contexts import SlotConfig, slot_start, slot_template
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import deep_words, prompt_rows, prompted_image, random_rows, with_words


class IVLPConfig(SlotConfig):
    """Config of IVLP."""

    text_context: int = Field(default=2, ge=1, le=64)
    """Number of learned words per layer."""
    image_context: int = Field(default=2, ge=1, le=256)
    """Number of learned image rows per layer."""
    text_depth: int = Field(default=12, ge=1)
    """Number of text layers, from the first on, that get learned words of their own."""
    image_depth: int = Field(default=12, ge=0)
    """Number of image layers, from the first on, that get learned rows of their own; 0 leaves the tower unchanged."""


class IVLP(Method[IVLPConfig]):
    """Learned words in the text tower and learned rows in the image tower, independent of each other."""

    name = "ivlp"
    needs_of_clip = frozenset({Can.WORDS, Can.IMAGE_LAYERS, Can.TEXT_LAYERS})
    recipe = Recipe(**{**DASSL, "lr": 3.5e-3, "batch_size": 4}, epochs=5)
    about = About(
        citation="Khattak et al., MaPLe: Multi-modal Prompt Learning, CVPR 2023 (its independent baseline)",
        year=2023,
        touches="both towers, layers 1–12",
        parameters=30_720,
        code="muzairkhattak/multimodal-prompt-learning 69bce21",
        licence="MIT",
    )

    def __init__(self, clip: FrozenClip, config: IVLPConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.needs = Needs(image=("rows@1" if config.image_depth else "feature",))
        later = range(1, min(config.text_depth, clip.text.depth))
        self.text_prompts = nn.ParameterList(
            [
                slot_start(clip, config.words, config.text_context, self.generator),
                *(random_rows(self.generator, config.text_context, clip.text.width) for _ in later),
            ]
        )
        self.vision_prompts = nn.ParameterList(
            random_rows(self.generator, config.image_context, clip.vision.width)
            for _ in range(min(config.image_depth, clip.vision.depth))
        )

    def classes(self, clip: FrozenClip, classes: ClassList) -> Any:
        """Embedded prompts, whose first words are overwritten."""
        template = slot_template(self.config.words, self.config.text_context)
        return prompt_rows(clip, classes, template, self.config.text_context)

    def text(self, clip: FrozenClip, frozen: Any, batch: Batch | None = None) -> Any:
        """Class features of unit length (C, E)."""
        return self.prompted_text(clip, frozen)

    def prompted_text(self, clip: FrozenClip, rows: Rows) -> Tensor:
        """Class features of unit length (C, E) with the learned words."""
        words = list(self.text_prompts)
        return unit(clip.text.features(with_words(clip, rows, words[0]), edit=deep_words(words, clip.text.first)))

    def prompted_image(self, clip: FrozenClip, image: Mapping[str, Tensor]) -> Tensor:
        """Image features of unit length (B, E) with the learned rows."""
        if not self.config.image_depth:
            return unit(image["feature"])
        return unit(prompted_image(clip, image["rows@1"], list(self.vision_prompts)))

    def forward(self, clip: FrozenClip, image: Mapping[str, Tensor], text: Any, batch: Batch | None = None) -> Output:
        """Cosines of prompted image and class features."""
        feature_BE = self.prompted_image(clip, image)
        return cosine_output(clip, feature_BE, text)
