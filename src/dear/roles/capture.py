"""How much each head, each MLP and the embedding contribute to an image's CLIP embedding, in one forward pass.

The final [CLS] state is a sum: what enters the first layer, plus what every head and every MLP adds to it. The final
norm is linearised per image (its scale applied to each term, its mean and bias shared out evenly), so the terms,
projected and divided by the embedding's norm, sum exactly to the unit-length embedding.

Shapes: B images, L layers, H heads, D width, E joint embedding, X = 1 + L + L*H terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dear.backbone.blocks import attend, finish_block, head_terms, mlp_term
from dear.backbone.clip import FrozenClip


@dataclass(frozen=True)
class Contributions:
    """Terms that sum to the unit-length image embedding."""

    embedding_BE: Tensor
    mlps_BLE: Tensor
    heads_BLHE: Tensor

    def total(self) -> Tensor:
        """The embedding itself: (B, E)."""
        return self.embedding_BE + self.mlps_BLE.sum(1) + self.heads_BLHE.sum((1, 2))


@torch.no_grad()
def contributions(clip: FrozenClip, images: Tensor) -> Contributions:
    """Run the image tower once, following the [CLS] row only."""
    x_BND = clip.vision.prefix(images, first=1)
    start_BD = x_BND[:, 0]
    heads, mlps = [], []
    blocks = clip.vision.blocks(first=1)
    for block in blocks:
        queries = x_BND[:, :1] if block is blocks[-1] else None
        gathered_BHQE = attend(block, x_BND, queries_BQD=queries)
        heads.append(head_terms(block, gathered_BHQE[:, :, 0]))
        mlps.append(mlp_term(block, x_BND[:, 0] + heads[-1].sum(1)))
        x_BND = finish_block(block, x_BND if queries is None else queries, gathered_BHQE)
    terms_BXE = _project(clip, x_BND[:, 0], torch.cat([start_BD[:, None], torch.stack(mlps, 1), *heads], 1))
    layers = len(blocks)
    return Contributions(
        embedding_BE=terms_BXE[:, 0],
        mlps_BLE=terms_BXE[:, 1 : 1 + layers],
        heads_BLHE=terms_BXE[:, 1 + layers :].reshape(len(images), layers, -1, terms_BXE.shape[-1]),
    )


def _project(clip: FrozenClip, final_BD: Tensor, terms_BXD: Tensor) -> Tensor:
    """Share the final norm out over the terms, project them and divide by the norm of the projected embedding."""
    norm = clip.vision.final_norm
    final_BD, terms_BXD = final_BD.float(), terms_BXD.float()
    mean_B11 = final_BD.mean(-1)[:, None, None]
    scale_B11 = (final_BD.var(-1, unbiased=False) + norm.eps).rsqrt()[:, None, None]
    count = terms_BXD.shape[1]
    normed_BXD = (terms_BXD - mean_B11 / count) * scale_B11 * norm.weight + norm.bias / count
    projected_BXE = normed_BXD @ clip.vision.projection.float()
    norm_B11: Tensor = projected_BXE.sum(1, keepdim=True).norm(dim=-1, keepdim=True)
    return projected_BXE / norm_B11
