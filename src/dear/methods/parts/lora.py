"""Low-rank terms on the projections of a frozen tower's layers.

Shapes: B sequences, L rows, D width, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.layers import Layer, Part
from dear.methods.base import Batch


class LowRank(nn.Module):
    """A low-rank term B A x for a square matrix: A starts uniform within ±1/√D, B at zero."""

    def __init__(self, width: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.A = nn.Parameter((torch.rand(rank, width, generator=generator) * 2 - 1) * width**-0.5)
        self.B = nn.Parameter(torch.zeros(width, rank))

    def forward(self, x_BLD: Tensor) -> Tensor:
        """The term, in the type of its input."""
        return F.linear(F.linear(x_BLD, self.A.to(x_BLD.dtype)), self.B.to(x_BLD.dtype))


class Dropout:
    """Dropout with one named mask per matrix and row, independent of how the batch is split."""

    def __init__(self, batch: Batch, probability: float, name: str, read: Tensor | None = None) -> None:
        """Set up the masks of a training step.

        Args:
            batch: the training step.
            probability: the dropout rate.
            name: prefix of the names of the masks.
            read: (B,) index of a single query row; None: the first row.
        """
        self._batch, self._probability, self._name, self._read = batch, probability, name, read

    def __call__(self, letter: str, x_BLD: Tensor) -> Tensor:
        """Apply dropout to the input of a matrix."""
        rows, width = x_BLD.shape[1:]
        single = rows == 1 and self._read is not None
        needed = int(self._read.max()) + 1 if single and self._read is not None else rows
        numbers = [self._batch.draw(f"{self._name}.{letter}.{row}", width) for row in range(needed)]
        keep = (torch.stack(numbers, dim=1) >= self._probability).to(x_BLD.device)
        if single:
            keep = keep[torch.arange(keep.shape[0], device=keep.device), self._read][:, None]
        return x_BLD * keep / (1 - self._probability)


def with_low_rank(
    layer: Layer, terms: Mapping[str, nn.Module], scale: float, drop: Callable[[str, Tensor], Tensor] | None = None
) -> Layer:
    """The layer with low-rank terms on some of its matrices q, k, v, o; `drop` acts on their inputs by their letter."""

    def low(letter: str, x: Tensor) -> Tensor:
        term: Tensor = terms[letter](drop(letter, x) if drop else x)
        return scale * term

    def project(x: Tensor, which: str) -> tuple[Tensor, ...]:
        plain = layer.project(x, which)
        return tuple(y + low(m, x) if m in terms else y for m, y in zip(which, plain, strict=True))

    def out(x: Tensor) -> Tensor:
        return layer.out(x) + low("o", x)

    own_out: Part = out if "o" in terms else layer.out
    return replace(layer, project=project, out=own_out, by_row=layer.by_row and drop is None)
