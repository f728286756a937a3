"""Checks of third-party backbones: only known configuration keys, and weights in a format that cannot contain code."""

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
"""The only settings that are passed to a tokenizer: others could make it run Python code of the folder."""
LARGEST_NUMBER = 1_000_000
SAFE = ".safetensors"
PREFERRED = ("open_clip_model", "open_clip_pytorch_model", "model", "pytorch_model")


def check_config(name: str, config: Mapping[str, Any]) -> None:
    """Raise `BackboneError` for a third-party model configuration with unknown keys or impossible sizes."""
    _check_keys(name, "model_cfg", config, MODEL_KEYS)
    for tower, known in TOWER_KEYS.items():
        _check_keys(name, tower, config[tower], known)
    tokenizer = config["text_cfg"].get("tokenizer_kwargs") or {}
    if not isinstance(tokenizer, dict):
        raise BackboneError(f"The tokenizer_kwargs of {name} are not a mapping: remove them from its configuration.")
    _check_keys(name, "tokenizer_kwargs", tokenizer, TOKENIZER_KEYS)


def _check_keys(name: str, where: str, values: Mapping[str, Any], known: set[str]) -> None:
    for key, value in values.items():
        if key not in known:
            raise BackboneError(
                f"{name} sets {key!r} in its {where}, which is not allowed in a CLIP configuration: remove it."
                f"{did_you_mean(str(key), known, most=1)}"
            )
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise BackboneError(f"{name} sets {key!r} in its {where} to {value}, which is too large for a CLIP.")


def check_weights(folder: Path, *, allow_pickled: bool) -> bool:
    """Whether a folder's weights are pickled; raises `BackboneError` if they are and it is not allowed."""
    named = [folder / f"{stem}{end}" for stem in PREFERRED for end in (SAFE, ".bin", ".pth")]
    weights = next((path for path in named if path.exists()), None) or next(
        (path for end in (SAFE, ".bin", ".pth") for path in sorted(folder.glob(f"*{end}"))), None
    )
    if weights is None:
        raise BackboneError(f"{folder} contains no weights: add open_clip_model.safetensors.")
    if not weights.is_file():
        raise BackboneError(f"{weights} is not a regular file: put the weights there.")
    return check_weights_file(weights, allow_pickled=allow_pickled)


def check_weights_file(path: Path, *, allow_pickled: bool) -> bool:
    """Whether weights are in a format that can contain code; raises `BackboneError` unless that is allowed."""
    pickled = path.suffix != SAFE
    if pickled and not allow_pickled:
        raise BackboneError(
            f"{path} is not a safetensors file, and other formats can contain code: convert it, or allow this one in "
            f"Python with dear.load_clip(…, allow_pickled=True), which loads tensors only."
        )
    return pickled
