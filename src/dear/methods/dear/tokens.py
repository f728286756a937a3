"""What is learned: how tokens and projection start, and how tokens are carried from layer to layer (Eq. 5, 6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.methods.dear.config import DearConfig


def new_tokens(count: int, width: int, *, std: float, generator: torch.Generator) -> nn.Parameter:
    """`count` tokens drawn from N(0, std²), in fp32."""
    return nn.Parameter(torch.randn(count, width, generator=generator) * std)


def carry(raw: Tensor, previous: Tensor, beta: float) -> Tensor:
    """Input of the next layer: β · raw token + (1 - β) · the previous layer's output."""
    return beta * raw + (1 - beta) * previous


def projection_start(config: DearConfig, clip: FrozenClip, generator: torch.Generator) -> dict[str, Tensor]:
    """Named start values of the projection's parameters, in fp32."""
    width, embed = clip.vision.projection.shape
    if config.projection == "copy":
        return {"attribute_projection": clip.vision.projection.detach().float().clone()}
    if config.projection == "random":
        return {"attribute_projection": torch.randn(width, embed, generator=generator) * width**-0.5}
    return {
        "projection_down": torch.randn(width, config.projection_rank, generator=generator) * config.token_std,
        "projection_up": torch.zeros(config.projection_rank, embed),
    }
