"""One transformer block of a frozen OpenCLIP tower, run our way. The only code that knows how its attention is stored.

Shapes: B batch, L tokens (keys), S tokens before them, Q query tokens, D width, H heads, E = D / H.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def run_block(
    block: Any,
    x_BLD: Tensor,
    *,
    queries_BQD: Tensor | None = None,
    past_1SD: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Return the block's output for the query rows (all rows of `x_BLD` unless `queries_BQD` holds some of them).

    `past_1SD` holds rows that come before those of `x_BLD`, are the same for the whole batch, and are keys only.
    `mask` is boolean, broadcastable to (B, H, Q, S + L), True where a query may see a key.
    """
    heads_BHQE = attend(block, x_BLD, queries_BQD=queries_BQD, past_1SD=past_1SD, mask=mask, causal=causal)
    return finish_block(block, x_BLD if queries_BQD is None else queries_BQD, heads_BHQE)


def attend(
    block: Any,
    x_BLD: Tensor,
    *,
    queries_BQD: Tensor | None = None,
    past_1SD: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """First half of a block: what each head gathers for each query, (B, H, Q, E), before the output projection."""
    attn = block.attn
    weight, bias, width = attn.in_proj_weight, attn.in_proj_bias, attn.embed_dim
    keys_BLD = block.ln_1(x_BLD)
    if queries_BQD is None:
        q, k, v = F.linear(keys_BLD, weight, bias).chunk(3, dim=-1)
    else:
        q = F.linear(block.ln_1(queries_BQD), weight[:width], bias[:width])
        k, v = F.linear(keys_BLD, weight[width:], bias[width:]).chunk(2, dim=-1)
    if past_1SD is not None:
        past_kv = F.linear(block.ln_1(past_1SD), weight[width:], bias[width:]).expand(len(k), -1, -1).chunk(2, dim=-1)
        k, v = (torch.cat([before, own], dim=1) for before, own in zip(past_kv, (k, v), strict=True))
    q_BHQE, k_BHLE, v_BHLE = (_split_heads(part, attn.num_heads) for part in (q, k, v))
    return F.scaled_dot_product_attention(q_BHQE, k_BHLE, v_BHLE, attn_mask=mask, is_causal=causal)


def finish_block(block: Any, queries_BQD: Tensor, heads_BHQE: Tensor) -> Tensor:
    """Second half: join the heads, add to the residual stream, run the MLP."""
    x_BQD = queries_BQD + block.ls_1(block.attn.out_proj(heads_BHQE.transpose(1, 2).flatten(2)))
    out_BQD: Tensor = x_BQD + mlp_term(block, x_BQD)
    return out_BQD


def mlp_term(block: Any, x_BQD: Tensor) -> Tensor:
    """What the block's MLP adds to the residual stream."""
    out_BQD: Tensor = block.ls_2(block.mlp(block.ln_2(x_BQD)))
    return out_BQD


def head_terms(block: Any, heads_BHE: Tensor) -> Tensor:
    """What each head adds to one row of the residual stream, (B, H, D); the output bias is spread over the heads."""
    attn = block.attn
    weight_DHE = attn.out_proj.weight.view(attn.embed_dim, attn.num_heads, -1)
    terms_BHD: Tensor = block.ls_1(
        torch.einsum("bhe,dhe->bhd", heads_BHE, weight_DHE) + attn.out_proj.bias / attn.num_heads
    )
    return terms_BHD


def _split_heads(x_BLD: Tensor, heads: int) -> Tensor:
    return x_BLD.view(*x_BLD.shape[:2], heads, -1).transpose(1, 2)
