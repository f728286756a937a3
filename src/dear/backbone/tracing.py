"""Watching the image tower at work: what every head and MLP adds to a row, and from which rows each head takes it.

Whoever watches sees every run of the tower, whatever layers, edits and masks a method runs it with. A row after the
last layer is a sum: what it starts with, and what heads and MLPs add; what a head adds is again a sum, over the rows
that it attends to. For one image.

Shapes: N rows that are attended to, Q rows that are computed, H heads, E width of a head, D width, C directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dear.backbone.layers import Layer
from dear.backbone.precision import wide


@dataclass(frozen=True)
class Seen:
    """One layer of a run."""

    number: int
    layer: Layer
    rows: tuple[int, ...]
    """Which rows it computed."""
    weights_HQN: Tensor
    values_HNE: Tensor
    added_QD: Tensor
    """By the MLP, and by a term parallel to the layer."""


@dataclass
class Run:
    """A run of the tower over some of its layers: what came in, what every layer did, and what came out."""

    first: int
    before_ND: Tensor
    seen: list[Seen] = field(default_factory=list)
    after_QD: Tensor | None = None

    @property
    def last(self) -> int:
        """Its last layer."""
        return self.first + len(self.seen) - 1

    def layer(
        self, number: int, layer: Layer, x_1ND: Tensor, rows: list[int] | slice | None, mask: Tensor | None
    ) -> Tensor:
        """The layer's output for some rows or all, as `Layer.run` computes it, with notes of how it came about."""
        places = range(x_1ND.shape[1])
        wanted = rows if isinstance(rows, list) else list(places[rows or slice(None)])
        queries = x_1ND[:, wanted]
        (q,), (k, v) = layer.project(layer.pre1(queries), "q"), layer.project(layer.pre1(x_1ND), "kv")
        q, k, v = (x.view(*x.shape[:-1], layer.heads, -1).transpose(1, 2) for x in (q, k, v))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        weights = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
        y = queries + layer.post1(layer.out((weights @ v).transpose(1, 2).flatten(2)))
        added = layer.post2(layer.mlp(layer.pre2(y)))
        if layer.side is not None:
            added = added + layer.side(layer.pre1(queries))
        self.seen.append(Seen(number, layer, tuple(wanted), weights[0], v[0], added[0]))
        self.after_QD = (y + added)[0]
        return y + added


_WATCHED: ContextVar[list[Run] | None] = ContextVar("dear_watched", default=None)


@contextmanager
def watching() -> Iterator[list[Run]]:
    """Within this context, and for this thread only, runs of image towers on one image are noted in the list."""
    runs: list[Run] = []
    token = _WATCHED.set(runs)
    try:
        yield runs
    finally:
        _WATCHED.reset(token)


def begin_run(first: int, x_BND: Tensor) -> Run | None:
    """A run to be noted, if somebody watches."""
    runs = _WATCHED.get()
    if runs is None or x_BND.shape[0] != 1:
        return None
    runs.append(Run(first, x_BND[0]))
    return runs[-1]


@dataclass(frozen=True)
class LayerTerms:
    """What a layer adds to a row: its MLP, and its heads by the rows that they attend to."""

    number: int
    factor: float
    """How much of it is left after the last layer."""
    added_D: Tensor
    weights_HN: Tensor
    values_HNE: Tensor
    out_HED: Tensor
    bias_D: Tensor
    """Of the output projection, to be shared by the heads."""

    def heads_HD(self) -> Tensor:
        """What each head adds, before the factor."""
        gathered_HE = torch.einsum("hn,hne->he", self.weights_HN, self.values_HNE)
        return torch.einsum("he,hed->hd", gathered_HE, self.out_HED) + self.bias_D / self.heads

    @property
    def heads(self) -> int:
        """H."""
        return self.weights_HN.shape[0]


@dataclass(frozen=True)
class RowTerms:
    """A row after the last layer as a sum: its start, then layers."""

    final_D: Tensor
    start_D: Tensor
    layers: tuple[LayerTerms, ...]

    @property
    def count(self) -> int:
        """How many terms there are: the start, and per layer the MLP and the heads."""
        return 1 + sum(1 + one.heads for one in self.layers)


