"""MMA: small adapters parallel to the last layers of both towers, coupled by a shared map.

Different from clip-mma (`mm_adapter`), which acts on final features.
Shapes: B images, C classes, E joint embedding, D width of a tower, h width of the adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.layers import Layer, Part
from dear.backbone.rows import Rows
from dear.data.prompts import ClassList
from dear.methods.api import About, Batch, Can, Method, Needs, Output, Recipe, Settings, Special, cosine_output, unit
from dear.methods.base import tokens_of
from dear.methods.parts.published_layers import PUBLISHED_DEPTH, of_twelve
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import WORDS


class MMAConfig(Settings):
    """Config of MMA."""

    first: int = Field(default=5, ge=1, le=PUBLISHED_DEPTH)
    """First layer of twelve with an adapter; counted from the end in other towers."""
    last: int = Field(default=PUBLISHED_DEPTH, ge=1, le=PUBLISHED_DEPTH)
    """Last layer with an adapter."""
    width: int = Field(default=32, ge=1, le=4096)
    """Width of the adapters and of the shared maps."""
    scale: float = Field(default=0.001, gt=0)
    """Factor of the adapters' outputs; their gradients are divided by it."""
    words: str = WORDS
    """Words before each class name."""

    @model_validator(mode="after")
    def _in_order(self) -> MMAConfig:
        if self.first > self.last:
            raise ValueError(
                f"first is {self.first} and last is {self.last}: the first layer must not be behind the last"
            )
        return self


class MMA(Method[MMAConfig]):
    """Adapters parallel to the last eight layers of both towers, coupled by a shared map."""

    name = "mma"
    needs_of_clip = frozenset({Can.IMAGE_LAYERS, Can.TEXT_LAYERS})
    recipe = Recipe(**{**DASSL, "lr": 1.5e-3, "batch_size": 16}, epochs=5, warmup_epochs=0)
    special = (
        Special({"epochs": 1}, {"first": 9}, protocols=("cross-dataset", "domain")),
        Special({"batch_size": 128}, data=("imagenet",)),
    )
    about = About(
        citation="Yang et al., MMA: Multi-Modal Adapter for Vision-Language Models, CVPR 2024",
        year=2024,
        touches="both towers, layers 5–12",
        parameters=674_560,
        code="ZjjConan/Multi-Modal-Adapter 547ee34",
        licence="MIT",
    )

    def __init__(self, clip: FrozenClip, config: MMAConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        first, last, width = self.config.first, self.config.last, self.config.width
        self._vision = of_twelve(clip.vision.depth, first, last)
        self._text = of_twelve(clip.text.depth, first, last)
        self.text_adapters = _adapters(self._text, clip.text.width, width, self.generator)
        self.vision_adapters = _adapters(self._vision, clip.vision.width, width, self.generator)
        both = sorted({*self._text, *self._vision})
        self.shared = nn.ModuleDict({str(layer): _linear(width, width, self.generator) for layer in both})
        self.needs = Needs(image=(f"rows@{min(self._vision.values())}",))

    def _adapted(self, layers: Sequence[Layer], places: Mapping[int, int], adapters: nn.ModuleDict) -> list[Layer]:
        """A tower's layers with parallel adapters."""
        found = list(layers)
        for layer, own in places.items():
            found[own - 1] = replace(layers[own - 1], side=self._side(adapters[str(layer)], self.shared[str(layer)]))
        return found

    def _side(self, adapter: Any, shared: nn.Module) -> Part:
        def side(x_BLD: Tensor) -> Tensor:
            inner = F.relu(_mapped(shared, F.relu(_mapped(adapter["down"], x_BLD))))
            return self.config.scale * _mapped(adapter["up"], inner)

        return side

    def classes(self, clip: FrozenClip, classes: ClassList) -> Rows:
        """Rows before the first changed layer."""
        tokens = tokens_of(clip, classes, f"{self.config.words} {{}}.".lstrip())
        rows = clip.text.rows(clip.text.embed(tokens.ids_CT), tokens.end_C, tokens.shared)
        return clip.text.run(rows, 1, min(self._text.values()) - 1)

    def text(self, clip: FrozenClip, frozen: Rows, batch: Batch | None = None) -> Tensor:
        """Class features of unit length (C, E)."""
        layers = self._adapted(clip.text.layers, self._text, self.text_adapters)
        return unit(clip.text.features(frozen, min(self._text.values()), layers=layers))

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of adapted image and class features."""
        first = min(self._vision.values())
        layers = self._adapted(clip.vision.layers, self._vision, self.vision_adapters)
        x_BQD = clip.vision.run(image[f"rows@{first}"], first, layers=layers, read=clip.vision.pooled)
        feature_BE = unit(clip.vision.feature(x_BQD))
        return cosine_output(clip, feature_BE, text)

    def combine(self, grads: Mapping[str, Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """Gradients divided by the scale; otherwise the adapters would hardly change."""
        return {name: gradient / self.config.scale for name, gradient in grads["ce"].items()}


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A linear map with normal initial weights of variance 2 / outputs and zero bias."""
    made = nn.Linear(inputs, outputs)
    with torch.no_grad():
        made.weight.copy_(torch.randn(outputs, inputs, generator=generator) * (2 / outputs) ** 0.5)
        made.bias.zero_()
    return made


def _adapters(places: Mapping[int, int], wide: int, narrow: int, generator: torch.Generator) -> nn.ModuleDict:
    """One pair of maps, down and up, per layer of a tower."""
    pairs = {
        str(layer): nn.ModuleDict({"down": _linear(wide, narrow, generator), "up": _linear(narrow, wide, generator)})
        for layer in places
    }
    return nn.ModuleDict(pairs)


def _mapped(linear: Any, x: Tensor) -> Tensor:
    """Apply a linear map in the type of its input."""
    return F.linear(x, linear.weight.to(x.dtype), linear.bias.to(x.dtype))
