"""Split the dot products of a pooled feature with directions into heads, MLPs and the rows that heads attend to.

As in `dear.backbone.pooled_terms`, attention, the scales of norms, the weights of the pool and the gates of its MLP are
held fixed. The feature is then linear in the rows after the last layer: each row has a slope. What remains, the means
of norms and constants, is divided evenly among the terms. Everything is computed in fp64.

Shapes: Q rows that are pooled, N rows that are attended to, P pool heads, H heads, E width of a head or joint
embedding, D width, C directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.layers import Part
from dear.backbone.pool import Pool
from dear.backbone.pooled_terms import gate_of
from dear.backbone.tracing import Run, Seen, Shares


class Linear(NamedTuple):
    """A feature of unit length and its slope in each row, for its dot products with directions."""

    feature_E: Tensor
    slopes_QDC: Tensor


def of_image(pool: Pool, rows_QD: Tensor, directions_EC: Tensor) -> Linear:
    """The image feature, linear in the original rows after the last layer."""
    weights_PQ = pool.rows(rows_QD[None].float())[0].double()
    rows_QD = rows_QD.double()
    normed_QD = rows_QD if pool.norm_after else _apply(pool.norm, rows_QD)
    sums_PD = weights_PQ @ normed_QD
    if pool.kind == "map":
        matrix_PDD = _value_matrices(pool)
        pooled_D = torch.einsum("pd,pdf->f", sums_PD, matrix_PDD) + _constant(pool)
    else:
        matrix_PDD = torch.eye(sums_PD.shape[1], dtype=torch.float64, device=rows_QD.device)[None]
        pooled_D = _apply(pool.norm, sums_PD[0]) if pool.norm_after else sums_PD[0]
    feature_E, slope_DC = _after_pool(pool, pooled_D, directions_EC)
    if pool.norm_after:
        slope_DC = through(pool.norm, sums_PD[:1], slope_DC[None])[0]
    inside_PDC = matrix_PDD @ slope_DC
    slopes_QDC = torch.einsum("pq,pdc->qdc", weights_PQ, inside_PDC)
    return Linear(feature_E, slopes_QDC if pool.norm_after else through(pool.norm, rows_QD, slopes_QDC))


def of_new_rows(pool: Pool, rows_QD: Tensor, matrix_DD: Tensor, directions_EC: Tensor) -> Linear:
    """The mean of the features of new rows with attention pooling, each read by itself; see `Pool.read_new`."""
    rows_QD, matrix_DD = rows_QD.double(), matrix_DD.double()
    pooled_QD = _apply(pool.norm, rows_QD) @ matrix_DD + _constant(pool)
    features_QE = torch.stack([_outer(pool, one) for one in pooled_QD])
    length = features_QE.mean(0).norm()
    onto = directions_EC.double() / length / len(rows_QD)
    slopes_QDC = torch.stack([matrix_DD @ _outer_slope(pool, one, onto) for one in pooled_QD])
    return Linear(features_QE.mean(0) / length, through(pool.norm, rows_QD, slopes_QDC))


def shares(runs: Sequence[Run], rows: Sequence[int], linear: Linear, directions_EC: Tensor, carry: float) -> Shares:
    """Contribution of each term of some rows, after consecutive runs; `carry` as in `tracing.take_apart`."""
    seen = [one for run in runs for one in run.seen if rows[0] in one.rows]
    after_QD, last = runs[-1].after_QD, runs[-1].last
    assert after_QD is not None
    start_QD = after_QD[[seen[-1].rows.index(row) for row in rows]].double()
    added, sources, attention = [], [], []
    for one in seen:
        at, factor = [one.rows.index(row) for row in rows], carry ** (last - one.number)
        slopes_QDC = factor * linear.slopes_QDC
        added_QD, heads_QD = one.added_QD[at].double(), _heads(one, at)
        start_QD = start_QD - factor * (added_QD + heads_QD)
        added.append(torch.einsum("qd,qdc->c", added_QD, slopes_QDC))
        sources.append(_sources(one, at, slopes_QDC))
        attention.append(one.weights_HQN[:, at].double().mean(1))
    start_C = torch.einsum("qd,qdc->c", start_QD, linear.slopes_QDC)
    found = Shares(start_C, torch.stack(added), sources, tuple(one.number for one in seen))
    count = 1 + sum(1 + one.shape[0] for one in sources)
    even_C = (linear.feature_E @ directions_EC.double() - found.total()) / count
    spread = [one + weights_HN[..., None] * even_C for one, weights_HN in zip(sources, attention, strict=True)]
    return Shares(start_C + even_C, found.added_LC + even_C, spread, found.numbers)


def through(part: Part, x_QD: Tensor, slopes_QDC: Tensor) -> Tensor:
    """Slopes before a norm or a scale, from those after it; a norm has the scale of the rows `x_QD`."""
    if isinstance(part, nn.LayerNorm):
        scale_Q1 = (x_QD.var(-1, unbiased=False, keepdim=True) + part.eps).rsqrt()
        return slopes_QDC * (scale_Q1 * part.weight.double())[..., None]
    ones_1D = torch.ones_like(x_QD[:1]).float()
    return slopes_QDC * part(ones_1D).double()[..., None]


def _heads(seen: Seen, at: list[int]) -> Tensor:
    """What all heads of a layer add to some rows, (Q, D)."""
    layer = seen.layer
    return layer.post1(layer.out(layer.inner(seen.joined_QD[None, at])))[0].double()


def _sources(seen: Seen, at: list[int], slopes_QDC: Tensor) -> Tensor:
    """What each head adds by row that it attends to, (H, N, C)."""
    layer, joined_QD = seen.layer, seen.joined_QD[None, at]
    inside_QD = layer.inner(joined_QD)
    before_QDC = through(layer.post1, layer.out(inside_QD)[0].double(), slopes_QDC)
    eye = torch.eye(joined_QD.shape[-1], dtype=joined_QD.dtype, device=joined_QD.device)[None]
    bias_D = layer.out(eye[:, :1] * 0)[0, 0]
    out_JD = (layer.out(eye)[0] - bias_D).double()
    joined_QJC = through(layer.inner, joined_QD[0].double(), torch.einsum("jd,qdc->qjc", out_JD, before_QDC))
    by_head_QHEC = torch.unflatten(joined_QJC, 1, (layer.heads, -1))
    weights_HQN, values_HNE = seen.weights_HQN[:, at].double(), seen.values_HNE.double()
    reached_HNEC = torch.einsum("hqn,qhec->hnec", weights_HQN, by_head_QHEC)
    bias_QC = torch.einsum("d,qdc->qc", bias_D.double(), before_QDC) / layer.heads
    return torch.einsum("hne,hnec->hnc", values_HNE, reached_HNEC) + torch.einsum("hqn,qc->hnc", weights_HQN, bias_QC)


def _after_pool(pool: Pool, pooled_D: Tensor, directions_EC: Tensor) -> tuple[Tensor, Tensor]:
    """The unit feature from a pooled row, and its slope in that row, (D, C)."""
    feature_E = _outer(pool, pooled_D)
    slope_DC = _outer_slope(pool, pooled_D, directions_EC.double() / feature_E.norm())
    return feature_E / feature_E.norm(), slope_DC


def _outer(pool: Pool, pooled_D: Tensor) -> Tensor:
    """The feature from a pooled row: the MLP of attention pooling, and the projection."""
    if pool.kind == "map":
        mlp = pool.attention.mlp
        hidden = mlp.act(_linear(mlp.fc1, _apply(pool.attention.norm, pooled_D)))
        pooled_D = pooled_D + _linear(mlp.fc2, hidden)
    projected = pooled_D if pool.weight is None else pooled_D @ pool.weight.double()
    return projected if pool.bias is None else projected + pool.bias.double()


def _outer_slope(pool: Pool, pooled_D: Tensor, directions_EC: Tensor) -> Tensor:
    """The slope of `_outer` in a pooled row, (D, C)."""
    slope_DC = directions_EC if pool.weight is None else pool.weight.double() @ directions_EC
    if pool.kind != "map":
        return slope_DC
    mlp, norm = pool.attention.mlp, pool.attention.norm
    gate = gate_of(mlp.act, _linear(mlp.fc1, _apply(norm, pooled_D)))
    if gate is None:
        return slope_DC
    inside_DC = mlp.fc1.weight.double().T @ (gate[:, None] * (mlp.fc2.weight.double().T @ slope_DC))
    return slope_DC + through(norm, pooled_D[None], inside_DC[None])[0]


def _value_matrices(pool: Pool) -> Tensor:
    """(P, D, D): what attention pooling makes of a sum of normed rows, by pool head."""
    attention, heads = pool.attention, pool.attention.num_heads
    values_PED = torch.unflatten(attention.kv.weight[attention.kv.out_features // 2 :].double(), 0, (heads, -1))
    out_DPE = torch.unflatten(attention.proj.weight.double(), 1, (heads, -1))
    return torch.einsum("ped,fpe->pdf", values_PED, out_DPE)


def _constant(pool: Pool) -> Tensor:
    """(D,): what attention pooling adds to every pooled row."""
    attention = pool.attention
    bias = attention.kv.bias[attention.kv.out_features // 2 :].double()
    return F.linear(bias, attention.proj.weight.double(), attention.proj.bias.double())


def _linear(module: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, module.weight.double(), module.bias.double())


def _apply(part: Part, x: Tensor) -> Tensor:
    """A norm in fp64; other parts as they are."""
    if isinstance(part, nn.LayerNorm):
        return F.layer_norm(x, part.normalized_shape, part.weight.double(), part.bias.double(), part.eps)
    return part(x)
