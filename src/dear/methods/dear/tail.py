"""The adapted last layers of both towers: frozen weights, new tokens, and at the end only the rows that are read.

Shapes: B images, N original tokens, A attribute tokens; C prompts, T words, P inserted tokens, S tokens that all
prompts begin with; L all tokens of a sequence, Q rows that are read, D width, E joint embedding.
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
        x_BLD = run_block(block, x_BLD, mask=mask_HLL[None])  # four dimensions: the fast kernel takes no three
        carried_BAD = carry(raw_BAD, x_BLD[:, originals:], beta)
        x_BLD = torch.cat([x_BLD[:, :originals], carried_BAD], dim=1)
    read_rows = [0, *range(originals, x_BLD.shape[1])]
    x_BQD = run_block(last, x_BLD, queries_BQD=x_BLD[:, read_rows], mask=masks[-1][None, :, read_rows])
    return tower.read(x_BQD)


def text_tail(
    tower: TextTower,
    prefix_CTD: Tensor,
    end_C: Tensor,
    tokens_PD: Tensor,
    *,
    shared: int,
    first: int,
    beta: float,
) -> Tensor:
    """Class features (C, E), unnormalised, with P tokens inserted between the start token and the words.

    The start token, the inserted tokens and the words that all prompts begin with (`shared` tokens of the prefix) see
    nothing that differs between classes, so they run once for all of them, as a past that every class attends to.
    """
    inserted = len(tokens_PD)
    raw_1PD = tokens_PD.to(prefix_CTD.dtype)[None]
    past_1SD = torch.cat([prefix_CTD[:1, :1], raw_1PD, prefix_CTD[:1, 1:shared]], dim=1)
    x_CTD = prefix_CTD[:, shared:]
    length = x_CTD.shape[1]
    mask_TL = torch.ones(length, past_1SD.shape[1] + length, dtype=torch.bool, device=x_CTD.device)
    mask_TL = mask_TL.tril(past_1SD.shape[1])
    *inner, last = tower.blocks(first)
    for block in inner:
        x_CTD = run_block(block, x_CTD, past_1SD=past_1SD, mask=mask_TL)
        past_1SD = run_block(block, past_1SD, causal=True)
        carried_1PD = carry(raw_1PD, past_1SD[:, 1 : 1 + inserted], beta)
        past_1SD = torch.cat([past_1SD[:, :1], carried_1PD, past_1SD[:, 1 + inserted :]], dim=1)
    return tower.read_end(last, x_CTD, end_C - shared, past_1SD)