def take_apart(runs: Sequence[Run], row: int, carry: float = 1.0) -> RowTerms:
    """The terms of a row after the last of some runs that follow each other, in fp64.

    `carry` is the part of a row that each layer hands on to the next (DeAR's tokens are carried by 1 - β). What is in
    none of the layers' terms, such as what edits put there, is counted as the row's start.
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
    bias_D = layer.post1(layer.out(eye[:, :1] * 0))[0, 0]
    out_DD = layer.post1(layer.out(eye))[0] - bias_D  # whatever the projection is made of, it is affine
    return LayerTerms(
        seen.number,
        factor,
        seen.added_QD[at].double(),
        seen.weights_HQN[:, at].double(),
        values_HNE.double(),
        out_DD.double().view(values_HNE.shape[0], values_HNE.shape[2], -1),
        bias_D.double(),
    )


@dataclass(frozen=True)
class Shares:
    """What the terms of a feature contribute to its products with C directions."""

    start_C: Tensor
    added_LC: Tensor
    """By the MLP of each layer."""
    sources_LHNC: list[Tensor]
    """By each head, from each row that it attends to; the number of rows may change from layer to layer."""
    numbers: tuple[int, ...]
    """The layers, counted from 1."""

    def total(self) -> Tensor:
        """The products themselves: (C,)."""
        return self.start_C + self.added_LC.sum(0) + sum(one.sum((0, 1)) for one in self.sources_LHNC)


def shares_of(
    rows: Sequence[RowTerms], norm: nn.LayerNorm, projection_DE: Tensor, directions_EC: Tensor
) -> tuple[Shares, Tensor]:
    """The mean of some rows' projections, of unit length, times directions, taken apart; and that feature itself.

    The final norm is linearised: its scale is applied to each term, its mean and bias are shared evenly by the terms,
    and within a head by its attention. So the shares sum exactly to the products.
    """
    weight_D, bias_D = wide(norm.weight).double(), wide(norm.bias).double()
    projection_DE, directions_EC = projection_DE.double(), directions_EC.double()
    spreads = [(one.final_D.var(unbiased=False) + norm.eps).rsqrt() for one in rows]
    normed = [(one.final_D - one.final_D.mean()) * s * weight_D + bias_D for one, s in zip(rows, spreads, strict=True)]
    feature_E = torch.stack(normed).mean(0) @ projection_DE
    onto_DC = projection_DE @ directions_EC / feature_E.norm() / len(rows)
    found = []
    for one, spread in zip(rows, spreads, strict=True):
        slope_DC = (spread * weight_D)[:, None] * onto_DC
        even_C = (bias_D @ onto_DC - one.final_D.mean() * slope_DC.sum(0)) / one.count
        found.append(_row_shares(one, slope_DC, even_C))
    total = found[0]
    for more in found[1:]:
        sources = [a + b for a, b in zip(total.sources_LHNC, more.sources_LHNC, strict=True)]
        total = Shares(total.start_C + more.start_C, total.added_LC + more.added_LC, sources, total.numbers)
    return total, feature_E / feature_E.norm()


def _row_shares(row: RowTerms, slope_DC: Tensor, even_C: Tensor) -> Shares:
    added, sources = [], []
    for one in row.layers:
        added.append(one.factor * one.added_D @ slope_DC + even_C)
        values_HNC = one.values_HNE @ (one.out_HED @ slope_DC)
        each_HNC = one.factor * (values_HNC + one.bias_D @ slope_DC / one.heads) + even_C
        sources.append(one.weights_HN[..., None] * each_HNC)
    numbers = tuple(one.number for one in row.layers)
    return Shares(row.start_D @ slope_DC + even_C, torch.stack(added), sources, numbers)


def history(runs: Sequence[Run], depth: int) -> list[list[Run]]:
    """Runs that end with the last layer, latest first, each with those that its [CLS] row came from."""
    found = []
    for run in (run for run in reversed(runs) if run.seen and run.last == depth):
        chain = [run]
        while chain[0].first > 1:
            before = next((one for one in reversed(runs) if _leads(one, chain[0])), None)
            if before is None:
                break
            chain.insert(0, before)
        found.append(chain)
    return found


def _leads(one: Run, other: Run) -> bool:
    follows = bool(one.seen) and one.last == other.first - 1
    return follows and one.after_QD is not None and torch.equal(one.after_QD[0], other.before_ND[0])
