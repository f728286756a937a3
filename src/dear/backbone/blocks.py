"""One transformer block of a frozen OpenCLIP tower, run our way. The only code that knows how its attention is stored.

Shapes: B batch, L tokens (keys), Q query tokens, D width, H heads, E = D / H.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor


def run_block(
    block: Any,
    x_BLD: Tensor,
    *,
    queries_BQD: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Return the block's output for the query rows (all rows of `x_BLD` unless `queries_BQD` holds some of them).

    `mask` is boolean, broadcastable to (B, H, Q, L), True where a query may see a key.
    """
    queries = x_BLD if queries_BQD is None else queries_BQD
    attended = _attention(
        block.attn,
        block.ln_1(x_BLD),
        None if queries_BQD is None else block.ln_1(queries_BQD),
        mask=mask,
        causal=causal,
    )
    x_BQD = queries + block.ls_1(attended)
    out_BQD: Tensor = x_BQD + block.ls_2(block.mlp(block.ln_2(x_BQD)))
    return out_BQD


def _attention(attn: Any, keys_BLD: Tensor, queries_BQD: Tensor | None, *, mask: Tensor | None, causal: bool) -> Tensor:
    weight, bias, width = attn.in_proj_weight, attn.in_proj_bias, attn.embed_dim
    if queries_BQD is None:
        q, k, v = F.linear(keys_BLD, weight, bias).chunk(3, dim=-1)
    else:
        q = F.linear(queries_BQD, weight[:width], bias[:width])
        k, v = F.linear(keys_BLD, weight[width:], bias[width:]).chunk(2, dim=-1)
    q_BHQE, k_BHLE, v_BHLE = (_split_heads(part, attn.num_heads) for part in (q, k, v))
    heads_BHQE = F.scaled_dot_product_attention(q_BHQE, k_BHLE, v_BHLE, attn_mask=mask, is_causal=causal)
    out: Tensor = attn.out_proj(heads_BHQE.transpose(1, 2).flatten(2))
    return out


def _split_heads(x_BLD: Tensor, heads: int) -> Tensor:
    return x_BLD.view(*x_BLD.shape[:2], heads, -1).transpose(1, 2)
