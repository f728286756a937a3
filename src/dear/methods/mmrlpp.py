"""MMRL++: MMRL with one map per tower, low-rank differences per layer, and tokens that are passed on between layers.

Shapes as in `dear.methods.mmrl`; a rank of the maps' differences, p of the projection's.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dear.backbone.precision import wide
from dear.methods.api import About, FrozenClip, Special
from dear.methods.mmrl import MMRL, MMRLConfig
from dear.methods.parts.recipes import TRANSFER, by_data
from dear.methods.parts.tokens import random_linear

REG_WEIGHTS = {
    "imagenet": 0.2,
    "caltech101": 3.0,
    "oxford_pets": 0.01,
    "stanford_cars": 6.0,
    "oxford_flowers": 7.0,
    "food101": 1.0,
    "fgvc_aircraft": 2.0,
    "sun397": 3.0,
    "dtd": 7.0,
    "eurosat": 0.01,
    "ucf101": 3.0,
}
BETAS = {
    "imagenet": 0.9,
    "caltech101": 0.6,
    "oxford_pets": 0.7,
    "stanford_cars": 0.7,
    "oxford_flowers": 0.4,
    "food101": 0.1,
    "fgvc_aircraft": 0.9,
    "sun397": 0.5,
    "dtd": 0.9,
    "eurosat": 0.2,
    "ucf101": 0.9,
}


class MMRLppConfig(MMRLConfig):
    """Config of MMRL++."""

    reg_weight: float = Field(default=3.0, ge=0)
    """Weight of the two terms that keep the features near plain CLIP's; default: the median of the published values."""
    beta: float = Field(default=0.7, ge=0, le=1)
    """Weight of a layer's own token against the previous layer's output; default: the published median."""
    rank: int = Field(default=4, ge=1, le=4096)
    """Rank of each layer's difference from the tower's map."""
    projection_rank: int = Field(default=64, ge=1, le=4096)
    """Rank of the projection's difference from CLIP's."""


class LowRankMap(nn.Module):
    """A layer's difference from the tower's map, and its bias."""

    def __init__(self, start: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.A = uniform(generator, start.out_features, rank)
        self.B = nn.Parameter(torch.zeros(rank, start.in_features))
        self.bias = nn.Parameter(start.bias.detach().clone())


class Aligners(nn.ModuleList):
    """One map for all layers of a tower, and each layer's difference from it."""

    def __init__(self, layers: Iterable[LowRankMap], weight: Tensor) -> None:
        super().__init__(layers)
        self.weight = nn.Parameter(weight)


class MMRLpp(MMRL):
    """MMRL with maps that share weights over layers, and tokens that are passed on from layer to layer."""

    name = "mmrlpp"
    Config = MMRLppConfig
    special = (
        *by_data("reg_weight", REG_WEIGHTS),
        *by_data("beta", BETAS),
        Special({"batch_size": 32, "epochs": 100, "lr": 2e-3}, protocols=("few-shot",)),
        Special({"batch_size": 32, "epochs": 5, "lr": 1e-3}, data=("imagenet",)),
        Special(
            {"batch_size": 32, "epochs": 1, "warmup_epochs": 0},
            {"reg_weight": 0.1, "beta": 0.9},
            protocols=TRANSFER,
        ),
    )
    about = About(
        citation="Guo and Gu, MMRL++: Parameter-Efficient and Interaction-Aware Representation Learning for "
        "Vision-Language Models, IJCV 2026",
        year=2026,
        touches="both towers, layers 6–12",
        parameters=813_312,
        code="yunncheng/MMRL 27d8821",
        licence="MIT",
    )
    carries = True
    config: MMRLppConfig

    def _make_maps(self, clip: FrozenClip, generator: torch.Generator) -> None:
        self.to_vision = self._aligners(clip.vision.width, len(self.vision_layers), generator)
        self.to_text = self._aligners(clip.text.width, len(self.text_layers), generator)
        width, embed = clip.vision.projection.shape
        self.projection_A = uniform(generator, width, self.config.projection_rank)
        self.projection_B = nn.Parameter(torch.zeros(self.config.projection_rank, embed))

    def _aligners(self, width: int, count: int, generator: torch.Generator) -> Aligners:
        start = random_linear(generator, self.config.width, width)
        return Aligners((LowRankMap(start, self.config.rank, generator) for _ in range(count)), start.weight.detach())

    def mapped(self, maps: nn.ModuleList, place: int) -> Tensor:
        """The tokens of one layer, (n, Dv) or (n, Dt)."""
        own = maps[place]
        assert isinstance(maps, Aligners)
        assert isinstance(own, LowRankMap)
        return F.linear(self.tokens, maps.weight + own.A @ own.B, own.bias)

    def token_projection(self, clip: FrozenClip) -> Tensor:
        """CLIP's projection with a low-rank difference, (Dv, E)."""
        return wide(clip.vision.projection) + self.projection_A @ self.projection_B

    def carried(self, fresh: Tensor, previous: Tensor) -> Tensor:
        """Input tokens of a layer from its own tokens and the previous layer's output."""
        return self.config.beta * fresh + (1 - self.config.beta) * previous


def uniform(generator: torch.Generator, rows: int, rank: int) -> nn.Parameter:
    """A matrix that starts uniform within ±1/√rank."""
    return nn.Parameter((torch.rand(rows, rank, generator=generator) * 2 - 1) * rank**-0.5)
