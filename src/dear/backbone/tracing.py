"""Tracing of the image tower: what every head and MLP adds to a row, and from which rows each head takes it.

A trace records every run of the tower, including a method's layers, edits and masks. A row after the last layer is the
sum of its input and of what heads and MLPs add. What a head adds is again a sum, over the rows that it attends to.
Only runs on a single image are recorded.

Shapes: N rows that are attended to, Q rows that are computed, H heads, E width of a head, D width, C directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dear.backbone.layers import Layer, Part
from dear.backbone.precision import wide


@dataclass(frozen=True)
class Seen:
    """Record of one layer in a run."""

    number: int
    layer: Layer
    rows: tuple[int, ...]
    """The rows that were computed."""
    weights_HQN: Tensor
    values_HNE: Tensor
    joined_QD: Tensor
    """The concatenated outputs of the heads."""
    added_QD: Tensor
    """Added by the MLP and, if present, by a term parallel to the layer."""


@dataclass
class Run:
    """Record of one run over some layers of the tower: its input, each layer, its output."""

    first: int
    before_ND: Tensor
    seen: list[Seen] = field(default_factory=list)
    after_QD: Tensor | None = None

    @property
    def last(self) -> int:
        """Number of the last layer that was run."""
        return self.first + len(self.seen) - 1

    def layer(
        self, number: int, layer: Layer, x_1ND: Tensor, rows: list[int] | slice | None, mask: Tensor | None
    ) -> Tensor:
        """The layer's output for some rows or all, as `Layer.run` computes it; the intermediate values are recorded."""
        all_rows = range(x_1ND.shape[1])
        wanted = rows if isinstance(rows, list) else list(all_rows[rows or slice(None)])
        queries = x_1ND[:, wanted]
        (q,), (k, v) = layer.project(layer.pre1(queries), "q"), layer.project(layer.pre1(x_1ND), "kv")
        (q, k), v = layer.compared(q, k, wanted), layer.split(v)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        weights = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
        joined = (weights @ v).transpose(1, 2).flatten(2)
        y = queries + layer.post1(layer.out(layer.inner(joined)))
        added = layer.post2(layer.mlp(layer.pre2(y)))
        if layer.side is not None:
            added = added + layer.side(layer.pre1(queries))
        self.seen.append(Seen(number, layer, tuple(wanted), weights[0], v[0], joined[0], added[0]))
        self.after_QD = (y + added)[0]
        return y + added


_WATCHED: ContextVar[list[Run] | None] = ContextVar("dear_watched", default=None)


@contextmanager
def watching() -> Iterator[list[Run]]:
    """Within this context, in this thread, record all runs of image towers on one image in the list."""
    runs: list[Run] = []
    token = _WATCHED.set(runs)
    try:
        yield runs
    finally:
        _WATCHED.reset(token)


def begin_run(first: int, x_BND: Tensor) -> Run | None:
    """Start the record of a run; None outside `watching` and for several images."""
    runs = _WATCHED.get()
    if runs is None or x_BND.shape[0] != 1:
        return None
    runs.append(Run(first, x_BND[0]))
    return runs[-1]


@dataclass(frozen=True)
class LayerTerms:
    """What a layer adds to a row: by its MLP, and by each head from each row that it attends to."""

    number: int
    factor: float
    """Fraction that remains after the last layer."""
    added_D: Tensor
    weights_HN: Tensor
    values_HNE: Tensor
    out_HED: Tensor
    bias_HD: Tensor
    """Constant of each head: its part of a norm of the joined heads, and an equal share of the output's bias."""

    def heads_HD(self) -> Tensor:
        """What each head adds, without `factor`."""
        gathered_HE = torch.einsum("hn,hne->he", self.weights_HN, self.values_HNE)
        return torch.einsum("he,hed->hd", gathered_HE, self.out_HED) + self.bias_HD

    @property
    def heads(self) -> int:
        """H."""
        return self.weights_HN.shape[0]


@dataclass(frozen=True)
class RowTerms:
    """A row after the last layer as a sum: its input, then the terms of each layer."""

    final_D: Tensor
    start_D: Tensor
    layers: tuple[LayerTerms, ...]

    @property
    def count(self) -> int:
        """Number of terms: the input, and per layer the MLP and the heads."""
        return 1 + sum(1 + one.heads for one in self.layers)


def take_apart(runs: Sequence[Run], row: int, carry: float = 1.0) -> RowTerms:
    """Terms of a row after the last of several consecutive runs, in fp64.

    `carry` is the fraction of a row that each layer passes on to the next (1 - β for DeAR's tokens). Everything that is
    not a term of a layer, such as rows that an edit inserts, counts as the row's input.
    """
    seen = [one for run in runs for one in run.seen if row in one.rows]
    after_QD, last = runs[-1].after_QD, runs[-1].last
    assert after_QD is not None
    final_D = after_QD[seen[-1].rows.index(row)].double()
    layers = tuple(_terms(one, one.rows.index(row), carry ** (last - one.number)) for one in seen)
    added_D = sum((one.factor * (one.added_D + one.heads_HD().sum(0)) for one in layers), torch.zeros_like(final_D))
    return RowTerms(final_D, final_D - added_D, layers)


