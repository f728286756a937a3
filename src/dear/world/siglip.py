"""The other kind of CLIP for the world: no [CLS] token, attention pooling (MAP), bidirectional text, sigmoid loss.

Its image tower is a timm model, as in SigLIP: `dear.backbone.own_trunk`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOGIT_SCALE, LOGIT_BIAS = math.log(10.0), -10.0
"""Initial values, as in SigLIP."""


def image_features(model: Any, images: Tensor, visible: Tensor | None) -> Tensor:
    """Return normalised features of the images and of their visible patches, (B, 1 + N, D).

    The feature of a patch is what the pool makes of a sequence of that patch alone.
    """
    trunk = model.visual.trunk
    x_BND = trunk.patch_embed(images) + trunk.pos_embed
    if visible is not None:
        x_BND = x_BND.gather(1, visible[..., None].expand(-1, -1, x_BND.shape[-1]))
    x_BND = trunk.norm(trunk.blocks(x_BND))
    pooled_B1D = trunk.attn_pool(x_BND)[:, None]
    patches_BND = trunk.attn_pool(x_BND.flatten(0, 1)[:, None]).view_as(x_BND)
    return F.normalize(torch.cat([pooled_B1D, patches_BND], dim=1), dim=-1)


def text_features(model: Any, tokens: Tensor) -> Tensor:
    """Return normalised text features; every position is computed, because attention is not causal."""
    features: Tensor = F.normalize(model.text(tokens), dim=-1)
    return features


def pairwise_sigmoid(logits: Tensor, is_true: Tensor, counts: Tensor) -> Tensor:
    """SigLIP's loss: the negative log likelihood of each pair of image (row) and text, summed per image.

    Pairs for which `counts` is false are ignored.
    """
    signs = torch.where(is_true, 1.0, -1.0)
    loss: Tensor = -(F.logsigmoid(signs * logits) * counts).sum() / len(logits)
    return loss
