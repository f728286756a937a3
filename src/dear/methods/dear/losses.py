"""The training loss (Eq. 12-16) and its terms."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class DearLoss:
    """The total and its unweighted terms."""

    total: Tensor
    ce: Tensor
    reg_image: Tensor
    reg_text: Tensor
    fusion: Tensor

    def scalars(self) -> dict[str, float]:
        """Every term as a number, for logs."""
        return {term.name: float(getattr(self, term.name).detach()) for term in fields(self)}


def dear_loss(
    *,
    logits_BC: Tensor,
    labels_B: Tensor,
    cls_features_BE: Tensor,
    frozen_cls_features_BE: Tensor,
    class_features_CE: Tensor,
    frozen_class_features_CE: Tensor,
    alpha_cls: Tensor,
    lambda_reg: float,
    lambda_fusion: float,
    fusion_form: Literal["neg_log", "one_minus"],
) -> DearLoss:
    """Cross-entropy + λ_reg · (drift of image and class features from plain CLIP) + λ_fusion · fusion term."""
    ce = F.cross_entropy(logits_BC, labels_B)
    reg_image = drift(cls_features_BE, frozen_cls_features_BE)
    reg_text = drift(class_features_CE, frozen_class_features_CE)
    fusion = -alpha_cls.log() if fusion_form == "neg_log" else 1 - alpha_cls
    total = ce + lambda_reg * (reg_image + reg_text) + lambda_fusion * fusion
    return DearLoss(total, ce, reg_image, reg_text, fusion)


def drift(features_XE: Tensor, frozen_XE: Tensor) -> Tensor:
    """Mean of 1 - cosine over the rows; both are of unit length."""
    return (1 - (features_XE * frozen_XE).sum(-1)).mean()
