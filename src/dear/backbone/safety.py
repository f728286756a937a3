"""Checks of third-party backbones: only known configuration keys, and weights in a format that cannot contain code."""

from __future__ import annotations

import gzip
import re
import shlex
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from open_clip.coca_model import MultimodalCfg
from open_clip.model import CLIPTextCfg, CLIPVisionCfg
from safetensors import SafetensorError, safe_open

from dear.backbone.limits import check_patches, check_tower
from dear.backbone.names import tag_of_repository
from dear.backbone.tensors import first_line
from dear.errors import BackboneError, PickledWeightsError, backbone, did_you_mean, is_typed, option
from dear.storage.files import MEGABYTE, open_regular

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
    "multimodal_cfg": {one.name for one in fields(MultimodalCfg)},
}
"""Known settings of a tower, and of the text decoder of CoCa, which not every model has."""
TOKENIZER_KEYS = {"clean", "strip_sep_token", "language"}
"""The only settings that are passed to a tokenizer: others could make it run Python code of the folder."""
OPENVISION_TOKENS = 80
"""Length of texts in OpenVision's models, and in no other model with this tokenizer."""
LARGEST_NUMBER = 1_000_000
LARGEST_MERGES = 64 * MEGABYTE
SAFE = ".safetensors"
PICKLED = (b"\x80", b"\x93")
"""First bytes of PyTorch's former format and of a NumPy array."""
PREFERRED = ("open_clip_model", "open_clip_pytorch_model", "model", "pytorch_model")


def check_config(name: str, config: Mapping[str, Any]) -> None:
    """Raise `BackboneError` for a third-party model configuration with unknown keys or impossible sizes."""
    _check_keys(name, "model_cfg", config, MODEL_KEYS)
    for tower, known in TOWER_KEYS.items():
        if tower not in config:
            continue
        if not isinstance(config[tower], dict):
            raise BackboneError(f"The {tower} of {name} is not a mapping: correct or remove it.")
        _check_keys(name, tower, config[tower], known)
        check_tower(name, tower, config[tower])
    _check_image_tower(name, config["vision_cfg"])
    _check_word_pieces(name, config["text_cfg"])
    tokenizer = config["text_cfg"].get("tokenizer_kwargs") or {}
    if not isinstance(tokenizer, dict):
        raise BackboneError(f"The tokenizer_kwargs of {name} are not a mapping: remove them from its configuration.")
    _check_keys(name, "tokenizer_kwargs", tokenizer, TOKENIZER_KEYS)


def _check_image_tower(name: str, vision: Mapping[str, Any]) -> None:
    """Raise `BackboneError` for too many patches, or an address as the name of a timm model, which timm would fetch."""
    tower = vision.get("timm_model_name")
    if tower is None:
        check_patches(name, vision)
    if tower is not None and not (isinstance(tower, str) and re.fullmatch(r"[\w.-]*", tower)):
        raise BackboneError(
            f"{name} sets 'timm_model_name' to {str(tower)[:80]!r}, which is not the name of a timm model: use one "
            "that timm lists, such as 'vit_base_patch16_siglip_224'."
        )


def _check_word_pieces(name: str, text: Mapping[str, Any]) -> None:
    """Raise `BackboneError` for OpenVision's own folders, whose tokenizer would produce wrong ids without an error."""
    plain = str(text.get("hf_tokenizer_name")).endswith("bert-base-uncased") and not text.get("tokenizer_mode")
    if plain and text.get("context_length") == OPENVISION_TOKENS:
        raise BackboneError(
            f"{name} is an OpenVision model with the plain tokenizer 'bert-base-uncased', which produces wrong ids for "
            "it: use a folder with tokenizer_mode 'clips' in its text_cfg, such as "
            f"{backbone('hf-hub:rwightman/openvision-vit-base-patch16-384')}."
        )


def _check_keys(name: str, where: str, values: Mapping[str, Any], known: set[str]) -> None:
    for key, value in values.items():
        if key not in known:
            raise BackboneError(
                f"{name} sets {key!r} in its {where}, which is not allowed in a CLIP configuration: remove it."
                f"{did_you_mean(str(key), known, most=1)}"
            )
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise BackboneError(f"{name} sets {key!r} in its {where} to {value}, which is too large for a CLIP.")


def weights_of(folder: Path) -> Path:
    """The weights file of a folder; raises `BackboneError` if there is none."""
    named = [folder / f"{stem}{end}" for stem in PREFERRED for end in (SAFE, ".bin", ".pth")]
    weights = next((path for path in named if path.exists()), None) or next(
        (path for end in (SAFE, ".bin", ".pth") for path in sorted(folder.glob(f"*{end}"))), None
    )
    if weights is None:
        raise BackboneError(f"{folder} contains no weights: add open_clip_model.safetensors.")
    if not weights.is_file():
        raise BackboneError(f"{weights} is not a regular file: put the weights there.")
    return weights


def check_format(weights: Path, source: str, *, trusted: bool, clip: str | None = None) -> None:
    """Raise `PickledWeightsError` for weights in a format that can contain code, unless they are trusted.

    Args:
        weights: the file, or its name in the hub's list.
        source: what to convert: hf-hub:ORG/REPO, a folder, or the file itself.
        trusted: whether any format is accepted.
        clip: the architecture that has to be named for a file.
    """
    if weights.suffix == SAFE or trusted:
        return
    what = f"{source} has only {weights.name}, which" if source.startswith("hf-hub:") else str(weights)
    same = tag_of_repository(source.removeprefix("hf-hub:"))
    use = f"{backbone(*same)} loads the same weights" if same else _conversion(source, clip)
    raise PickledWeightsError(f"{what} is not a safetensors file, and other formats can contain code: {use}.")


def _conversion(source: str, clip: str | None) -> str:
    """How to convert weights, as the user writes it."""
    then = f"then use {backbone('local-dir:FOLDER')}"
    if is_typed():
        words = ["dear convert", shlex.quote(source), "FOLDER", *([option(clip=clip)] if clip else [])]
        return f"convert it once with `{' '.join(words)}`, {then}"
    named = f", clip={clip!r}" if clip else ""
    return f"convert it once with dear.convert({source!r}, 'FOLDER'{named}), {then}, or pass allow_pickled=True"


def check_merges(path: Path) -> None:
    """Raise `BackboneError` for a file of merges that is damaged, or becomes far too large when it is unpacked."""
    try:
        with open_regular(path) as file, gzip.open(file) as packed:
            size = len(packed.read(LARGEST_MERGES + 1))
    except (OSError, EOFError, zlib.error) as error:
        raise BackboneError(f"{path} cannot be read ({first_line(error)}): put a good copy there.") from None
    if size > LARGEST_MERGES:
        raise BackboneError(f"{path} has more than {LARGEST_MERGES // MEGABYTE} MB when it is unpacked: remove it.")


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
