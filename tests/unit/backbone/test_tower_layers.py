"""A layer in its normal form is the stock block, and its parts can be replaced."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dear.backbone.layer_kinds import layer_of
from helpers import TINY_CONFIGS


@pytest.fixture(params=TINY_CONFIGS)
def clip(request, tiny_clips):
    return tiny_clips[request.param]


@pytest.fixture(params=["vision", "text"])
def block(request, clip):
    text = getattr(clip.model, "text", clip.model)
    return {"vision": clip.model.visual, "text": text}[request.param].transformer.resblocks[1]


@pytest.fixture
def layer(block):
    return layer_of(block)


def rows(block, count, length, seed=0):
    width = block.attn.embed_dim
    return torch.randn(count, length, width, generator=torch.Generator().manual_seed(seed))


def some_mask(heads, length, keys=None, seed=1):
    mask = torch.rand(1, heads, length, keys or length, generator=torch.Generator().manual_seed(seed)) > 0.4
    return mask | torch.eye(length, keys or length, dtype=torch.bool)  # every row sees something


def additive(mask):
    return torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))


def test_bit_for_bit_the_stock_block(block, layer):
    """Like with like: gradients keep the stock block from its fast path, which differs in the last bits, and so does
    its product over several sequences, which it transposes.
    """
    x = rows(block, 1, 7).requires_grad_()
    assert torch.equal(layer.run(x), block(x))
    several = rows(block, 3, 7).requires_grad_()
    assert torch.allclose(layer.run(several), block(several), atol=1e-6)


def test_bit_for_bit_the_stock_block_with_a_mask_per_head(block, layer):
    x = rows(block, 1, 7).requires_grad_()
    mask = some_mask(block.attn.num_heads, 7)
    theirs = block(x, attn_mask=additive(mask)[0])
    assert torch.equal(layer.run(x, mask=mask), theirs)
    assert not torch.equal(layer.run(x), theirs)
    several = rows(block, 3, 7).requires_grad_()
    each = additive(mask).repeat(3, 1, 1, 1)
    assert torch.allclose(layer.run(several, mask=mask), block(several, attn_mask=each.flatten(0, 1)), atol=1e-6)
    assert torch.equal(layer.run(several, mask=mask), layer.run(several, mask=mask.repeat(3, 1, 1, 1)))


def test_causal_is_the_triangular_mask(block, layer):
    x = rows(block, 1, 6).requires_grad_()
    theirs = block(x, attn_mask=torch.full((6, 6), float("-inf")).triu(1))
    assert torch.allclose(layer.run(x, causal=True), theirs, atol=1e-6)
    assert torch.equal(layer.run(x, mask=torch.ones(6, 6, dtype=torch.bool).tril()), theirs)


def test_query_rows_are_rows_of_the_whole(block, layer):
    x = rows(block, 2, 6)
    mask = some_mask(block.attn.num_heads, 6)
    whole = layer.run(x, mask=mask)
    chosen = [0, 4, 3]
    assert torch.allclose(layer.run(x, queries=x[:, chosen], mask=mask[:, :, chosen]), whole[:, chosen], atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_past_is_rows_before_that_are_keys_only(block, layer, groups):
    x, past = rows(block, 4, 5), rows(block, groups, 3, seed=2)
    whole = torch.cat([past.repeat_interleave(4 // groups, dim=0), x], dim=1)
    expected = layer.run(whole, causal=True)
    causal = torch.ones(5, 8, dtype=torch.bool).tril(3)
    assert torch.allclose(layer.run(x, past=past, mask=causal), expected[:, 3:], atol=1e-6)
    assert torch.allclose(layer.run(past, causal=True), expected[:: 4 // groups, :3], atol=1e-6)
    end = layer.run(x, queries=x[:, -1:], past=past)
    assert torch.allclose(end, expected[:, -1:], atol=1e-6)


def test_replaced_projections_are_merged_weights(block, layer):
    """LoRA on queries and values: beside the frozen weights, or added to them."""
    width = block.attn.embed_dim
    generator = torch.Generator().manual_seed(3)
    down = {part: 0.1 * torch.randn(width, 2, generator=generator) for part in "qv"}
    up = {part: torch.randn(2, width, generator=generator) for part in "qv"}

    def project(x, which):
        return tuple(
            made + x @ down[part] @ up[part] if part in down else made
            for part, made in zip(which, layer.project(x, which), strict=True)
        )

    merged = copy.deepcopy(block)
    with torch.no_grad():
        for place, part in enumerate("qkv"):
            if part in down:
                merged.attn.in_proj_weight[place * width : (place + 1) * width] += (down[part] @ up[part]).T
    x = rows(block, 2, 5)
    for how in ({}, {"queries": x[:, :2]}, {"past": rows(block, 1, 2, seed=4)}):
        ours, theirs = replace(layer, project=project).run(x, **how), layer_of(merged).run(x, **how)
        assert float((ours - theirs).norm() / theirs.norm()) <= 1e-6
        assert not torch.allclose(layer.run(x, **how), theirs, atol=1e-3)


def test_weights_are_read_at_call_time(block):
    block = copy.deepcopy(block)
    layer, x = layer_of(block), rows(block, 1, 4)
    before = layer.run(x)
    with torch.no_grad():
        block.attn.in_proj_weight.mul_(2)
        block.attn.out_proj.weight.data = block.attn.out_proj.weight * 3
    after = layer.run(x.clone().requires_grad_())
    assert torch.equal(after, block(x.clone().requires_grad_()))
    assert not torch.allclose(before, after, atol=1e-3)


def test_a_side_term_is_added(block, layer):
    x = rows(block, 2, 5)
    adapter = torch.nn.Linear(block.attn.embed_dim, block.attn.embed_dim)
    beside = replace(layer, side=adapter)
    assert torch.equal(beside.run(x), layer.run(x) + adapter(block.ln_1(x)))
    queries = x[:, 1:3]
    assert torch.equal(beside.run(x, queries=queries), layer.run(x, queries=queries) + adapter(block.ln_1(queries)))


def test_attention_weights_are_those_of_multihead_attention(block, layer):
    x = rows(block, 3, 6)
    normed = block.ln_1(x)
    _, theirs = block.attn(normed, normed, normed, need_weights=True, average_attn_weights=False)
    ours = layer.weights(x, x[:, [0, 2]])
    assert ours.shape == (3, block.attn.num_heads, 2, 6)
    assert torch.allclose(ours.sum(-1), torch.ones(ours.shape[:-1]), atol=1e-6)
    assert torch.allclose(ours, theirs[:, :, [0, 2]], atol=1e-6)


def test_attend_is_what_heads_gather(block, layer):
    x = rows(block, 2, 5)
    _, value = layer.project(block.ln_1(x), "kv")
    split = value.unflatten(-1, (block.attn.num_heads, -1)).transpose(1, 2)
    assert torch.allclose(layer.attend(x), layer.weights(x, x) @ split, atol=1e-6)
    out = F.linear(layer.attend(x).transpose(1, 2).flatten(2), block.attn.out_proj.weight, block.attn.out_proj.bias)
    y = x + block.ls_1(out)
    assert torch.allclose(layer.run(x), y + block.ls_2(block.mlp(block.ln_2(y))), atol=1e-6)
