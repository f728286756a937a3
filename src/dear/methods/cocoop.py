"""CoCoOp: learned words, shifted by each image.

Shapes: B images, C classes, M learned words, T tokens, D text width, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from dear.methods.api import About, Batch, Can, ClassList, FrozenClip, Method, Output, Recipe, Rows, unit
from dear.methods.parts.contexts import ContextConfig, context_start, context_template
from dear.methods.parts.networks import MetaNet
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import prompt_rows, with_words

PROMPTS_AT_ONCE = 2_048
"""Maximum number of prompts of all images in one pass through the text tower."""


class CoCoOpConfig(ContextConfig):
    """Config of CoCoOp."""

    context: int = Field(default=4, ge=1, le=64)
    """Number of learned words, if `words` is empty."""


class Prompts(NamedTuple):
    """Embedded prompts with their positions."""

    words: Tensor
    """(C, T, D), of which the rows after the start token are overwritten."""
    end: Tensor
    """(C,): index of the row that each prompt is read at."""
    mask: Tensor
    """`Rows.mask`."""


class CoCoOp(Method[CoCoOpConfig]):
    """Learned words that a small network shifts for each image; each image has its own class features."""

    name = "cocoop"
    needs_of_clip = frozenset({Can.WORDS})
    recipe = Recipe(**{**DASSL, "batch_size": 1}, epochs=10)
    about = About(
        citation="Zhou et al., Conditional Prompt Learning for Vision-Language Models, CVPR 2022",
        year=2022,
        touches="words of the prompt, by image",
        parameters=35_360,
        code="KaiyangZhou/CoOp ff61507",
        licence="MIT",
    )

    def __init__(self, clip: FrozenClip, config: CoCoOpConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        embedding = clip.geometry.embed_dim
        self.ctx = context_start(clip, self.config, self.generator)
        self.meta_net = MetaNet(self.generator, (embedding, embedding // 16, clip.text.width))

    def classes(self, clip: FrozenClip, classes: ClassList) -> Prompts:
        """Embedded prompts."""
        rows = prompt_rows(clip, classes, context_template(self.config), self.config.length).unshare(0)
        return Prompts(rows.words, rows.end, rows.mask)

    def features(self, clip: FrozenClip, feature_BE: Tensor, text: Prompts) -> Tensor:
        """Class features of unit length per image (B, C, E); the context's rows are computed once per image."""
        context_BMD = self.ctx + self.meta_net(feature_BE)[:, None]
        rows = Rows.of(text.words.detach(), text.end).masked(text.mask)
        rows = rows.share(clip.text.shared(clip.text.first + self.config.length)).grouped(feature_BE.shape[0])
        features = clip.text.features(with_words(clip, rows, context_BMD))
        return unit(features).view(feature_BE.shape[0], text.end.shape[0], -1)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Prompts, batch: Batch | None = None
    ) -> Output:
        """Cosines of each image with its own class features, for some images at a time."""
        feature_BE = unit(image["feature"])
        parts = [feature_BE]
        if not torch.compiler.is_compiling():  # an exported graph has one number of parts
            parts = list(torch.split(feature_BE, max(1, PROMPTS_AT_ONCE // text.end.shape[0])))
        cosines = [(self.features(clip, part, text) @ part[..., None])[..., 0] for part in parts]
        return Output({"logits": clip.temperature * torch.cat(cosines)}, {"cls": feature_BE})
