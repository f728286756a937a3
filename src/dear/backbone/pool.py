"""`Pool`: how an image tower reads its feature from the rows after the last layer, in a common form.

Every pool is a weighted sum of rows: [CLS] is one row, an average has equal weights, and attention pooling (MAP) has a
softmax per pool head, followed by an MLP. Then come at most one norm and one matrix.
Shapes: B images, N original rows, K new rows, P pool heads, D width, E joint embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from dear.backbone.layers import Part
from dear.backbone.precision import tower_precision, wide

Kind = Literal["token", "average", "map"]


@dataclass(frozen=True)
class Pool:
    """A view of the tower's last modules. It refers to tensors, so it is made for each use and not stored."""

    kind: Kind
    norm: Part
    """Norm of each row; of the pooled row if `norm_after`."""
    weight: Tensor | None
    """(D, E), the final projection; None if there is none."""
    bias: Tensor | None = None
    first: int = 0
    """First row that is averaged or attended to."""
    norm_after: bool = False
    attention: Any = None
    """timm's `AttentionPoolLatent`, for MAP."""

    def read(self, x_BND: Tensor) -> Tensor:
        """The feature (B, E) in fp32, from the original rows alone: [CLS] is enough for "token"."""
        with tower_precision(x_BND.device):
            if self.kind == "token":
                y = self.norm(x_BND[:, 0])
            elif self.kind == "average":
                y = self._average(x_BND)
            else:
                y = self.attention(self.norm(x_BND[:, self.first :]))
        return self._project(wide(y))

    def read_new(self, x_BKD: Tensor, matrix: Tensor) -> Tensor:
        """Features (B, K, E) of rows, each read as if it were the only one, with `matrix` in place of `start()`."""
        with tower_precision(x_BKD.device):
            normed = self.norm(x_BKD)
        if self.kind != "map":
            return self._biased(wide(normed) @ wide(matrix))
        pool, values = self.attention, self._values
        constant = F.linear(wide(values.bias), wide(pool.proj.weight), wide(pool.proj.bias))
        y = wide(normed) @ wide(matrix) + constant
        with tower_precision(x_BKD.device):
            more = pool.mlp(pool.norm(y.to(x_BKD.dtype)))
        return self._project(y + wide(more))

    def start(self) -> Tensor:
        """The frozen matrix, (D, E) or (D, D), that maps one normed row: `read_new` then equals the pool of that row.

        It is the final projection; with MAP the product of its value and output matrices, as a softmax over one row is
        1, and what follows stays frozen.
        """
        if self.kind == "map":
            return (wide(self.attention.proj.weight) @ wide(self._values.weight)).T
        assert self.weight is not None
        return wide(self.weight)

    def rows(self, x_BND: Tensor) -> Tensor:
        """The weight of each row in the sum, (B, P, N), in fp32."""
        if self.kind == "map":
            return F.pad(self._attention(x_BND), (self.first, 0))
        weights_N = x_BND.new_zeros(x_BND.shape[1]).float()
        if self.kind == "token":
            weights_N[0] = 1
        else:
            weights_N[self.first :] = 1 / (x_BND.shape[1] - self.first)
        return weights_N.expand(x_BND.shape[0], 1, -1)

    def _average(self, x_BND: Tensor) -> Tensor:
        rows = x_BND[:, self.first :]
        return self.norm(rows.mean(1)) if self.norm_after else self.norm(rows).mean(1)

    def _attention(self, x_BND: Tensor) -> Tensor:
        """Attention weights of MAP's query, (B, P, N - first)."""
        pool, heads = self.attention, self.attention.num_heads
        with tower_precision(x_BND.device):
            keys = pool.kv(self.norm(x_BND[:, self.first :])).chunk(2, -1)[0]
            k = pool.k_norm(keys.unflatten(-1, (heads, -1)).transpose(1, 2))
            q = pool.q_norm(pool.q(pool.latent).unflatten(-1, (heads, -1)).transpose(1, 2))
        weights: Tensor = (wide(q) @ wide(k).transpose(-1, -2) * pool.scale).softmax(-1)[:, :, 0]
        return weights

    @property
    def _values(self) -> Values:
        kv, half = self.attention.kv, self.attention.kv.out_features // 2
        return Values(kv.weight[half:], kv.bias[half:])

    def _project(self, y: Tensor) -> Tensor:
        return self._biased(y if self.weight is None else y @ wide(self.weight))

    def _biased(self, y: Tensor) -> Tensor:
        return y if self.bias is None else y + wide(self.bias)


@dataclass(frozen=True)
class Values:
    """The part of MAP's matrix that computes values."""

    weight: Tensor
    bias: Tensor
