"""Which OpenCLIP models are supported: those with a ViT that is read at its [CLS] token and a causal text tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CUSTOM_ATTENTION = ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc")


def unsupported(config: Mapping[str, Any]) -> str | None:
    """The reason why a model cannot be adapted; None if it can."""
    vision, text = config["vision_cfg"], config["text_cfg"]
    if "multimodal_cfg" in config:
        return "it is a captioning model (CoCa), whose image tower has an attention pooler"
    return _unsupported_vision(vision) or _unsupported_text(text, config.get("embed_dim"))


def _unsupported_vision(vision: Mapping[str, Any]) -> str | None:
    if vision.get("timm_model_name"):
        return "its image tower is a timm model (as in SigLIP and EVA), whose heads and [CLS] token cannot be reached"
    if isinstance(vision.get("layers", 12), list | tuple):
        return "its image tower is a ResNet, which has no attention heads to give roles to"
    if vision.get("attentional_pool"):
        return "its image tower has an attention pooler instead of a [CLS] token"
    if vision.get("pool_type", "tok") != "tok":
        return f"its image tower pools with {vision['pool_type']!r} instead of a [CLS] token"
    return _custom_attention(vision)


def _unsupported_text(text: Mapping[str, Any], embed_dim: int | None) -> str | None:
    if text.get("hf_model_name"):
        return "its text tower is a Hugging Face model"
    if text.get("no_causal_mask"):
        return "its text tower is not causal"
    if text.get("embed_cls"):
        return "its text tower is read at an extra class token instead of the end token"
    if text.get("pool_type", "argmax") not in ("argmax", "eos"):
        return f"its text tower pools with {text['pool_type']!r} instead of the end token"
    if text.get("proj_type") == "none" and text.get("width", 512) != embed_dim:
        return "its text tower has no projection into the joint embedding"
    return _custom_attention(text)


def _custom_attention(tower: Mapping[str, Any]) -> str | None:
    custom = tower.get("block_type") == "custom" or any(tower.get(key) for key in CUSTOM_ATTENTION)
    return "its blocks use a custom attention" if custom else None
