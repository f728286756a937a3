"""Prompts of unequal length, side by side without most of the padding behind the short ones.

Everything in a layer but attention treats each row for itself, so rows can stand in one line: prompts in the order of
their lengths, in a few groups, each padded to its own longest. Attention runs group by group on views of that line.
Shapes: B prompts, L rows of the longest, N rows in the line, D width, C prompts of a group, T rows of its longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_SAVED = 256
"""Rows that must be saved for packing to be worth its copies. Short lists run as they are, and keep their last bits."""
GROUP_COST = 32
"""What a group costs, in rows."""


@dataclass(frozen=True)
class Group:
    """Prompts of like length: where they stand in the order of prompts, and in the line of rows."""

    prompts: slice
    rows: slice
    length: int

    @property
    def count(self) -> int:
        """C."""
        return int(self.prompts.stop - self.prompts.start)


@dataclass(frozen=True)
class Packing:
    """Which rows of padded prompts (B, L) stand in the line, and how its groups are cut."""

    groups: tuple[Group, ...]
    order_B: Tensor
    """The prompts as they stand in the line."""
    end_B: Tensor
    """Place of each one's end row in it, in that order."""
    places_N: Tensor
    """Places of the line's rows among all B * L."""
    length: int
    """L."""

    def pack(self, x_BLD: Tensor) -> Tensor:
        """The line (N, D)."""
        return x_BLD.flatten(0, 1).index_select(0, self.places_N)

    def unpack(self, x_ND: Tensor) -> Tensor:
        """The prompts (B, L, D); rows that are not in the line are zeros."""
        prompts = self.order_B.shape[0]
        whole_RD = x_ND.new_zeros(prompts * self.length, x_ND.shape[1]).index_copy(0, self.places_N, x_ND)
        return whole_RD.view(prompts, self.length, -1)

    def cut(self, x_ND: Tensor, *, ends: bool) -> list[Tensor]:
        """Each group's part of the line as (C, T, D), or of its end rows alone as (C, 1, D)."""
        counts = [one.count for one in self.groups]
        parts = torch.split(x_ND, counts if ends else [one.count * one.length for one in self.groups])
        return [torch.unflatten(part, 0, (count, -1)) for part, count in zip(parts, counts, strict=True)]

    def mask(self, group: Group, before: int, ends: bool) -> Tensor:
        """Which of a group's rows, after `before` shared ones, its rows see, or its end rows alone."""
        keys = torch.arange(before + group.length, device=self.order_B.device)
        if not ends:
            return keys <= keys[before:, None]
        end_C = self.end_B[group.prompts] - torch.arange(group.rows.start, group.rows.stop, group.length).to(keys)
        return (keys <= end_C[:, None] + before)[:, None, None]

    def in_order(self, x_BD: Tensor) -> Tensor:
        """One row per prompt, from the line's order to the list's."""
        return x_BD.index_select(0, self.order_B.argsort())


def packing_of(end_B: Tensor, length: int) -> Packing | None:
    """How to pack prompts that end at `end_B`; None if it would save too little, or in an exported graph."""
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
    places, ends = [], []
    for one in groups:
        place_CT = torch.arange(one.length, device=end_B.device)
        places.append((order_B[one.prompts, None] * length + place_CT).flatten())
        ends.append(torch.arange(one.count, device=end_B.device) * one.length + one.rows.start)
    return Packing(tuple(groups), order_B, torch.cat(ends) + sorted_B, torch.cat(places), length)


def cuts(lengths: Sequence[int]) -> list[int]:
    """Where the groups of prompts, sorted by length, end, so that rows and groups together cost least."""
    stops = [at for at in range(1, len(lengths) + 1) if at == len(lengths) or lengths[at] != lengths[at - 1]]
    best: list[tuple[int, list[int]]] = [(0, [])]
    for stop in stops:
        before = zip([0, *stops], best, strict=False)
        found = [(cost + (stop - at) * lengths[stop - 1] + GROUP_COST, [*taken, stop]) for at, (cost, taken) in before]
        best.append(min(found, key=lambda one: one[0]))
    return best[-1][1]
