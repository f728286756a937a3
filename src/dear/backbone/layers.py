"""`Layer`: one transformer layer in a common form. The only code that knows how open_clip stores its attention.

A layer is x + post1(out(heads(pre1 x))), then x + post2(mlp(pre2 x)), plus an optional term parallel to both.
A method changes a layer by replacing parts of it (`dataclasses.replace`): LoRA replaces `project`, a parallel adapter
sets `side`. A method that trains copies of the weights makes layers of the copied modules.

Shapes: B sequences, L rows (keys), S rows before them, Q query rows, D width, H heads, E = D / H.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dear.backbone.packed import Packing

Part = Callable[[Tensor], Tensor]


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
    post2: Part = same
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
    ) -> Tensor:
        """Attention output of each head for each query row, (B, H, Q, E); by default all rows are queries.

        `past` (G, S, D) are rows before those of `x_BLD` that serve as keys only, each for B / G sequences. `mask` is
        boolean, broadcastable to (B, H, Q, S + L), True where a query may attend to a key.
        """
        keys = self.pre1(x_BLD)
        if queries is None:
            q, k, v = self.project(keys, "qkv")
        else:
            (q,), (k, v) = self.project(self.pre1(queries), "q"), self.project(keys, "kv")
        if past is not None and past.shape[1]:
            before = self.project(self.pre1(past), "kv")
            k, v = (torch.cat([_each(old, own), own], dim=1) for old, own in zip(before, (k, v), strict=True))
        q, k, v = (self._split(part) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

    def weights(self, x_BLD: Tensor, queries: Tensor) -> Tensor:
        """Attention probabilities (B, H, Q, L) of the query rows, without a mask, in fp32."""
        (q,), (k, _) = self.project(self.pre1(queries), "q"), self.project(self.pre1(x_BLD), "kv")
        q, k = (self._split(part).float() for part in (q, k))
        return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)

    def run(
        self,
        x_BLD: Tensor,
        *,
        queries: Tensor | None = None,
        past: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The layer's output for the query rows; arguments as for `attend`."""
        rows = x_BLD if queries is None else queries
        gathered = self.attend(x_BLD, queries=queries, past=past, mask=mask, causal=causal)
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
            split_q, split_k, split_v = map(self._split, (queries, *own))
            attended = F.scaled_dot_product_attention(split_q, split_k, split_v, attn_mask=mask)
            gathered.append(attended.transpose(1, 2).flatten(0, 1).flatten(1))
        return self._after(rows, torch.cat(gathered))

    def _after(self, rows: Tensor, gathered: Tensor) -> Tensor:
        """The layer's output for rows, from the attention output of their heads."""
        y = rows + self.post1(self.out(gathered))
        y = y + self.post2(self.mlp(self.pre2(y)))
        return y if self.side is None else y + self.side(self.pre1(rows))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


def layer_of(block: Any) -> Layer:
    """The `Layer` of an open_clip residual block."""
    attention = block.attn

    def project(x: Tensor, which: str) -> tuple[Tensor, ...]:
        weight, bias, width = attention.in_proj_weight, attention.in_proj_bias, attention.embed_dim
        first, last = {"qkv": (0, 3), "q": (0, 1), "kv": (1, 3)}[which]
        rows = slice(first * width, last * width)
        return F.linear(x, weight[rows].to(x.dtype), bias[rows].to(x.dtype)).chunk(last - first, dim=-1)

    return Layer(
        heads=attention.num_heads,
        project=project,
        out=attention.out_proj,
        mlp=block.mlp,
        pre1=block.ln_1,
        pre2=block.ln_2,
        post1=block.ls_1,
        post2=block.ls_2,
    )


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
