"""ProGrad: CoOp without gradient components that oppose zero-shot CLIP.

Shapes: B images, C classes, M learned words, D text width, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dear.data.families import IMAGENETS
from dear.methods.api import About, Batch, ClassList, ConfigError, FrozenClip, Output, Recipe, Special, unit
from dear.methods.coop import CoOp, CoOpConfig
from dear.methods.parts.class_text import AdaptedText
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import WORDS, frozen_features, placeholders, word_rows

PHOTO = f"{WORDS} {{}}."
TEMPLATES = {
    "oxford_pets": "a type of pet, a photo of a {}.",
    "oxford_flowers": "a type of flower, a photo of a {}.",
    "fgvc_aircraft": "a type of aircraft, a photo of a {}.",
    "dtd": "a texture of {}.",
    "eurosat": "a centered satellite photo of {}.",
    "food101": "a type of food, a photo of {}.",
    "ucf101": "a photo of a person doing {}.",
    **dict.fromkeys(("stanford_cars", "sun397", "caltech101", *IMAGENETS), PHOTO),
}
"""Templates of the teacher; the context starts from their first words."""


def teacher_template(classes: ClassList) -> str:
    """Template of the teacher; an unknown data set has its own."""
    return TEMPLATES.get(classes.dataset or "", classes.template)


def words_of(template: str) -> str:
    """The words of a template before the class name."""
    return template.split("{}")[0].strip()


class ProGradConfig(CoOpConfig):
    """Config of ProGrad."""

    words: str = WORDS
    """Words that the last learned words start from; the others start from zeros. "" for a random start."""
    context: int = Field(default=16, ge=1, le=64)
    """Number of learned words."""
    strength: float = Field(default=1.0, ge=0)
    """Share of the opposing gradient component that is removed."""
    temperature: float = Field(default=1.0, gt=0)
    """Divisor of both sets of logits before they are compared."""

    @property
    def length(self) -> int:
        """Number of learned words."""
        return self.context


class ProGrad(CoOp):
    """CoOp without gradient components that oppose zero-shot CLIP."""

    name = "prograd"
    Config = ProGradConfig
    recipe = Recipe(**DASSL, epochs=100)
    special = (
        *(Special(config={"words": words_of(template)}, data=(name,)) for name, template in TEMPLATES.items()),
        Special({"epochs": 200}, protocols=("few-shot",), shots=(8, 10**9)),
        Special({"epochs": 50}, protocols=("few-shot",), shots=(1, 1)),
        Special(
            config={"strength": 0.8},
            protocols=("few-shot",),
            data=("oxford_flowers", "dtd", "eurosat"),
            shots=(8, 10**9),
        ),
        Special({"epochs": 50}, protocols=("cross-dataset", "domain")),
        Special({"epochs": 50}, data=("imagenet",)),
    )
    about = About(
        citation="Zhu et al., Prompt-aligned Gradient for Prompt Tuning, ICCV 2023",
        year=2023,
        touches="words of the prompt",
        parameters=8_192,
        code="BeierZhu/Prompt-align 1b76203",
        licence="none found",
    )
    config: ProGradConfig

    def start(self, clip: FrozenClip) -> nn.Parameter:
        """Zeros, then words; or random rows."""
        words, count = self.config.start, len(self.config.start.split())
        if not words:
            return super().start(clip)
        if count > self.config.context:
            raise ConfigError(
                f"{words!r} has {count} words, but context is {self.config.context}: give fewer words or a longer one."
            )
        rows_MD = torch.zeros(self.config.context, clip.text.width)
        rows_MD[-count:] = word_rows(clip, words, count)
        return nn.Parameter(rows_MD)

    def template(self, classes: ClassList) -> str:
        """Placeholders for the zeros, then the teacher's template; punctuation in it stays before the name."""
        if not self.config.start:
            return super().template(classes)
        template = teacher_template(classes)
        missing = self.config.context - len(words_of(template).split())
        return f"{placeholders(missing)} {template}".strip()

    def classes(self, clip: FrozenClip, classes: ClassList) -> Any:
        """Embedded prompts, and class features of zero-shot CLIP."""
        return super().classes(clip, classes), frozen_features(clip, classes, teacher_template(classes))

    def text(self, clip: FrozenClip, frozen: Any, batch: Batch | None = None) -> AdaptedText:
        """Own and frozen class features."""
        prompts, teacher_CE = frozen
        return AdaptedText(super().text(clip, prompts, batch), teacher_CE)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: AdaptedText, batch: Batch | None = None
    ) -> Output:
        """Cosines of image and class features; in training also zero-shot CLIP's."""
        feature_BE = unit(image["feature"])
        logits_BC = clip.temperature * feature_BE @ text.adapted_CE.T
        rest = {} if batch is None else {"teacher": clip.temperature * feature_BE @ text.plain_CE.detach().T}
        return Output({"logits": logits_BC}, {"cls": feature_BE}, classes=text.adapted_CE, rest=rest)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy with the labels and with zero-shot CLIP's predictions; only the first is minimised."""
        heat = self.config.temperature
        cross = super().loss(out, batch)["ce"]
        soft = F.cross_entropy(out.logits / heat, (out.rest["teacher"] / heat).softmax(1)) * heat**2
        return {"xe": cross, "kl": soft, "total": cross}

    def combine(self, grads: Mapping[str, Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """The gradient of the labels, without its component that opposes the gradient of zero-shot CLIP."""
        return {name: self._aligned(own, grads["kl"][name]) for name, own in grads["xe"].items()}

    def _aligned(self, own: Tensor, general: Tensor) -> Tensor:
        direction = general / general.norm()
        against = (own / own.norm() * direction).sum() < 0  # False if either is zero
        return torch.where(against, own - self.config.strength * (own * direction).sum() * direction, own)
