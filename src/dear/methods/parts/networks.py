"""Small trainable networks that several methods use."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dear.methods.parts.tokens import random_linear


class MetaNet(nn.Module):
    """Two linear maps with an activation between them."""

    def __init__(
        self,
        generator: torch.Generator,
        sizes: tuple[int, int, int],
        activation: Callable[[Tensor], Tensor] = torch.relu,
    ) -> None:
        super().__init__()
        inputs, hidden, outputs = sizes
        self.linear1 = random_linear(generator, inputs, max(1, hidden))
        self.linear2 = random_linear(generator, max(1, hidden), outputs)
        self._activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        out: Tensor = self.linear2(self._activation(self.linear1(x)))
        return out
