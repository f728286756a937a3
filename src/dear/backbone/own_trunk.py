"""The image tower of the world's CLIP of the other kind, a timm model: vision transformer with attention pooling.

timm knows no model of this size, so loading makes it known under one name; nothing else is ever registered.
"""

from __future__ import annotations

from typing import Any

from torch import nn

TRUNK = "dear_world_siglip"
"""Name of the image tower in timm."""


def register() -> None:
    """Make the image tower known to timm, once."""
    from timm.models import is_model, register_model

    if not is_model(TRUNK):
        register_model(dear_world_siglip)


def dear_world_siglip(
    pretrained: bool = False, pretrained_cfg: Any = None, pretrained_cfg_overlay: Any = None, **options: Any
) -> nn.Module:
    """A vision transformer of the same size as the world's CLIP, with attention pooling instead of a [CLS] token."""
    from timm.models.vision_transformer import VisionTransformer

    options = {"class_token": False, "global_pool": "map", **options}
    options.pop("cache_dir", None)
    trunk: Any = VisionTransformer(img_size=64, patch_size=8, embed_dim=128, depth=12, num_heads=8, **options)
    trunk.default_cfg = trunk.pretrained_cfg = {}
    return trunk  # type: ignore[no-any-return]


__all__ = ["TRUNK", "dear_world_siglip", "register"]
