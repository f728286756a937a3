"""From the transformer blocks of open_clip and timm to `Layer`. The only code that knows how they store attention.

Blocks are recognised by their exact class, so that a subclass with another forward pass is not mistaken for one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.layers import Layer, Part, Projection, same

Turns = Callable[[int], Tensor]


def layer_of(block: Any, turns: Turns | None = None) -> Layer | None:
    """The `Layer` of a block, with rotary positions if the tower has them; None if the block is of another kind."""
    make = _KINDS.get(_kind(block))
    return make(block, turns) if make else None


def present(module: Any) -> Part:
    """The module, or `same` if there is none or it does nothing."""
    return same if module is None or isinstance(module, nn.Identity | nn.Dropout) else module


def _kind(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _open_clip(block: Any, turns: Turns | None) -> Layer:
    """open_clip's `ResidualAttentionBlock`."""
    attention = block.attn
    return Layer(
        heads=attention.num_heads,
        project=_in_proj(attention),
        out=attention.out_proj,
        mlp=block.mlp,
        pre1=block.ln_1,
        pre2=block.ln_2,
        post1=block.ls_1,
        post2=block.ls_2,
    )


def _open_clip_custom(block: Any, turns: Turns | None) -> Layer | None:
    """open_clip's `CustomResidualAttentionBlock`, except for options that no published weights use."""
    attention, scaled, normed = block.attn, present(block.ls_1), present(block.ln_attn)
    if attention.logit_scale is not None or attention.head_scale is not None or same not in (scaled, normed):
        return None
    return Layer(
        heads=attention.num_heads,
        project=_in_proj(attention),
        out=attention.out_proj,
        mlp=block.mlp,
        pre1=block.ln_1,
        pre2=block.ln_2,
        post1=scaled if normed is same else normed,
        post2=present(block.ls_2),
        q_norm=present(attention.ln_q),
        k_norm=present(attention.ln_k),
        inner=present(attention.ln_inner),
    )


def _timm(block: Any, turns: Turns | None) -> Layer | None:
    """timm's `Block`, `EvaBlock` and `EvaBlockPostNorm`, except with gates or fewer keys than queries."""
    attention = block.attn
    known = _kind(attention) in _TIMM_ATTENTION
    if not known or attention.gate is not None or getattr(attention, "num_kv_groups", 1) > 1:
        return None
    norms_after = _kind(block).endswith("EvaBlockPostNorm")
    scales = ("gamma_1", "gamma_2") if hasattr(block, "gamma_1") else ("ls1", "ls2")
    before = (same, same) if norms_after else (block.norm1, block.norm2)
    after = (block.norm1, block.norm2) if norms_after else tuple(_scale(block, name) for name in scales)
    return Layer(
        heads=attention.num_heads,
        project=_apart(attention) if attention.qkv is None else _fused(attention),
        out=attention.proj,
        mlp=block.mlp,
        pre1=before[0],
        pre2=before[1],
        post1=after[0],
        post2=after[1],
        q_norm=present(attention.q_norm),
        k_norm=present(attention.k_norm),
        inner=present(attention.norm),
        turns=turns,
        halves=getattr(attention, "rotate_half", False),
    )


def _scale(block: Any, name: str) -> Part:
    """The scale of a term, which timm stores as a module or as a parameter."""
    scale = getattr(block, name)
    if not isinstance(scale, nn.Parameter):
        return present(scale)

    def part(x: Tensor) -> Tensor:
        weight: Tensor = getattr(block, name)
        return x * weight

    return part


def _in_proj(attention: Any) -> Projection:
    """Queries, keys and values from the matrix `in_proj_weight`."""

    def project(x: Tensor, which: str) -> tuple[Tensor, ...]:
        return _product(x, which, attention.in_proj_weight, attention.in_proj_bias)

    return project


def _fused(attention: Any) -> Projection:
    """Queries, keys and values from timm's module `qkv`; EVA stores its biases apart."""

    def project(x: Tensor, which: str) -> tuple[Tensor, ...]:
        bias = attention.qkv.bias
        if bias is None and getattr(attention, "q_bias", None) is not None:
            bias = torch.cat([attention.q_bias, attention.k_bias, attention.v_bias])
        return _product(x, which, attention.qkv.weight, bias)

    return project


def _apart(attention: Any) -> Projection:
    """Queries, keys and values from three modules."""

    def project(x: Tensor, which: str) -> tuple[Tensor, ...]:
        return tuple(_linear(x, getattr(attention, f"{letter}_proj")) for letter in which)

    return project


def _product(x: Tensor, which: str, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """Some of the three parts of a fused matrix."""
    first, last = {"qkv": (0, 3), "q": (0, 1), "kv": (1, 3)}[which]
    width = weight.shape[0] // 3
    rows = slice(first * width, last * width)
    part = None if bias is None else bias[rows].to(x.dtype)
    return F.linear(x, weight[rows].to(x.dtype), part).chunk(last - first, dim=-1)


def _linear(x: Tensor, module: nn.Linear) -> Tensor:
    return F.linear(x, module.weight.to(x.dtype), None if module.bias is None else module.bias.to(x.dtype))


_KINDS: dict[str, Callable[[Any, Turns | None], Layer | None]] = {
    "open_clip.transformer.ResidualAttentionBlock": _open_clip,
    "open_clip.transformer.CustomResidualAttentionBlock": _open_clip_custom,
    "timm.models.vision_transformer.Block": _timm,
    "timm.models.eva.EvaBlock": _timm,
    "timm.models.eva.EvaBlockPostNorm": _timm,
}
_TIMM_ATTENTION = (
    "timm.layers.attention.Attention",
    "timm.layers.attention.AttentionRope",
    "timm.models.eva.EvaAttention",
)
