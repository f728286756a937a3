"""What each head contributes to images' embeddings; the arithmetic is `dear.backbone.head_contributions`."""

from __future__ import annotations

import torch
from torch import Tensor

from dear.backbone import head_contributions as split
from dear.backbone.clip import FrozenClip
from dear.backbone.head_contributions import Contributions


@torch.no_grad()
def contributions(clip: FrozenClip, images: Tensor) -> Contributions:
    """Run the image tower once, following the [CLS] row only."""
    clip.vision.check(images)
    return split.contributions(clip.vision, clip.vision.norm_in(clip.vision.embed(images)))
