"""Contribution of each head to the embeddings of images, computed by `dear.backbone.head_contributions`."""

from __future__ import annotations

import torch
from torch import Tensor

from dear.backbone import head_contributions
from dear.backbone.clip import FrozenClip
from dear.backbone.head_contributions import Contributions


@torch.no_grad()
def contributions(clip: FrozenClip, images: Tensor) -> Contributions:
    """Run the image tower once and record the contributions to the [CLS] row."""
    clip.vision.check(images)
    return head_contributions.contributions(clip.vision, clip.vision.norm_in(clip.vision.embed(images)))
