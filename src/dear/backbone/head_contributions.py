"""Contribution of every attention head, every MLP and the input to an image's CLIP embedding, in one forward pass.

The final [CLS] state is a sum: the input of the first layer, plus the output of every head and every MLP. The final
norm is linearised per image: its scale is applied to each term, its mean and bias are divided evenly among the terms.
The projected terms, divided by the embedding's norm, therefore sum exactly to the unit-length embedding. Towers that
pool many rows are split in the same way, by `dear.backbone.pooled_terms`.

Shapes: B images, L layers, H heads, D width, E joint embedding, X = 1 + L + L*H terms, G groups of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dear.backbone.layers import Layer
from dear.backbone.pooled_terms import Summing, project, spread, summing
from dear.backbone.precision import wide
from dear.backbone.vision import VisionTower
from dear.errors import ConfigError


@dataclass(frozen=True)
class Contributions:
    """Terms that sum to the unit-length image embedding."""

    embedding_BE: Tensor
    mlps_BLE: Tensor
    heads_BLHE: Tensor
    pool_BE: Tensor | None = None
    """From the MLP of attention pooling, if it is a term of its own."""

    def total(self) -> Tensor:
        """The embedding itself: (B, E)."""
        total = self.embedding_BE + self.mlps_BLE.sum(1) + self.heads_BLHE.sum((1, 2))
        return total if self.pool_BE is None else total + self.pool_BE

    def grouped(self, groups: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
        """(B, G + 1, E): the sum of each group of heads (layer, head), then the sum of all other terms."""
        sums = [self.heads_BLHE[:, [n - 1 for n, _ in group], [h for _, h in group]].sum(1) for group in groups]
        stacked_BGE = torch.stack(sums, dim=1)
        return torch.cat([stacked_BGE, (self.total() - stacked_BGE.sum(1))[:, None]], dim=1)


@torch.no_grad()
def contributions(vision: VisionTower, rows_BND: Tensor, *, through: bool = True) -> Contributions:
    """Run the image tower from `rows@1` and record what each head and MLP adds to the [CLS] row, or to pooled rows.

    If the pool ends with an MLP, `through` says whether it passes the terms on or is a term of its own.
    """
    if vision.pool.kind != "token":
        return _pooled_contributions(vision, rows_BND, through)
    heads: list[Tensor] = []
    mlps: list[Tensor] = []
    layers = recording(vision.layers, heads, mlps)
    final_BD = vision.run(rows_BND, layers=layers, read=[0])[:, 0]
    terms_BXD = torch.cat([rows_BND[:, :1], torch.stack(mlps, 1), torch.cat(heads, 1)], dim=1)
    terms_BXE = _project(vision, final_BD, terms_BXD)
    count, depth = rows_BND.shape[0], len(layers)
    return Contributions(
        embedding_BE=terms_BXE[:, 0],
        mlps_BLE=terms_BXE[:, 1 : 1 + depth],
        heads_BLHE=terms_BXE[:, 1 + depth :].reshape(count, depth, -1, terms_BXE.shape[-1]),
    )


def _pooled_contributions(vision: VisionTower, rows_BND: Tensor, through: bool) -> Contributions:
    """Run the tower twice: for the weights of the pool, and for the terms."""
    how = summing(vision.pool, vision.run(rows_BND))
    heads: list[Tensor] = []
    mlps: list[Tensor] = []
    vision.run(rows_BND, layers=[_summing(layer, how, heads, mlps) for layer in vision.layers])
    sums_BPXD = torch.cat([how.sums(rows_BND)[:, :, None], torch.stack(mlps, 2), torch.cat(heads, 2)], dim=2)
    count = sums_BPXD.shape[2]
    shares_X1 = sums_BPXD.new_full((count, 1), 1 / count)
    terms_BXE = project(vision.pool, how, sums_BPXD, shares_X1, through=through)
    terms_BXE = terms_BXE / terms_BXE.sum(1, keepdim=True).norm(dim=-1, keepdim=True)
    depth = len(mlps)
    return Contributions(
        embedding_BE=terms_BXE[:, 0],
        mlps_BLE=terms_BXE[:, 1 : 1 + depth],
        heads_BLHE=terms_BXE[:, 1 + depth : count].unflatten(1, (depth, -1)),
        pool_BE=terms_BXE[:, count] if terms_BXE.shape[1] > count else None,
    )


@torch.no_grad()
def group_terms(vision: VisionTower, rows_BND: Tensor, groups: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
    """(B, G + 1, E): contribution of each group of heads (layer, head) to the unit embedding, then of all other parts.

    Equal to `contributions(…).grouped(groups)`, but much cheaper: the heads of a group are summed before projection,
    and the last term is the difference to the embedding.
    """
    if vision.pool.kind != "token":
        return _pooled_contributions(vision, rows_BND, through=True).grouped(groups)
    gathered: dict[int, Tensor] = {}
    wanted = {layer for group in groups for layer, _ in group}
    layers = [
        _recording_gathered(layer, n, gathered) if n in wanted else layer
        for n, layer in enumerate(vision.layers, start=1)
    ]
    final_BD = wide(vision.run(rows_BND, layers=layers, read=[0])[:, 0])
    sums_BGD = final_BD.new_zeros(final_BD.shape[0], len(groups), final_BD.shape[1])
    for number, first_BD in gathered.items():
        layer = layers[number - 1]
        chosen_GH = torch.zeros(len(groups), layer.heads, device=first_BD.device)
        for at, group in enumerate(groups):
            for head in (h for n, h in group if n == number):
                chosen_GH[at, head] += 1
        sums_BGD += _chosen_terms(vision.layers[number - 1], wide(first_BD), chosen_GH)
    counts_G = torch.tensor([float(len(group)) for group in groups], device=final_BD.device)
    every = 1 + len(layers) + sum(layer.heads for layer in layers)
    terms_BXD = torch.cat([sums_BGD, (final_BD - sums_BGD.sum(1))[:, None]], dim=1)
    shares_X = torch.cat([counts_G, every - counts_G.sum(0, keepdim=True)]) / every
    return _project(vision, final_BD, terms_BXD, shares_X[:, None])


def parse_groups(text: str) -> list[list[tuple[int, int]]]:
    """Parse groups of heads: "9.0,9.3;10.1" is two groups of (layer, head)."""
    try:
        groups = [[_parse_head(head) for head in group.split(",")] for group in text.split(";")]
    except ValueError:
        raise ConfigError(f"{text!r} does not name groups of heads: write LAYER.HEAD, as in '9.0,9.3;10.1'.") from None
    return groups


def name_groups(groups: Sequence[Sequence[tuple[int, int]]]) -> str:
    """Write groups of heads as text that `parse_groups` reads."""
    return ";".join(",".join(f"{layer}.{head}" for layer, head in group) for group in groups)


def _parse_head(text: str) -> tuple[int, int]:
    layer, head = text.split(".")
    return int(layer), int(head)


def recording(layers: Sequence[Layer], heads: list[Tensor], mlps: list[Tensor]) -> list[Layer]:
    """Layers that append what their heads (B, H, D) and their MLPs (B, D) add to the first row to two lists."""
    return [_recording(layer, heads, mlps) for layer in layers]


def _recording(layer: Layer, heads: list[Tensor], mlps: list[Tensor]) -> Layer:
    def out(joined_BQD: Tensor) -> Tensor:
        first_BD = joined_BQD[:, 0]
        gathered_BHE = first_BD.reshape(first_BD.shape[0], layer.heads, -1)
        heads.append(spread(layer.post1, _head_terms(layer, gathered_BHE), 1 / layer.heads))
        return layer.out(joined_BQD)

    def post2(term_BQD: Tensor) -> Tensor:
        added = layer.post2(term_BQD)
        mlps.append(added[:, 0])
        return added

    return replace(layer, out=out, post2=post2)


def _summing(layer: Layer, how: Summing, heads: list[Tensor], mlps: list[Tensor]) -> Layer:
    """A layer that appends what its heads (B, P, H, D) and its MLP (B, P, D) add to the sum of rows to two lists."""

    def out(joined_BND: Tensor) -> Tensor:
        heads.append(how.heads(layer, joined_BND))
        return layer.out(joined_BND)

    def post2(term_BND: Tensor) -> Tensor:
        added = layer.post2(term_BND)
        mlps.append(how.sums(added))
        return added

    return replace(layer, out=out, post2=post2)


def _recording_gathered(layer: Layer, number: int, gathered: dict[int, Tensor]) -> Layer:
    """A layer that stores the concatenated outputs of its heads for the first row, (B, D), under its number."""

    def out(joined_BQD: Tensor) -> Tensor:
        gathered[number] = joined_BQD[:, 0]
        return layer.out(joined_BQD)

    return replace(layer, out=out)


def _chosen_terms(layer: Layer, gathered_BD: Tensor, chosen_GH: Tensor) -> Tensor:
    """Sum of what the chosen heads of a layer add to a row, (B, G, D)."""
    out = layer.out
    assert isinstance(out, nn.Linear)
    used = chosen_GH.any(1).nonzero()[:, 0]
    mask_UD = chosen_GH[used].repeat_interleave(gathered_BD.shape[1] // layer.heads, dim=1)
    terms_BUD = (gathered_BD[:, None] * mask_UD) @ wide(out.weight).T
    shares_U1 = chosen_GH[used].sum(1)[:, None] / layer.heads
    if out.bias is not None:
        terms_BUD += chosen_GH[used].sum(1)[:, None] * wide(out.bias) / layer.heads
    if isinstance(layer.post1, nn.LayerNorm):
        whole_B1D = (gathered_BD @ wide(out.weight).T + (0 if out.bias is None else wide(out.bias)))[:, None]
        rest = torch.cat([terms_BUD, whole_B1D - terms_BUD.sum(1, keepdim=True)], dim=1)
        shares = torch.cat([shares_U1, 1 - shares_U1.sum(0, keepdim=True)])
        terms_BUD = spread(layer.post1, rest, shares)[:, :-1]
    else:
        terms_BUD = layer.post1(terms_BUD)
    sums_BGD = gathered_BD.new_zeros(gathered_BD.shape[0], chosen_GH.shape[0], terms_BUD.shape[2])
    return sums_BGD.index_copy(1, used, wide(terms_BUD))


def _head_terms(layer: Layer, gathered_BHE: Tensor) -> Tensor:
    """What each head adds to a row, (B, H, D), before `post1`; the output bias is divided evenly among the heads."""
    out = layer.out
    assert isinstance(out, nn.Linear)
    weight_DHE = out.weight.view(out.weight.shape[0], layer.heads, -1)
    terms_BHD = torch.einsum("bhe,dhe->bhd", gathered_BHE, weight_DHE)
    return terms_BHD if out.bias is None else terms_BHD + out.bias / layer.heads


def _project(
    vision: VisionTower, final_BD: Tensor, terms_BXD: Tensor, shares_X1: Tensor | float | None = None
) -> Tensor:
    """Apply the linearised final norm to the terms, project them and divide by the norm of the projected embedding.

    `shares_X1` is the fraction of the norm's mean and bias that each term takes; by default all are equal.
    """
    norm = vision.final_norm
    final_BD, terms_BXD = wide(final_BD), wide(terms_BXD)
    mean_B11 = final_BD.mean(-1)[:, None, None]
    scale_B11 = (final_BD.var(-1, unbiased=False) + norm.eps).rsqrt()[:, None, None]
    share = 1 / terms_BXD.shape[1] if shares_X1 is None else shares_X1
    normed_BXD = (terms_BXD - mean_B11 * share) * scale_B11 * norm.weight + norm.bias * share
    projected_BXE = normed_BXD @ wide(vision.projection)
    if vision.pool.bias is not None:
        projected_BXE = projected_BXE + wide(vision.pool.bias) * share
    norm_B11: Tensor = projected_BXE.sum(1, keepdim=True).norm(dim=-1, keepdim=True)
    return projected_BXE / norm_B11
