"""Contribution of parts of a tower to a feature that is pooled from many rows: an average, or attention pooling (MAP).

Per image, attention, the scales of norms and the weights of the pool are held fixed, so that the feature is linear in
the rows. Rows are summed first, then projected. A norm's mean and all biases are divided among the terms by `shares`.
MAP ends with an MLP. It is a term of its own (`through` is False), or its gates are held fixed as well:
GELU(u) = u · gate(u), so that it passes the terms on.

Shapes: B images, N rows, P pool heads (1 for an average), X terms, D width, E joint embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.layers import Layer, Part, same
from dear.backbone.pool import Pool
from dear.backbone.precision import wide


@dataclass(frozen=True)
class Summing:
    """How the rows of a batch of images are summed before they are projected."""

    weights_BPN: Tensor
    """Weight of each row, with the scale of its norm."""
    mean_BP: Tensor
    """The weighted mean that the norm of the rows removes; 0 if it comes after the pool."""

    def sums(self, x_BND: Tensor) -> Tensor:
        """(B, P, D)."""
        return self.weights_BPN @ wide(x_BND)

    def heads(self, layer: Layer, joined_BND: Tensor) -> Tensor:
        """What each head of a layer adds to the sum, (B, P, H, D), from the concatenated heads of all rows."""
        out, norm, weights_BPN = layer.out, layer.post1, self.weights_BPN
        assert isinstance(out, nn.Linear)
        if isinstance(norm, nn.LayerNorm):
            total_BND = wide(out(joined_BND))
            weights_BPN = weights_BPN * _scale(norm, total_BND)[:, None, :, 0]
        summed_BPHE = torch.unflatten(weights_BPN @ wide(joined_BND), -1, (layer.heads, -1))
        weight_DHE = torch.unflatten(wide(out.weight), 1, (layer.heads, -1))
        terms = torch.einsum("bphe,dhe->bphd", summed_BPHE, weight_DHE)
        if out.bias is not None:
            terms = terms + weights_BPN.sum(-1)[..., None, None] * wide(out.bias) / layer.heads
        if not isinstance(norm, nn.LayerNorm):
            return wide(norm(terms.to(joined_BND.dtype)))
        weight, bias = _affine(norm)
        mean_BP11 = (weights_BPN @ total_BND.mean(-1, keepdim=True))[..., None]
        whole_BP11 = self.weights_BPN.sum(-1)[..., None, None]
        return (terms - mean_BP11 / layer.heads) * weight + bias * whole_BP11 / layer.heads


def summing(pool: Pool, final_BND: Tensor) -> Summing:
    """How the pool sums rows, from those after the last layer."""
    weights_BPN = pool.rows(final_BND)
    final_BND = wide(final_BND)
    if pool.norm_after or pool.norm is same:
        return Summing(weights_BPN, weights_BPN.new_zeros(weights_BPN.shape[:2]))
    scaled_BPN = weights_BPN * _scale(pool.norm, final_BND)[:, None, :, 0]
    return Summing(scaled_BPN, (scaled_BPN @ final_BND.mean(-1, keepdim=True))[..., 0])


def project(pool: Pool, how: Summing, sums_BPXD: Tensor, shares_X1: Tensor, *, through: bool) -> Tensor:
    """Terms (B, X, E) of the unnormalised feature from sums of rows; with MAP and not `through`, one more, its MLP."""
    terms = sums_BPXD
    if not pool.norm_after and pool.norm is not same:
        weight, bias = _affine(pool.norm)
        terms = (terms - how.mean_BP[..., None, None] * shares_X1) * weight + bias * shares_X1
    if pool.kind == "map":
        terms, shares_X1 = _attended(pool, terms, shares_X1, through)
    else:
        terms = spread(pool.norm, terms[:, 0], shares_X1) if pool.norm_after else terms[:, 0]
    if pool.weight is not None:
        terms = terms @ wide(pool.weight)
    return terms if pool.bias is None else terms + wide(pool.bias) * shares_X1


def spread(norm: Part, terms_BXD: Tensor, shares_X1: Tensor | float) -> Tensor:
    """A norm or a scale of a sum, term by term: a norm's mean and bias are divided among the terms by `shares_X1`."""
    if not isinstance(norm, nn.LayerNorm):
        return norm(terms_BXD)
    total_B1D = terms_BXD.sum(-2, keepdim=True)
    weight, bias = _affine(norm)
    return (terms_BXD - total_B1D.mean(-1, keepdim=True) * shares_X1) * _scale(norm, total_B1D) * weight + (
        bias * shares_X1
    )


def _attended(pool: Pool, terms_BPXD: Tensor, shares_X1: Tensor, through: bool) -> tuple[Tensor, Tensor]:
    """What MAP makes of sums of normed rows: its values, its output and its MLP. Also the shares of the terms."""
    attention, heads, half = pool.attention, pool.attention.num_heads, pool.attention.kv.out_features // 2
    values_PED = torch.unflatten(wide(attention.kv.weight[half:]), 0, (heads, -1))
    out_DPE = torch.unflatten(wide(attention.proj.weight), 1, (heads, -1))
    constant_D = F.linear(wide(attention.kv.bias[half:]), wide(attention.proj.weight), wide(attention.proj.bias))
    inside_BPXE = torch.einsum("bpxd,ped->bpxe", terms_BPXD, values_PED)
    terms = torch.einsum("bpxe,dpe->bxd", inside_BPXE, out_DPE) + constant_D * shares_X1
    first, second = attention.mlp.fc1, attention.mlp.fc2
    normed = spread(attention.norm, terms, shares_X1)
    before = F.linear(normed, wide(first.weight)) + wide(first.bias) * shares_X1
    total = before.sum(1, keepdim=True)
    gate = gate_of(attention.mlp.act, total)
    if through and gate is not None:
        return terms + F.linear(before * gate, wide(second.weight)) + wide(second.bias) * shares_X1, shares_X1
    more = F.linear(attention.mlp.act(total), wide(second.weight), wide(second.bias))
    return torch.cat([terms, more], dim=1), F.pad(shares_X1, (0, 0, 0, 1))


def gate_of(act: Any, u: Tensor) -> Tensor | None:
    """The factor g with act(u) = u · g, in closed form because of u = 0; None for another function than GELU."""
    kind = type(act).__name__
    if kind not in ("GELU", "GELUTanh"):
        return None
    if kind == "GELUTanh" or getattr(act, "approximate", "none") == "tanh":
        return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
    return 0.5 * (1 + torch.erf(u / math.sqrt(2)))


def _scale(norm: Part, x: Tensor) -> Tensor:
    """1 / standard deviation of each row, with one column."""
    assert isinstance(norm, nn.LayerNorm)
    return (x.var(-1, unbiased=False, keepdim=True) + norm.eps).rsqrt()


def _affine(norm: Part) -> tuple[Tensor, Tensor]:
    assert isinstance(norm, nn.LayerNorm)
    return wide(norm.weight), wide(norm.bias)
