"""The adapted last layers of both towers: frozen weights, new tokens, and at the end only the rows that are read.

Shapes: B images, N original tokens, A attribute tokens; C prompts, T words, P inserted tokens;
L all tokens of a sequence, Q rows that are read, D width, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dear.backbone.blocks import run_block
from dear.backbone.text import TextTower
from dear.backbone.vision import VisionTower
from dear.methods.dear.tokens import carry


def vision_tail(
    tower: VisionTower,
    prefix_BND: Tensor,
    tokens_AD: Tensor,
    masks: Sequence[Tensor],
    *,
    first: int,
    beta: float,
) -> Tensor:
    """Rows [CLS, attribute tokens] after the last layer and the final norm: (B, 1 + A, D).

    `masks` holds one (H, N + A, N + A) mask for each of the layers `first`..L.
    """
    originals = prefix_BND.shape[1]
    raw_BAD = tokens_AD.to(prefix_BND.dtype).expand(len(prefix_BND), -1, -1)
    x_BLD = torch.cat([prefix_BND, raw_BAD], dim=1)
    *inner, last = tower.blocks(first)
    for block, mask_HLL in zip(inner, masks[:-1], strict=True):
        x_BLD = run_block(block, x_BLD, mask=mask_HLL)
        carried_BAD = carry(raw_BAD, x_BLD[:, originals:], beta)
        x_BLD = torch.cat([x_BLD[:, :originals], carried_BAD], dim=1)
    read_rows = [0, *range(originals, x_BLD.shape[1])]
    x_BQD = run_block(last, x_BLD, queries_BQD=x_BLD[:, read_rows], mask=masks[-1][:, read_rows])
    return tower.read(x_BQD)


def text_tail(
    tower: TextTower,
    prefix_CTD: Tensor,
    end_C: Tensor,
    tokens_PD: Tensor,
    *,
    first: int,
    beta: float,
) -> Tensor:
    """Class features (C, E), unnormalised, with P tokens inserted between the start token and the words."""
    inserted = len(tokens_PD)
    raw_CPD = tokens_PD.to(prefix_CTD.dtype).expand(len(prefix_CTD), -1, -1)
    x_CLD = torch.cat([prefix_CTD[:, :1], raw_CPD, prefix_CTD[:, 1:]], dim=1)
    *inner, last = tower.blocks(first)
    for block in inner:
        x_CLD = run_block(block, x_CLD, causal=True)
        carried_CPD = carry(raw_CPD, x_CLD[:, 1 : 1 + inserted], beta)
        x_CLD = torch.cat([x_CLD[:, :1], carried_CPD, x_CLD[:, 1 + inserted :]], dim=1)
    return tower.read_end(last, x_CLD, end_C + inserted)
