"""A tiny random Llama in a folder, as a person would have one: config, safetensors, a tokenizer of bytes."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

WIDTH, INNER, LAYERS, HEADS, KV_HEADS = 16, 24, 2, 4, 2


def write_llama(folder, tensors, *, heads, kv_heads, eps=1e-5, theta=10000.0, kind="llama") -> str:
    """Write a Llama, or its like, with these weights (without the leading "model."), but no tokenizer."""
    vocabulary, width = tensors["embed_tokens.weight"].shape
    layers = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
    config = {
        "architectures": [f"{kind.title()}Model"],
        "model_type": kind,
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": tensors["layers.0.mlp.up_proj.weight"].shape[0],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "max_position_embeddings": 2048,
        "dtype": "float32",
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), Path(folder) / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@cache
def tiny_lm(seed=5, kind="llama") -> str:
    """The folder of a "llama", "mistral" or "qwen2", which has biases, written once per process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    draw = np.random.Generator(np.random.PCG64(seed))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    head = WIDTH // HEADS

    def matrix(*shape):
        return (draw.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    tensors = {"embed_tokens.weight": matrix(len(alphabet), WIDTH), "norm.weight": np.ones(WIDTH, np.float32)}
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.k_proj": (KV_HEADS * head, WIDTH),
            "self_attn.v_proj": (KV_HEADS * head, WIDTH),
            "self_attn.o_proj": (WIDTH, WIDTH),
            "mlp.gate_proj": (INNER, WIDTH),
            "mlp.up_proj": (INNER, WIDTH),
            "mlp.down_proj": (WIDTH, INNER),
        }
        tensors |= {f"layers.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        if kind == "qwen2":
            biases = {name: shape[:1] for name, shape in shapes.items() if name[-6:] in ("q_proj", "k_proj", "v_proj")}
            tensors |= {f"layers.{layer}.{name}.bias": matrix(*shape) for name, shape in biases.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"layers.{layer}.{norm}.weight"] = np.ones(WIDTH, np.float32)
    write_llama(folder, tensors, heads=HEADS, kv_heads=KV_HEADS, kind=kind)
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return str(folder)
