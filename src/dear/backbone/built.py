"""A model that open_clip has built: its sizes, and its conversion to a lower precision."""

from __future__ import annotations

from typing import Any

import torch
from open_clip.transformer import LayerNormFp32
from torch import nn

from dear.backbone.clip import Geometry
from dear.backbone.vision import VisionTower

HUB_CONTEXT = 77
"""Tokens of a prompt for text towers of transformers, if the configuration does not say."""


def cast(model: Any, dtype: torch.dtype) -> None:
    """Convert weights and buffers to a lower precision; layer norms, rotary tables and the temperature stay in fp32."""
    for module in model.modules():
        kind = type(module).__name__
        if isinstance(module, nn.LayerNorm) and kind in ("LayerNorm", "LayerNormFp32"):
            module.__class__ = LayerNormFp32
            continue
        if kind.startswith("Rotary"):
            continue
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if name not in ("logit_scale", "logit_bias") and tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)


def geometry_of(model: Any, config: dict[str, Any]) -> Geometry:
    """The sizes of a model; 0 for those of layers that cannot be reached."""
    visual, text = model.visual, getattr(model, "text", model)
    image = VisionTower(visual, config["embed_dim"])
    blocks = getattr(getattr(text, "transformer", None), "resblocks", ())
    size = visual.image_size if isinstance(visual.image_size, int) else visual.image_size[0]
    reached = image.has_layers
    return Geometry(
        image_size=size,
        patch_size=size // image.grid[0] if reached else 0,
        vision_layers=image.depth if reached else 0,
        vision_heads=image.layers[0].heads if reached else 0,
        vision_width=image.width if reached else 0,
        vision_tokens=image.rows if reached else 0,
        text_layers=len(blocks),
        text_heads=blocks[0].attn.num_heads if blocks else 0,
        text_width=text.transformer.width if blocks else text.transformer.get_input_embeddings().weight.shape[1],
        context_length=text.context_length if blocks else config["text_cfg"].get("context_length", HUB_CONTEXT),
        vocab_size=text.vocab_size,
        embed_dim=config["embed_dim"],
        quick_gelu=bool(config.get("quick_gelu", False)),
        prefix_rows=image.prefix if reached else 0,
        pool=image.pool.kind if reached else "",
        rotary=reached and image.layers[0].turns is not None,
        causal=getattr(text, "attn_mask", None) is not None,
    )
