"""The learnable tokens, how they start, and how they are carried from layer to layer (Eq. 5, 6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def new_tokens(count: int, width: int, *, std: float, generator: torch.Generator) -> nn.Parameter:
    """`count` tokens drawn from N(0, std²), in fp32."""
    return nn.Parameter(torch.randn(count, width, generator=generator) * std)


def carry(raw: Tensor, previous: Tensor, beta: float) -> Tensor:
    """Input of the next layer: β · raw token + (1 - β) · the previous layer's output."""
    return beta * raw + (1 - beta) * previous
