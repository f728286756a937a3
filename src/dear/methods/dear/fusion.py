"""Task-adaptive fusion (Eq. 17-19): learned weights over the evidence of [CLS] and of each attribute."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def initial_scalars(alpha_cls: float, attributes: int) -> Tensor:
    """K + 1 scalars whose softmax gives [CLS] the weight `alpha_cls` and each attribute an equal share of the rest."""
    share = (1 - alpha_cls) / attributes
    return torch.tensor([math.log(alpha_cls)] + [math.log(share)] * attributes)


def fuse(cls_logits_BC: Tensor, attr_logits_BKC: Tensor, alpha_G: Tensor) -> Tensor:
    """α_cls · s_cls + Σ_a α_a · s_a: (B, C)."""
    return alpha_G[0] * cls_logits_BC + torch.einsum("k,bkc->bc", alpha_G[1:], attr_logits_BKC)
