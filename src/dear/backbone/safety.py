"""Checks of third-party backbones: only known configuration keys, and weights in a format that cannot contain code."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from open_clip.model import CLIPTextCfg, CLIPVisionCfg
from safetensors import SafetensorError, safe_open

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
PICKLED = (b"\x80", b"\x93")
"""First bytes of PyTorch's former format and of a NumPy array."""
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


def check_weights(folder: Path, *, allow_pickled: bool) -> Path:
    """The weights of a folder; raise `BackboneError` if they are not in a safetensors file."""
    named = [folder / f"{stem}{end}" for stem in PREFERRED for end in (SAFE, ".bin", ".pth")]
    weights = next((path for path in named if path.exists()), None) or next(
        (path for end in (SAFE, ".bin", ".pth") for path in sorted(folder.glob(f"*{end}"))), None
    )
    if weights is None:
        raise BackboneError(f"{folder} contains no weights: add open_clip_model.safetensors.")
    if not weights.is_file():
        raise BackboneError(f"{weights} is not a regular file: put the weights there.")
    return check_weights_file(weights, allow_pickled=allow_pickled)


def check_weights_file(path: Path, *, allow_pickled: bool) -> Path:
    """The path; raise `BackboneError` for weights in a format that can contain code, unless it is allowed."""
    if path.suffix != SAFE and not allow_pickled:
        raise BackboneError(
            f"{path} is not a safetensors file, and other formats can contain code: convert it, or allow this one in "
            f"Python with dear.load_clip(…, allow_pickled=True), which loads tensors only."
        )
    return path


def check_readable(path: Path, then: str) -> None:
    """Raise `BackboneError` for a weights file with a damaged header, or without its end; `then` is what to do next."""
    try:
        if path.suffix == SAFE:
            with safe_open(path, framework="pt"):
                return
        with path.open("rb") as file:
            if not (zipfile.is_zipfile(path) or file.read(1) in PICKLED):
                raise ValueError("it is not a file of PyTorch")
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BackboneError(
            f"{path} cannot be loaded, because it is damaged ({reason}): delete it and {then}."
        ) from None