def _terms(seen: Seen, at: int, factor: float) -> LayerTerms:
    layer, values_HNE = seen.layer, seen.values_HNE
    width = values_HNE.shape[0] * values_HNE.shape[2]
    eye = torch.eye(width, dtype=values_HNE.dtype, device=values_HNE.device)[None]
    joined_11D = seen.joined_QD[at][None, None]
    inner = fixed(layer.inner, joined_11D)
    post1 = fixed(layer.post1, layer.out(layer.inner(joined_11D)))
    bias_D = post1(layer.out(eye[:, :1] * 0))[0, 0]
    out_DD = post1(layer.out(eye))[0] - bias_D  # the projection may be replaced by a method, but it is affine
    constant_D, heads = inner(eye[:, :1] * 0)[0, 0], values_HNE.shape[0]
    of_heads_HD = (constant_D[:, None] * out_DD).double().view(heads, -1, out_DD.shape[1]).sum(1)
    scales_D = (inner(torch.ones_like(eye[:, :1]))[0, 0] - constant_D).double()
    return LayerTerms(
        seen.number,
        factor,
        seen.added_QD[at].double(),
        seen.weights_HQN[:, at].double(),
        values_HNE.double(),
        (scales_D[:, None] * out_DD.double()).view(heads, values_HNE.shape[2], -1),
        of_heads_HD + bias_D.double() / heads,
    )


def fixed(part: Part, x: Tensor) -> Part:
    """A part of a layer; a norm is made affine by the mean and scale that it has for the row `x`."""
    if not isinstance(part, nn.LayerNorm):
        return part
    mean, scale = x.mean(-1, keepdim=True), (x.var(-1, unbiased=False, keepdim=True) + part.eps).rsqrt()
    return lambda y: (y - mean) * scale * part.weight + part.bias


@dataclass(frozen=True)
class Shares:
    """Contribution of each term of a feature to its dot products with C directions."""

    start_C: Tensor
    added_LC: Tensor
    """From the MLP of each layer."""
    sources_LHNC: list[Tensor]
    """From each head, per row that it attends to; the number of rows may differ between layers."""
    numbers: tuple[int, ...]
    """Numbers of the layers, counted from 1."""

    def total(self) -> Tensor:
        """The dot products: (C,)."""
        return self.start_C + self.added_LC.sum(0) + sum(one.sum((0, 1)) for one in self.sources_LHNC)


def shares_of(
    rows: Sequence[RowTerms],
    norm: nn.LayerNorm,
    projection_DE: Tensor,
    directions_EC: Tensor,
    bias_E: Tensor | None = None,
) -> tuple[Shares, Tensor]:
    """Split the dot products of a feature with directions into its terms; return the shares and the feature.

    The feature is the mean of some rows' projections, scaled to unit length. The final norm is linearised: its scale is
    applied to each term, its mean and bias are divided evenly among the terms, and within a head by its attention.
    The shares therefore sum exactly to the dot products.
    """
    weight_D, bias_D = wide(norm.weight).double(), wide(norm.bias).double()
    projection_DE, directions_EC = projection_DE.double(), directions_EC.double()
    spreads = [(one.final_D.var(unbiased=False) + norm.eps).rsqrt() for one in rows]
    normed = [(one.final_D - one.final_D.mean()) * s * weight_D + bias_D for one, s in zip(rows, spreads, strict=True)]
    feature_E = torch.stack(normed).mean(0) @ projection_DE
    constant_C = torch.zeros_like(directions_EC[0])
    if bias_E is not None:
        feature_E = feature_E + bias_E.double()
        constant_C = bias_E.double() @ directions_EC / feature_E.norm() / len(rows)
    onto_DC = projection_DE @ directions_EC / feature_E.norm() / len(rows)
    shares = []
    for one, spread in zip(rows, spreads, strict=True):
        slope_DC = (spread * weight_D)[:, None] * onto_DC
        even_C = (constant_C + bias_D @ onto_DC - one.final_D.mean() * slope_DC.sum(0)) / one.count
        shares.append(_row_shares(one, slope_DC, even_C))
    total = shares[0]
    for more in shares[1:]:
        sources = [a + b for a, b in zip(total.sources_LHNC, more.sources_LHNC, strict=True)]
        total = Shares(total.start_C + more.start_C, total.added_LC + more.added_LC, sources, total.numbers)
    return total, feature_E / feature_E.norm()


def _row_shares(row: RowTerms, slope_DC: Tensor, even_C: Tensor) -> Shares:
    added, sources = [], []
    for one in row.layers:
        added.append(one.factor * one.added_D @ slope_DC + even_C)
        values_HNC = one.values_HNE @ (one.out_HED @ slope_DC)
        each_HNC = one.factor * (values_HNC + (one.bias_HD @ slope_DC)[:, None]) + even_C
        sources.append(one.weights_HN[..., None] * each_HNC)
    numbers = tuple(one.number for one in row.layers)
    return Shares(row.start_D @ slope_DC + even_C, torch.stack(added), sources, numbers)


def history(runs: Sequence[Run], depth: int) -> list[list[Run]]:
    """Chains of runs that end with the last layer, latest first; each includes the runs that led to its [CLS] row."""
    chains = []
    for run in (run for run in reversed(runs) if run.seen and run.last == depth):
        chain = [run]
        while chain[0].first > 1:
            before = next((one for one in reversed(runs) if _leads(one, chain[0])), None)
            if before is None:
                break
            chain.insert(0, before)
        chains.append(chain)
    return chains


def _leads(one: Run, other: Run) -> bool:
    follows = bool(one.seen) and one.last == other.first - 1
    return follows and one.after_QD is not None and torch.equal(one.after_QD[0], other.before_ND[0])
