"""Small CLIPs of every family: shrunken timm models under names of their own, which open_clip then builds by config.

Every parameter gets noise, loud in queries, keys and values: zero latents, heads and scales would hide mistakes, and
with timm's small initial values attention is nearly uniform.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.layers import LayerNorm
from timm.models import eva, register_model, vision_transformer, vision_transformer_hybrid, vitamin
from timm.models.vitamin import GeGluMlp, VitCfg, VitConvCfg
from torch import nn

import dear

EMBED = 40
SIZES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 5, "num_heads": 4}
LOUD = ("qkv", "in_proj", "q_proj", "k_proj", "attn_pool")


def _entry(name: str, build: Callable[..., nn.Module]) -> None:
    def make(pretrained=False, pretrained_cfg=None, pretrained_cfg_overlay=None, cache_dir=None, **options):
        model = build(**options)
        model.default_cfg = model.pretrained_cfg = {}
        return model

    make.__name__, make.__module__ = name, __name__
    register_model(make)


def _vit(name: str, **options: Any) -> None:
    _entry(name, lambda **more: vision_transformer.VisionTransformer(**{**SIZES, **options, **more}))


def _eva(name: str, **options: Any) -> None:
    _entry(name, lambda **more: eva.Eva(**{**SIZES, **options, **more}))


def _conv_stem(**options: Any) -> nn.Module:
    stem = vision_transformer_hybrid.ConvStem(
        channels=(16, 16, 64), stride=(4, 2, 2), kernel_size=(4, 2, 2), padding=0, act_layer=nn.GELU
    )
    embed = partial(vision_transformer_hybrid.HybridEmbed, backbone=stem, proj=False)
    sizes = {**SIZES, "patch_size": 1, "no_embed_class": True, "embed_layer": embed}
    return vision_transformer.VisionTransformer(**{**sizes, **options})


def _vitamin(**options: Any) -> nn.Module:
    stages = VitCfg(
        embed_dim=(16, 32, 64),
        depths=(1, 1, 1),
        stem_width=16,
        conv_cfg=VitConvCfg(norm_layer="layernorm2d", norm_eps=1e-6),
        head_type="1d",
    )
    sizes = {"img_size": 32, "embed_dim": 64, "depth": 5, "num_heads": 4, "mlp_layer": GeGluMlp, "mlp_ratio": 2.0}
    pool = {"class_token": False, "global_pool": "avg"}
    return vitamin._create_vitamin("vitamin_small_224", embed_cfg=stages, **{**sizes, **pool, **options})


PE = {
    "attn_type": "rope",
    "use_pre_transformer_norm": True,
    "use_rot_pos_emb": True,
    "ref_feat_shape": (4, 4),
    "rope_grid_indexing": "xy",
    "attn_pool_num_heads": 8,
    "attn_pool_mlp_ratio": 4.0,
    "norm_layer": partial(LayerNorm, eps=1e-5),
    "global_pool": "map",
}
_vit("tiny_siglip", class_token=False, global_pool="map")
_vit("tiny_siglip_gopt", class_token=False, global_pool="map", act_layer="gelu_tanh")
_vit("tiny_clip", pre_norm=True, norm_layer=partial(LayerNorm, eps=1e-5), global_pool="token")
_vit("tiny_registers", reg_tokens=3, init_values=0.1, qk_norm=True, global_pool="avg", no_embed_class=True)
_vit("tiny_gap", class_token=False, global_pool="avg", init_values=0.1)
_eva("tiny_eva01", global_pool="token")
_eva(
    "tiny_eva02",
    qkv_fused=False,
    mlp_ratio=4 * 2 / 3,
    swiglu_mlp=True,
    scale_mlp=True,
    scale_attn_inner=True,
    use_rot_pos_emb=True,
    ref_feat_shape=(16, 16),
    global_pool="token",
)
_eva("tiny_eva02e", use_post_norm=True, global_pool="token")
_eva("tiny_pe", rope_grid_offset=1.0, **PE)
_eva("tiny_pe_g", class_token=False, **PE)
_entry("tiny_conv_stem", _conv_stem)
_entry("tiny_vitamin", _vitamin)


def _own(**options: Any) -> dict[str, Any]:
    return {"image_size": 32, "layers": 5, "width": 64, "head_width": 16, "patch_size": 8, **options}


def _timm(name: str, pool: str, proj: str | None) -> dict[str, Any]:
    return {"timm_model_name": name, "timm_pool": pool, "timm_proj": proj, "image_size": 32}


IMAGES: dict[str, dict[str, Any]] = {
    "clip": _own(),
    "clip-scales": _own(ls_init_value=0.1),
    "clipa": _own(no_ln_pre=True, pool_type="avg", final_ln_after_pool=True, norm_kwargs={"eps": 1e-6}),
    "average": _own(pool_type="avg"),
    "custom": _own(qk_norm=True, scale_attn_inner=True, scale_attn=True, scale_fc=True),
    "siglip": _timm("tiny_siglip", "map", "none"),
    "siglip-gopt": _timm("tiny_siglip_gopt", "map", "none"),
    "mobileclip2-l": _timm("tiny_clip", "token", None),
    "mobileclip-b": _timm("tiny_conv_stem", "token", None),
    "vitamin": _timm("tiny_vitamin", "", "linear"),
    "gap": _timm("tiny_gap", "", "linear"),
    "registers": _timm("tiny_registers", "avg", None),
    "eva01": _timm("tiny_eva01", "token", None),
    "eva02": _timm("tiny_eva02", "token", None),
    "eva02-e": _timm("tiny_eva02e", "token", None),
    "pe": _timm("tiny_pe", "map", None),
    "pe-g": _timm("tiny_pe_g", "map", None),
}
"""`vision_cfg` of the 17 image towers whose layers can be reached."""

_TEXT: dict[str, Any] = {"context_length": 32, "vocab_size": 49408, "width": 48, "heads": 4, "layers": 5}
TEXTS: dict[str, dict[str, Any]] = {
    "causal": _TEXT,
    "eos": {**_TEXT, "pool_type": "eos", "eos_id": 49407},
    "siglip": {**_TEXT, "no_causal_mask": True, "pool_type": "last", "proj_bias": True},
    "mobileclip": {**_TEXT, "no_causal_mask": True},
    "padded": {**_TEXT, "no_causal_mask": True, "pool_type": "first"},
    "coca": {**_TEXT, "embed_cls": True},
}
"""`text_cfg` of the six text towers of open_clip."""


def noisy(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with noise on every parameter."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        quiet = 0.02 if parameter.ndim > 1 else 0.1
        scale = 0.15 if parameter.ndim > 1 and any(word in name for word in LOUD) else quiet
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.eval().requires_grad_(False)


def tiny_clip(folder: Path, image: str, text: str) -> dear.FrozenClip:
    """A CLIP by the real loader, from a configuration in a folder, with noise on every parameter."""
    clip = dear.load_clip(f"local-dir:{write_folder(folder, image, text)}", "random")
    if text == "padded":
        clip.model.text.use_pad_mask = True  # no configuration says so
    noisy(clip.model, seed=3)
    return clip


def write_folder(folder: Path, image: str, text: str) -> Path:
    """Write the configuration of a CLIP into a folder; its weights are random."""
    config = {"embed_dim": 64 if "siglip" in image else EMBED, "custom_text": True}
    config |= {"vision_cfg": IMAGES[image], "text_cfg": TEXTS[text]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    return folder
