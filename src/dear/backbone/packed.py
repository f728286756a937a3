"""Packing: prompts of different lengths in one tensor, with little padding.

All parts of a layer except attention treat each row independently, so the rows of all prompts can be concatenated.
Prompts are sorted by length and divided into a few groups, each padded to its longest prompt. Attention runs group by
group on views of the packed rows.
Shapes: B prompts, L rows of the longest, N packed rows, D width, C prompts of a group, T rows of its longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_SAVED = 256
"""Rows that packing must save to be worth its copies. Short lists run unpacked, so their results do not change."""
GROUP_COST = 32
"""Cost of one more group, in rows."""


@dataclass(frozen=True)
class Group:
    """Prompts of similar length: their range in the sorted prompts, and in the packed rows."""

    prompts: slice
    rows: slice
    length: int

    @property
    def count(self) -> int:
        """C."""
        return int(self.prompts.stop - self.prompts.start)


@dataclass(frozen=True)
class Packing:
    """Which rows of padded prompts (B, L) are packed, and how they are divided into groups."""

    groups: tuple[Group, ...]
    order_B: Tensor
    """Indices of the prompts, in packed order."""
    end_B: Tensor
    """Index of each prompt's end row among the packed rows, in packed order."""
    index_N: Tensor
    """Index of each packed row among all B * L rows."""
    length: int
    """L."""

    def pack(self, x_BLD: Tensor) -> Tensor:
        """Padded prompts as packed rows (N, D)."""
        return x_BLD.flatten(0, 1).index_select(0, self.index_N)

    def unpack(self, x_ND: Tensor) -> Tensor:
        """Packed rows as padded prompts (B, L, D); rows that are not packed are zeros."""
        prompts = self.order_B.shape[0]
        whole_RD = x_ND.new_zeros(prompts * self.length, x_ND.shape[1]).index_copy(0, self.index_N, x_ND)
        return whole_RD.view(prompts, self.length, -1)

    def cut(self, x_ND: Tensor, *, ends: bool) -> list[Tensor]:
        """The packed rows of each group as (C, T, D), or only its end rows as (C, 1, D)."""
        counts = [one.count for one in self.groups]
        parts = torch.split(x_ND, counts if ends else [one.count * one.length for one in self.groups])
        return [torch.unflatten(part, 0, (count, -1)) for part, count in zip(parts, counts, strict=True)]

    def mask(self, group: Group, before: int, ends: bool) -> Tensor:
        """Causal mask of a group whose rows follow `before` shared ones; with `ends`, for its end rows only."""
        keys = torch.arange(before + group.length, device=self.order_B.device)
        if not ends:
            return keys <= keys[before:, None]
        end_C = self.end_B[group.prompts] - torch.arange(group.rows.start, group.rows.stop, group.length).to(keys)
        return (keys <= end_C[:, None] + before)[:, None, None]

    def in_order(self, x_BD: Tensor) -> Tensor:
        """One row per prompt, from packed order to the order of the list."""
        return x_BD.index_select(0, self.order_B.argsort())


def packing_of(end_B: Tensor, length: int) -> Packing | None:
    """How to pack prompts that end at `end_B`; None if packing saves too little, or while a graph is exported."""
    prompts = end_B.shape[0]
    if torch.compiler.is_compiling() or prompts * (length - 1) < LEAST_SAVED:
        return None
    sorted_B, order_B = end_B.sort(stable=True)
    lengths = [end + 1 for end in sorted_B.tolist()]
    groups, first, start = [], 0, 0
    for stop in cuts(lengths):
        longest = lengths[stop - 1]
        rows = (stop - first) * longest
        groups.append(Group(slice(first, stop), slice(start, start + rows), longest))
        first, start = stop, start + rows
    if prompts * length - start < LEAST_SAVED:
        return None
    indices, ends = [], []
    for one in groups:
        place_CT = torch.arange(one.length, device=end_B.device)
        indices.append((order_B[one.prompts, None] * length + place_CT).flatten())
        ends.append(torch.arange(one.count, device=end_B.device) * one.length + one.rows.start)
    return Packing(tuple(groups), order_B, torch.cat(ends) + sorted_B, torch.cat(indices), length)


def cuts(lengths: Sequence[int]) -> list[int]:
    """Ends of the groups of prompts (sorted by length) that minimise the total cost of rows and groups."""
    stops = [at for at in range(1, len(lengths) + 1) if at == len(lengths) or lengths[at] != lengths[at - 1]]
    best: list[tuple[int, list[int]]] = [(0, [])]
    for stop in stops:
        before = zip([0, *stops], best, strict=False)
        options = [
            (cost + (stop - at) * lengths[stop - 1] + GROUP_COST, [*taken, stop]) for at, (cost, taken) in before
        ]
        best.append(min(options, key=lambda one: one[0]))
    return best[-1][1]
