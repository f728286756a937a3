"""TCP: learned words, replaced in a middle text layer by words computed from each class's frozen feature.

Shapes: B images, C classes, D text width, E joint embedding; four learned words and four words per class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor

from dear.data.families import IMAGENETS
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
    Settings,
    Special,
    unit,
)
from dear.methods.parts.class_text import AdaptedText
from dear.methods.parts.contexts import slot_start
from dear.methods.parts.networks import MetaNet
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import frozen_features, placeholders, prompt_rows, with_words

COUNT = 4
"""Number of learned words, and of words per class."""
FIRST = 2
"""First layer that can receive the words of a class; before it, the context would have no effect."""
PHOTO, PERSON = "a photo of a {}.", "a photo of a person doing {}."
IMAGENET = dict.fromkeys(IMAGENETS, PHOTO)
FROZEN = {
    "fgvc_aircraft": "a photo of an aircraft {}.",
    "dtd": "a photo of a {}, a type of texture.",
    "eurosat": "a centered satellite photo of {}.",
    "ucf101": PERSON,
    **{f"oxford_{kind}s": f"a photo of a {{}}, a type of {kind}." for kind in ("pet", "flower")},
    "food101": "a photo of a {}, a type of food.",
    **dict.fromkeys(("stanford_cars", "sun397", "caltech101"), PHOTO),
    **IMAGENET,
}
"""Templates of the frozen class features."""
LEARNED = {
    "fgvc_aircraft": "X X X X {}, a type of aircraft.",
    "dtd": "X X X X {} texture.",
    "stanford_cars": "X X X X {}, a type of car",
    "ucf101": PERSON,
    **IMAGENET,
}
"""Templates whose first words are learned; other data sets use placeholders and the end of the frozen template."""


def frozen_template(classes: ClassList) -> str:
    """Template of the frozen class features; an unknown data set has its own."""
    return FROZEN.get(classes.dataset or "", classes.template)


def learned_template(classes: ClassList) -> str:
    """Template whose first words are learned."""
    rest = frozen_template(classes).split("{}")[1]
    return LEARNED.get(classes.dataset or "", f"{placeholders(COUNT)} {{}}{rest}")


def quick_gelu(x: Tensor) -> Tensor:
    """The activation of OpenAI's CLIP."""
    return x * torch.sigmoid(1.702 * x)


class TCPConfig(Settings):
    """Config of TCP."""

    words: str = ""
    """Words that the four learned words start from; "" for a random start."""
    layer: int = Field(default=9, ge=FIRST, le=12)
    """Text layer of twelve before which the words of the class replace the learned ones."""
    weight: float = Field(default=8.0, ge=0)
    """Weight of the term that keeps class features near the frozen ones."""

    @field_validator("words")
    @classmethod
    def _four(cls, value: str) -> str:
        if len(value.split()) not in (0, COUNT):
            raise ValueError(f"give {COUNT} words, or none")
        return value


class TCP(Method[TCPConfig]):
    """Learned words, replaced in a middle text layer by words computed from the class's frozen feature."""

    name = "tcp"
    needs_of_clip = frozenset({Can.WORDS, Can.TEXT_LAYERS})
    recipe = Recipe(**{**DASSL, "optimiser": "adam"}, eps=1e-3, epochs=50)
    special = (Special({"epochs": 25}, data=("imagenet", "sun397")),)
    about = About(
        citation="Yao et al., TCP: Textual-based Class-aware Prompt Tuning for Visual-Language Model, CVPR 2024",
        year=2024,
        touches="text tower, layers 1 and 9",
        parameters=331_904,
        code="htyao89/Textual-based_Class-aware_prompt_tuning bd97bec",
        licence="none found",
    )

    def __init__(self, clip: FrozenClip, config: TCPConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        embedding, width = clip.geometry.embed_dim, clip.text.width
        self.ctx = slot_start(clip, self.config.words, COUNT, self.generator)
        self.meta_net = MetaNet(self.generator, (embedding, embedding // 4, COUNT * width), quick_gelu)
        self._layer = min(max(clip.text.depth - 12 + self.config.layer, FIRST), clip.text.depth)

    def classes(self, clip: FrozenClip, classes: ClassList) -> tuple[Rows, Tensor]:
        """Embedded prompts, and frozen class features of unit length (C, E)."""
        rows = prompt_rows(clip, classes, learned_template(classes), COUNT)
        return rows, frozen_features(clip, classes, frozen_template(classes))

    def class_words(self, frozen_CE: Tensor) -> Tensor:
        """Words of each class (C, 4, D)."""
        words: Tensor = self.meta_net(frozen_CE)
        return words.view(frozen_CE.shape[0], COUNT, -1)

    def text(self, clip: FrozenClip, frozen: tuple[Rows, Tensor], batch: Batch | None = None) -> AdaptedText:
        """Class features of unit length, and the frozen ones."""
        rows, frozen_CE = frozen
        words_CND = self.class_words(frozen_CE)

        def edit(layer: int, rows: Rows) -> Rows:
            return rows.put(clip.text.first, words_CND) if layer == self._layer else rows

        features = clip.text.features(with_words(clip, rows, self.ctx), edit=edit)
        return AdaptedText(unit(features), frozen_CE)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: AdaptedText, batch: Batch | None = None
    ) -> Output:
        """Cosines of image and class features."""
        out = super().forward(clip, image, text.adapted_CE, batch)
        return Output(out.readouts, out.features, classes=text.adapted_CE, rest={"frozen": text.plain_CE})

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy, and the mean distance of class features from the frozen ones."""
        near = F.cosine_similarity(out.class_features, out.rest["frozen"], dim=1, eps=1e-7).mean()
        return {**super().loss(out, batch), "kg": self.config.weight * (1 - near)}
