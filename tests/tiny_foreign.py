"""Tiny CLIPs in transformers' format: written by transformers itself, or from the weights of an open_clip model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WORDS = ("<pad>", "<s>", "</s>", "[UNK]", "a", "photo", "of", "cat", "dog", "the", "hot", "air", "balloon", "x")


def clip_model(
    act: str = "quick_gelu", eos: int = 2, *, kind: str = "CLIP", vocab: int = 600, width: int = 64, **text: Any
) -> nn.Module:
    """A `CLIPModel` or `MetaClip2Model` with noise on every parameter."""
    import transformers

    text = {"hidden_size": 48, "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 4, **text}
    text |= {"vocab_size": vocab, "max_position_embeddings": 16, "hidden_act": act, "eos_token_id": eos}
    vision = {"hidden_size": width, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    vision |= {"image_size": 32, "patch_size": 8, "hidden_act": act}
    config = getattr(transformers, f"{kind}Config")(projection_dim=40, text_config=text, vision_config=vision)
    return noisy(getattr(transformers, f"{kind}Model")(config))


def siglip_model(**vision: Any) -> nn.Module:
    """A `SiglipModel` with noise on every parameter."""
    import transformers

    text = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    text |= {"vocab_size": len(WORDS), "max_position_embeddings": 16, "projection_size": 64}
    usual = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 5, "num_attention_heads": 4}
    usual |= {"image_size": 32, "patch_size": 8}
    return noisy(transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=usual | vision)))


def noisy(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.05
    return model.eval().requires_grad_(False)


def write_words(folder: Path, words: Sequence[str] = WORDS, template: str = "<s> $A </s>") -> None:
    """Write a tokenizer of whole words, as transformers does."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    special = [(word, ids[word]) for word in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>", "eos_token": "</s>"}))


def write_images(folder: Path, **settings: Any) -> None:
    """Write the settings of CLIP's image processor for 32 pixels."""
    usual = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
    (folder / "preprocessor_config.json").write_text(json.dumps({**usual, "resample": 3, **settings}))


def edit_config(folder: Path, **changes: Any) -> None:
    """Change entries of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, **changes: Tensor | None) -> None:
    """Replace or remove weights; dots of their names are written as two underscores."""
    path = folder / "model.safetensors"
    weights = load_file(path) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor.contiguous() for name, tensor in weights.items() if tensor is not None}, path)


def write_shards(folder: Path, **names: str) -> None:
    """Write the weights as two files with an index; `names` replaces the files that the index names."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = {"a": dict(list(weights.items())[::2]), "b": dict(list(weights.items())[1::2])}
    shards = {}
    for half, tensors in halves.items():
        save_file(tensors, folder / f"{half}.safetensors")
        shards |= dict.fromkeys(tensors, names.get(half, f"{half}.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def as_clip_model(folder: Path, model: Any, config: dict[str, Any]) -> Path:
    """Write an open_clip CLIP as transformers would: the inverse of what is tested, written without it."""
    ours = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layer = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    layer |= {"attn.out_proj": "self_attn.out_proj"}
    theirs = {
        "logit_scale": ours["logit_scale"],
        "vision_model.embeddings.class_embedding": ours["visual.class_embedding"],
        "vision_model.embeddings.patch_embedding.weight": ours["visual.conv1.weight"],
        "vision_model.embeddings.position_embedding.weight": ours["visual.positional_embedding"],
        "vision_model.embeddings.position_ids": torch.arange(len(ours["visual.positional_embedding"]))[None],
        "visual_projection.weight": ours["visual.proj"].T.contiguous(),
        "text_model.embeddings.token_embedding.weight": ours["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": ours["positional_embedding"],
        "text_projection.weight": ours["text_projection"].T.contiguous(),
    }
    norms = {"visual.ln_pre": "vision_model.pre_layrnorm", "visual.ln_post": "vision_model.post_layernorm"}
    for kind in ("weight", "bias"):
        for name, other in {**norms, "ln_final": "text_model.final_layer_norm"}.items():
            theirs[f"{other}.{kind}"] = ours[f"{name}.{kind}"]
        for start, tower in (("visual.transformer", "vision_model"), ("transformer", "text_model")):
            cfg = config["vision_cfg" if tower == "vision_model" else "text_cfg"]
            for number in range(cfg["layers"]):
                source, target = f"{start}.resblocks.{number}", f"{tower}.encoder.layers.{number}"
                for name, other in layer.items():
                    theirs[f"{target}.{other}.{kind}"] = ours[f"{source}.{name}.{kind}"]
                parts = ours[f"{source}.attn.in_proj_{kind}"].chunk(3)
                for letter, part in zip("qkv", parts, strict=True):
                    theirs[f"{target}.self_attn.{letter}_proj.{kind}"] = part.clone()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(theirs, folder / "model.safetensors")
    vision, text = config["vision_cfg"], config["text_cfg"]
    act = "quick_gelu" if config.get("quick_gelu") else "gelu"
    towers = {
        "vision_config": {"num_attention_heads": vision["width"] // vision["head_width"], "hidden_act": act},
        "text_config": {"num_attention_heads": text["heads"], "hidden_act": act, "eos_token_id": 2},
    }
    (folder / "config.json").write_text(json.dumps({"model_type": "clip", "architectures": ["CLIPModel"], **towers}))
    return folder
