"""The tiny CLIP of the reference vectors, made from arithmetic alone: no weights are stored.

64 px, patch 16, width 128, 12 layers and 2 heads in both towers, context 77, CLIP's own vocabulary, joint embedding 64,
QuickGELU, OpenAI's layout. Every value is a uniform draw of NumPy's PCG64, tensor by tensor in the order of `_shapes`,
scaled by the kind of tensor so that activations stay of order one.
"""

import json
import math
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

import dear

WIDTH, LAYERS, EMBED, CONTEXT, VOCABULARY, PATCH, SIDE = 128, 12, 64, 77, 49408, 16, 64
CONFIG = {
    "quick_gelu": True,
    "vision_cfg": {"image_size": SIDE, "layers": LAYERS, "width": WIDTH, "head_width": 64, "patch_size": PATCH},
    "text_cfg": {
        "context_length": CONTEXT,
        "vocab_size": VOCABULARY,
        "width": WIDTH,
        "heads": WIDTH // 64,
        "layers": LAYERS,
    },
}


def _shapes(embed):
    """(name, shape, kind) in the order of the draws."""
    yield "positional_embedding", (CONTEXT, WIDTH), "embedding"
    yield "text_projection", (WIDTH, embed), "matrix"
    yield "token_embedding.weight", (VOCABULARY, WIDTH), "embedding"
    yield from _norm("ln_final")
    yield "visual.class_embedding", (WIDTH,), "embedding"
    yield "visual.positional_embedding", ((SIDE // PATCH) ** 2 + 1, WIDTH), "embedding"
    yield "visual.proj", (WIDTH, embed), "matrix"
    yield "visual.conv1.weight", (WIDTH, 3, PATCH, PATCH), "patches"
    yield from (*_norm("visual.ln_pre"), *_norm("visual.ln_post"))
    for tower in ("visual.transformer", "transformer"):
        for layer in range(LAYERS):
            block = f"{tower}.resblocks.{layer}"
            yield f"{block}.attn.in_proj_weight", (3 * WIDTH, WIDTH), "matrix"
            yield f"{block}.attn.in_proj_bias", (3 * WIDTH,), "bias"
            yield f"{block}.attn.out_proj.weight", (WIDTH, WIDTH), "matrix"
            yield f"{block}.attn.out_proj.bias", (WIDTH,), "bias"
            yield f"{block}.mlp.c_fc.weight", (4 * WIDTH, WIDTH), "matrix"
            yield f"{block}.mlp.c_fc.bias", (4 * WIDTH,), "bias"
            yield f"{block}.mlp.c_proj.weight", (WIDTH, 4 * WIDTH), "matrix"
            yield f"{block}.mlp.c_proj.bias", (WIDTH,), "bias"
            yield from (*_norm(f"{block}.ln_1"), *_norm(f"{block}.ln_2"))


def _norm(name):
    return (f"{name}.weight", (WIDTH,), "gain"), (f"{name}.bias", (WIDTH,), "bias")


def state(seed, embed=EMBED):
    """Every tensor, in fp32."""
    draw = np.random.Generator(np.random.PCG64(seed))
    tensors = {}
    for name, shape, kind in _shapes(embed):
        inputs = math.prod(shape[1:]) if kind == "patches" else shape[-1]
        scale = {
            "matrix": 1.5 / math.sqrt(inputs),
            "patches": 1 / math.sqrt(inputs),
            "bias": 0.1,
            "gain": 0.2,
            "embedding": 0.5,
        }[kind]
        values = (draw.random(shape, dtype=np.float64) * 2 - 1) * scale + (kind == "gain")
        tensors[name] = values.astype(np.float32)
    return {**tensors, "logit_scale": np.array(math.log(100), dtype=np.float32)}


@cache
def tiny_clip(seed=20261116, embed=EMBED, dtype=torch.float32) -> dear.FrozenClip:
    """The CLIP, loaded as a person would load one from a folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"embed_dim": embed, **CONFIG}}))
        save_file(state(seed, embed), Path(folder) / "open_clip_model.safetensors")
        return dear.load_clip(f"local-dir:{folder}").to(dtype)
