"""Names of weights in transformers' format, and the weights of open_clip that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

TEXT, VISION = "text_model", "vision_model"
State = dict[str, Tensor]
Take = Callable[[str], Tensor]
"""Where a tensor comes from: `Tensors.read`, or `Tensors.outline` for its shape only."""

_OPEN_CLIP = {
    "layer_norm1": "ln_1.",
    "layer_norm2": "ln_2.",
    "mlp.fc1": "mlp.c_fc.",
    "mlp.fc2": "mlp.c_proj.",
    "self_attn.out_proj": "attn.out_proj.",
    "qkv": "attn.in_proj_",
}
_TIMM = {
    "layer_norm1": "norm1.",
    "layer_norm2": "norm2.",
    "mlp.fc1": "mlp.fc1.",
    "mlp.fc2": "mlp.fc2.",
    "self_attn.out_proj": "attn.proj.",
    "qkv": "attn.qkv.",
}
"""Names in a layer of transformers, and in a layer of open_clip or timm; queries, keys and values are joined there."""


def clip_state(take: Take, layers: int, text_layers: int) -> State:
    """The weights of open_clip's `CLIP`, from those of a `CLIPModel` or `MetaClip2Model`."""
    return {
        "logit_scale": take("logit_scale").squeeze(),
        "visual.class_embedding": take(f"{VISION}.embeddings.class_embedding"),
        "visual.conv1.weight": take(f"{VISION}.embeddings.patch_embedding.weight"),
        "visual.positional_embedding": take(f"{VISION}.embeddings.position_embedding.weight"),
        "visual.proj": take("visual_projection.weight").T.contiguous(),
        "token_embedding.weight": take(f"{TEXT}.embeddings.token_embedding.weight"),
        "positional_embedding": take(f"{TEXT}.embeddings.position_embedding.weight"),
        "text_projection": take("text_projection.weight").T.contiguous(),
        **_both(take, f"{VISION}.pre_layrnorm", "visual.ln_pre"),
        **_both(take, f"{VISION}.post_layernorm", "visual.ln_post"),
        **_both(take, f"{TEXT}.final_layer_norm", "ln_final"),
        **_blocks(take, VISION, layers, "visual.transformer.resblocks", _OPEN_CLIP),
        **_blocks(take, TEXT, text_layers, "transformer.resblocks", _OPEN_CLIP),
    }


def siglip_state(take: Take, width: int, layers: int, text_layers: int) -> State:
    """The weights of open_clip's `CustomTextCLIP` with a timm tower, from those of a `SiglipModel`."""
    head, pool = f"{VISION}.head", "visual.trunk.attn_pool"
    state = {
        "logit_scale": take("logit_scale").squeeze(),
        "logit_bias": take("logit_bias").squeeze(),
        "visual.trunk.pos_embed": take(f"{VISION}.embeddings.position_embedding.weight")[None],
        "visual.trunk.attn_pool.latent": take(f"{head}.probe"),
        "text.token_embedding.weight": take(f"{TEXT}.embeddings.token_embedding.weight"),
        "text.positional_embedding": take(f"{TEXT}.embeddings.position_embedding.weight"),
        **_both(take, f"{VISION}.embeddings.patch_embedding", "visual.trunk.patch_embed.proj"),
        **_both(take, f"{VISION}.post_layernorm", "visual.trunk.norm"),
        **_both(take, f"{head}.attention.out_proj", f"{pool}.proj"),
        **_both(take, f"{head}.layernorm", f"{pool}.norm"),
        **_both(take, f"{head}.mlp.fc1", f"{pool}.mlp.fc1"),
        **_both(take, f"{head}.mlp.fc2", f"{pool}.mlp.fc2"),
        **_both(take, f"{TEXT}.final_layer_norm", "text.ln_final"),
        **_both(take, f"{TEXT}.head", "text.text_projection"),
        **_blocks(take, VISION, layers, "visual.trunk.blocks", _TIMM),
        **_blocks(take, TEXT, text_layers, "text.transformer.resblocks", _OPEN_CLIP),
    }
    for kind in ("weight", "bias"):
        joined = take(f"{head}.attention.in_proj_{kind}")
        state[f"{pool}.q.{kind}"], state[f"{pool}.kv.{kind}"] = joined[:width], joined[width:]
    return state


def _both(take: Take, theirs: str, ours: str) -> State:
    """Weight and bias of a module."""
    return {f"{ours}.{kind}": take(f"{theirs}.{kind}") for kind in ("weight", "bias")}


def _blocks(take: Take, tower: str, layers: int, target: str, names: Mapping[str, str]) -> State:
    """The weights of all layers of a tower."""
    state = {}
    for layer in range(layers):
        for kind in ("weight", "bias"):
            source = f"{tower}.encoder.layers.{layer}"
            for theirs, ours in names.items():
                parts = [f"self_attn.{part}_proj" for part in "qkv"] if theirs == "qkv" else [theirs]
                taken = [take(f"{source}.{part}.{kind}") for part in parts]
                state[f"{target}.{layer}.{ours}{kind}"] = torch.cat(taken) if len(taken) > 1 else taken[0]
    return state
