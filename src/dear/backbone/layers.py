"""`Layer`: one transformer layer in a common form. `dear.backbone.layer_kinds` makes it from the blocks of libraries.

A layer is x + post1(out(inner(heads(pre1 x)))), then x + post2(mlp(pre2 x)), plus an optional term parallel to both.
A method changes a layer by replacing parts of it (`dataclasses.replace`): LoRA replaces `project`, a parallel adapter
sets `side`. A method that trains copies of the weights makes layers of the copied modules.

Shapes: B sequences, L rows (keys), S rows before them, Q query rows, D width, H heads, E = D / H.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dear.backbone.packed import Packing

Part = Callable[[Tensor], Tensor]
Places = list[int] | slice
"""Index of some rows."""


class Projection(Protocol):
    """Computes queries, keys and values of rows; `which` is "qkv", "q" or "kv"."""

    def __call__(self, x: Tensor, which: str) -> tuple[Tensor, ...]:
        """Return one tensor per letter of `which`."""
        ...


def same(x: Tensor) -> Tensor:
    """Identity, in place of a part that a layer does not have."""
    return x


@dataclass(frozen=True)
class Layer:
    """A view of a layer. It refers to modules and functions, never to tensors, so it uses the current weights."""

    heads: int
    project: Projection
    out: Part
    mlp: Part
    pre1: Part = same
    pre2: Part = same
    post1: Part = same
    """A scale, or the norm of a layer with its norms after attention and MLP."""
    post2: Part = same
    q_norm: Part = same
    """Norm of each head's queries; `k_norm` of its keys."""
    k_norm: Part = same
    inner: Part = same
    """A norm of the concatenated heads."""
    turns: Callable[[int], Tensor] | None = None
    """Rotary positions: from a number of rows to their sines and cosines (L, 2E). Rows added at the end do not turn."""
    halves: bool = False
    """Whether the pairs that are turned together are E / 2 apart; otherwise they are neighbours."""
    side: Part | None = None
    """A term parallel to the whole layer, computed from the rows after `pre1`."""
    by_row: bool = True
    """Whether all parts treat each row independently; False if one depends on positions, as dropout masks do."""

    def attend(
        self,
        x_BLD: Tensor,
        *,
        queries: Tensor | None = None,
        past: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        at: Places | None = None,
    ) -> Tensor:
        """Attention output of each head for each query row, (B, H, Q, E); by default all rows are queries.

        `past` (G, S, D) are rows before those of `x_BLD` that serve as keys only, each for B / G sequences. `mask` is
        boolean, broadcastable to (B, H, Q, S + L), True where a query may attend to a key. `at` says which rows of
        `x_BLD` the queries are; by default the first ones.
        """
        keys = self.pre1(x_BLD)
        if queries is None:
            q, k, v = self.project(keys, "qkv")
        else:
            (q,), (k, v) = self.project(self.pre1(queries), "q"), self.project(keys, "kv")
        if past is not None and past.shape[1]:
            before = self.project(self.pre1(past), "kv")
            k, v = (torch.cat([_each(old, own), own], dim=1) for old, own in zip(before, (k, v), strict=True))
        q, k = self.compared(q, k, at)
        return F.scaled_dot_product_attention(q, k, self.split(v), attn_mask=mask, is_causal=causal)

    def weights(self, x_BLD: Tensor, queries: Tensor, at: Places | None = None) -> Tensor:
        """Attention probabilities (B, H, Q, L) of the query rows, without a mask, in fp32; `at` as in `attend`."""
        (q,), (k, _) = self.project(self.pre1(queries), "q"), self.project(self.pre1(x_BLD), "kv")
        q, k = (part.float() for part in self.compared(q, k, at))
        return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)

    def run(
        self,
        x_BLD: Tensor,
        *,
        queries: Tensor | None = None,
        past: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        at: Places | None = None,
    ) -> Tensor:
        """The layer's output for the query rows; arguments as for `attend`."""
        rows = x_BLD if queries is None else queries
        gathered = self.attend(x_BLD, queries=queries, past=past, mask=mask, causal=causal, at=at)
        return self._after(rows, gathered.transpose(1, 2).flatten(2))

    def run_packed(self, x_ND: Tensor, packing: Packing, *, past: Tensor, ends: bool = False) -> Tensor:
        """The layer's causal output for packed rows (N, D), or only for the end rows (B, D), in packed order.

        `past` is as in `attend`. All parts of the layer must be `by_row`.
        """
        rows, normed = x_ND, self.pre1(x_ND)
        if ends:
            rows = x_ND.index_select(0, packing.end_B)
            (q,), (k, v) = self.project(self.pre1(rows), "q"), self.project(normed, "kv")
        else:
            q, k, v = self.project(normed, "qkv")
        old = self.project(self.pre1(past), "kv") if past.shape[1] else None
        gathered = []
        cut_q, cut_k, cut_v = (packing.cut(part, ends=ends and part is q) for part in (q, k, v))
        for one, queries, *own in zip(packing.groups, cut_q, cut_k, cut_v, strict=True):
            if old is not None:
                of_C = packing.order_B[one.prompts] // (packing.order_B.shape[0] // past.shape[0])
                own = [torch.cat([_of(a, of_C), b], dim=1) for a, b in zip(old, own, strict=True)]
            mask = packing.mask(one, past.shape[1], ends)
            split_q, split_k = self.compared(queries, own[0])
            attended = F.scaled_dot_product_attention(split_q, split_k, self.split(own[1]), attn_mask=mask)
            gathered.append(attended.transpose(1, 2).flatten(0, 1).flatten(1))
        return self._after(rows, torch.cat(gathered))

    def _after(self, rows: Tensor, gathered: Tensor) -> Tensor:
        """The layer's output for rows, from the attention output of their heads."""
        y = rows + self.post1(self.out(self.inner(gathered)))
        y = y + self.post2(self.mlp(self.pre2(y)))
        return y if self.side is None else y + self.side(self.pre1(rows))

    def compared(self, q: Tensor, k: Tensor, at: Places | None = None) -> tuple[Tensor, Tensor]:
        """Queries and keys as each head compares them: divided into heads, with their norms and turns."""
        q, k = self.q_norm(self.split(q)), self.k_norm(self.split(k))
        if self.turns is None:
            return q, k
        table = self.turns(k.shape[-2])
        return turned(q, table[slice(q.shape[-2]) if at is None else at], self.halves), turned(k, table, self.halves)

    def split(self, x: Tensor) -> Tensor:
        """Rows divided into heads, (B, H, L, E)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


def turned(x_BHLE: Tensor, table_LF: Tensor, halves: bool) -> Tensor:
    """Rotary positions applied to queries or keys, in their type; `table_LF` has sines, then cosines (F = 2E)."""
    sin, cos = table_LF.chunk(2, -1)
    if halves:
        first, second = x_BHLE.chunk(2, -1)
        across = torch.cat([-second, first], -1)
    else:
        across = torch.stack([-x_BHLE[..., 1::2], x_BHLE[..., ::2]], -1).flatten(-2)
    return (x_BHLE * cos + across * sin).type_as(x_BHLE)


def _each(shared: Tensor, own: Tensor) -> Tensor:
    """Repeat rows that several sequences share, once per sequence."""
    if shared.shape[0] == 1:
        return shared.expand(own.shape[0], -1, -1)
    return shared.repeat_interleave(own.shape[0] // shared.shape[0], dim=0)


def _of(shared: Tensor, owner_C: Tensor) -> Tensor:
    """Rows that several sequences share, selected by the group `owner_C` of each sequence."""
    if shared.shape[0] == 1:
        return shared.expand(owner_C.shape[0], -1, -1)
    return shared.index_select(0, owner_C)
