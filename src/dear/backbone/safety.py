"""What a backbone's folder or repository may say and bring: plain numbers and words, and weights that run no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from open_clip.model import CLIPTextCfg, CLIPVisionCfg

from dear.errors import BackboneError, did_you_mean

MODEL_KEYS = {
    "embed_dim",
    "vision_cfg",
    "text_cfg",
    "multimodal_cfg",
    "quick_gelu",
    "custom_text",
    "init_logit_scale",
    "init_logit_bias",
    "nonscalar_logit_scale",
}
TOWER_KEYS = {
    "vision_cfg": {one.name for one in fields(CLIPVisionCfg)},
    "text_cfg": {one.name for one in fields(CLIPTextCfg)},
}
TOKENIZER_KEYS = {"clean", "strip_sep_token", "language"}
"""The only settings that reach a tokenizer: others could make it run the folder's own Python."""
LARGEST_NUMBER = 1_000_000
SAFE = ".safetensors"
PREFERRED = ("open_clip_model", "open_clip_pytorch_model", "model", "pytorch_model")


def check_config(name: str, config: Mapping[str, Any]) -> None:
    """Refuse a model configuration from elsewhere that says anything but what shapes a CLIP."""
    _check_keys(name, "model_cfg", config, MODEL_KEYS)
    for tower, known in TOWER_KEYS.items():
        _check_keys(name, tower, config[tower], known)
    tokenizer = config["text_cfg"].get("tokenizer_kwargs") or {}
    if not isinstance(tokenizer, dict):
        raise BackboneError(f"{name} has tokenizer_kwargs that are no settings: remove them from its configuration.")
    _check_keys(name, "tokenizer_kwargs", tokenizer, TOKENIZER_KEYS)


def _check_keys(name: str, where: str, given: Mapping[str, Any], known: set[str]) -> None:
    for key, value in given.items():
        if key not in known:
            raise BackboneError(
                f"{name} sets {key!r} in its {where}, which no CLIP configuration of ours may: remove it."
                f"{did_you_mean(str(key), known, most=1)}"
            )
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise BackboneError(f"{name} sets {key!r} in its {where} to {value}, which is no size of a CLIP.")


def check_weights(folder: Path, *, allow_pickled: bool) -> None:
    """Refuse a folder whose weights would not be read from a safetensors file."""
    named = [folder / f"{stem}{end}" for stem in PREFERRED for end in (SAFE, ".bin", ".pth")]
    found = next((path for path in named if path.exists()), None) or next(
        (path for end in (SAFE, ".bin", ".pth") for path in sorted(folder.glob(f"*{end}"))), None
    )
    if found is None:
        raise BackboneError(f"{folder} holds no weights: it needs open_clip_model.safetensors.")
    if not found.is_file():
        raise BackboneError(f"{found} is not a regular file: put the weights there.")
    check_weights_file(found, allow_pickled=allow_pickled)


def check_weights_file(path: Path, *, allow_pickled: bool) -> None:
    """Refuse weights in a format that can hold code, unless that was allowed."""
    if path.suffix != SAFE and not allow_pickled:
        raise BackboneError(
            f"{path} is not a safetensors file, and other formats can hold code: convert it, or allow this one in "
            f"Python with dear.load_clip(…, allow_pickled=True), which loads tensors only."
        )
