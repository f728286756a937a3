"""ATPrompt: attribute words, each with its own learned words, before the learned words of CoOp or MaPLe.

Shapes: M learned words, A before each attribute, C classes, Dv width of the image tower, B images, E joint embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.rows import Rows
from dear.data.families import IMAGENETS
from dear.data.prompts import ClassList
from dear.methods.api import About, Batch, Can, Method, Needs, Output, Recipe, Settings, Special, cosine_output, unit
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import (
    deep_words,
    placeholders,
    prompt_rows,
    prompted_image,
    random_linear,
    random_rows,
    with_words,
)

MOST = 3
"""Maximum number of attributes in a prompt."""
GENERAL = "color, shape"
ATTRIBUTES = {
    "caltech101": "shape, size",
    "oxford_pets": "playfulness, energy",
    "stanford_cars": "luxury",
    "oxford_flowers": "color, habitat, growth",
    "food101": "flavor, preparation",
    "fgvc_aircraft": "design, range",
    "sun397": "function",
    "dtd": "pattern, color, design",
    "eurosat": "habitat",
    "ucf101": "precision",
    **dict.fromkeys(IMAGENETS, GENERAL),
}
"""Published attributes by data set; those of ImageNet are used for unknown data sets."""


def listed(words: str) -> list[str]:
    """Split words at commas."""
    return [word.strip() for word in words.split(",") if word.strip()]


class ATPromptConfig(Settings):
    """Config of ATPrompt."""

    base: Literal["coop", "maple"] = "coop"
    """The method that it builds on."""
    attributes: str = ""
    """At most three words, separated by commas, for all classes; "" for the published ones of the data set."""
    context: int = Field(default=2, ge=1, le=64)
    """Number of learned words before the class name; on MaPLe also of learned image rows."""
    attribute_context: int | None = Field(default=None, ge=1, le=64)
    """Number of learned words before each attribute; None: the same as before the class name."""
    depth: int = Field(default=9, ge=1)
    """On MaPLe: number of layers, from the first on, that get learned rows of their own."""
    whole_words: bool = False
    """Treat attributes of several tokens as a whole, and put MaPLe's later rows at the position of the first ones. The
    published code counts one token per attribute.
    """

    @field_validator("attributes")
    @classmethod
    def _few(cls, value: str) -> str:
        if len(listed(value)) > MOST:
            raise ValueError(f"give at most {MOST} attributes")
        return value

    @property
    def before_each(self) -> int:
        """A."""
        return self.attribute_context or self.context


class FrozenPrompts(NamedTuple):
    """Embedded prompts, and where learned words go."""

    rows: Rows
    places: tuple[int, ...]
    """Positions of the learned words of each attribute, then of those before the name."""
    deep: int
    """Position of the learned words of later layers."""


class ATPrompt(Method[ATPromptConfig]):
    """Attribute words with learned words around them; on CoOp or on MaPLe."""

    name = "atprompt"
    needs_of_clip = frozenset({Can.WORDS})
    recipe = Recipe(**DASSL, epochs=100)
    special = (
        Special(config={"context": 4}, data=("dtd",)),
        Special({"epochs": 10}, data=("imagenet",)),
        Special({"epochs": 10}, {"context": 4}, protocols=("cross-dataset", "domain")),
        Special({"lr": 3.5e-3, "batch_size": 4, "epochs": 5}, {"context": 4}, when={"base": "maple"}),
        Special(
            {"epochs": 10}, data=("caltech101", "oxford_pets", "oxford_flowers", "eurosat"), when={"base": "maple"}
        ),
        Special(config={"context": 2}, data=("fgvc_aircraft", "ucf101"), when={"base": "maple"}),
        Special(
            {"lr": 2.6e-3, "epochs": 2},
            {"depth": 3},
            protocols=("cross-dataset", "domain"),
            when={"base": "maple"},
        ),
    )
    about = About(
        citation="Li et al., Advancing Textual Prompt Learning with Anchored Attributes, ICCV 2025",
        year=2025,
        touches="words of the prompt",
        parameters=4_096,
        code="zhengli97/ATPrompt 86980a1",
        licence="none found",
    )

    def __init__(self, clip: FrozenClip, config: ATPromptConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        count, narrow = self.config.context, clip.text.width
        self.ctx = random_rows(self.generator, count, narrow)
        self.ctx_att1, self.ctx_att2, self.ctx_att3 = (
            random_rows(self.generator, self.config.before_each, narrow, std=0.01) for _ in range(MOST)
        )
        if self.config.base == "coop":
            return
        clip.require({Can.IMAGE_LAYERS, Can.TEXT_LAYERS}, "atprompt on MaPLe")
        self.needs, wide = Needs(image=("rows@1",)), clip.vision.width
        later = range(1, min(self.config.depth, clip.text.depth, clip.vision.depth))
        self.to_vision = random_linear(self.generator, narrow, wide)
        self.deep = nn.ParameterList(random_rows(self.generator, count, narrow) for _ in later)
        start = random_linear(self.generator, narrow, wide)
        self.deep_to_vision = nn.ModuleList(copy.deepcopy(start) for _ in later)

    def attributes(self, classes: ClassList) -> list[str]:
        """The attributes of a class list: those of its own data set, even if training used others."""
        return listed(self.config.attributes or ATTRIBUTES.get(classes.dataset or "", GENERAL))

    def template(self, classes: ClassList) -> str:
        """The prompt in which words are overwritten."""
        parts = [f"{placeholders(self.config.before_each)} {word}" for word in self.attributes(classes)]
        return " ".join([*parts, placeholders(self.config.context), "{}."])

    def classes(self, clip: FrozenClip, classes: ClassList) -> FrozenPrompts:
        """Embedded prompts, and where learned words go."""
        count, first, words = self.config.context, clip.text.first, self.attributes(classes)
        places = [first]
        for word in words:
            tokens = clip.text.count(word) if self.config.whole_words else 1
            places.append(places[-1] + self.config.before_each + tokens)
        rows = prompt_rows(clip, classes, self.template(classes), places[-1] + count - first)
        deep = places[-1] if self.config.whole_words else first + len(words) * (count + 1)
        return FrozenPrompts(rows, tuple(places), deep)

    def prompts(self, clip: FrozenClip, frozen: FrozenPrompts) -> Rows:
        """The input of the first text layer."""
        rows, own = frozen.rows, [self.ctx_att1, self.ctx_att2, self.ctx_att3]
        for at, words in zip(frozen.places, [*own[: len(frozen.places) - 1], self.ctx], strict=True):
            rows = with_words(clip, rows, words, at)
        return rows

    def text(self, clip: FrozenClip, frozen: FrozenPrompts, batch: Batch | None = None) -> Tensor:
        """Class features of unit length (C, E)."""
        later: list[Tensor] = [] if self.config.base == "coop" else list(self.deep)
        edit = deep_words([self.ctx, *later], frozen.deep)
        return unit(clip.text.features(self.prompts(clip, frozen), edit=edit))

    def image_rows(self) -> list[Tensor]:
        """On MaPLe: learned image rows (M, Dv) of each layer."""
        maps = zip(self.deep_to_vision, self.deep, strict=True)
        return [self.to_vision(self.ctx), *(to_vision(words) for to_vision, words in maps)]

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of image and class features."""
        if self.config.base == "coop":
            return super().forward(clip, image, text, batch)
        feature_BE = unit(prompted_image(clip, image["rows@1"], self.image_rows()))
        return cosine_output(clip, feature_BE, text)
