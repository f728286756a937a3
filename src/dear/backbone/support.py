"""Which OpenCLIP configurations can carry attribute tokens: a ViT read at its [CLS] token and a causal text tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CUSTOM_ATTENTION = (
    "qk_norm",
    "scaled_cosine_attn",
    "scale_heads",
    "scale_attn_inner",
    "scale_attn",
    "scale_fc",
)


def unsupported(config: Mapping[str, Any]) -> str | None:
    """Say why a model configuration cannot be adapted, or None where it can."""
    vision, text = config["vision_cfg"], config["text_cfg"]
    uses_custom_attention = any(
        tower.get("block_type") == "custom" or any(tower.get(key) for key in CUSTOM_ATTENTION)
        for tower in (vision, text)
    )
    reasons = {
        "it is a captioning model (CoCa), whose image tower has an attention pooler": "multimodal_cfg" in config,
        "its image tower is a timm model (as in SigLIP) without the [CLS] token this method reads": bool(
            vision.get("timm_model_name")
        ),
        "its image tower is a ResNet, which has no attention heads to give roles to": isinstance(
            vision.get("layers", 12), list | tuple
        ),
        "its image tower has an attention pooler instead of a [CLS] token": bool(vision.get("attentional_pool")),
        f"its image tower pools with {vision.get('pool_type')!r} instead of a [CLS] token": vision.get(
            "pool_type", "tok"
        )
        != "tok",
        "its text tower is a Hugging Face model": bool(text.get("hf_model_name")),
        "its text tower is not causal": bool(text.get("no_causal_mask")),
        "its text tower is read at an extra class token instead of the end token": bool(text.get("embed_cls")),
        f"its text tower pools with {text.get('pool_type')!r} instead of the end token": text.get("pool_type", "argmax")
        not in ("argmax", "eos"),
        "its blocks use a custom attention": uses_custom_attention,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)
