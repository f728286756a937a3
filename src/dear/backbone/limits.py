"""Limits of third-party configurations: sizes that a CLIP can have, names instead of paths, plain preprocessing.

A configuration of a few bytes must neither allocate gigabytes nor make a library read a folder that it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from safetensors import safe_open

from dear.config import problems
from dear.errors import BackboneError
from dear.storage.files import is_file, is_folder

MOST = {"layers": 1000, "heads": 10_000, "context_length": 10_000, "image_size": 2_000, "mlp_ratio": 100}
"""Largest values of some settings of a tower."""
MOST_POSITIONS = 10_000_000
"""Values of an image tower's position embeddings, which open_clip allocates if they are fixed; large towers have 1M."""
SPARE, MOST_RANDOM = 10_000_000, 3_000_000_000
"""Values that a model may have besides twice those of its file, and those of a model without a file."""
HUB_NAMES = ("hf_model_name", "hf_tokenizer_name")


def check_tower(name: str, where: str, config: Mapping[str, Any]) -> None:
    """Raise `BackboneError` for a tower of impossible size, or one that names a folder of this machine."""
    for key, most in MOST.items():
        values = config.get(key)
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int | float) and value > most:
                raise BackboneError(f"{name} sets {key!r} in its {where} to {value}, but a CLIP has at most {most:,}.")
    for key in HUB_NAMES:
        value = config.get(key)
        if value is None:
            continue
        plain = isinstance(value, str) and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", value)
        if not plain or is_folder(str(value)) or is_file(str(value)):
            raise BackboneError(
                f"{name} sets {key!r} to {str(value)[:80]!r}, which is not the name of a model on the hub, or is a "
                f"path here, and paths that a configuration names are never opened: remove it, or rename that path."
            )


def check_patches(name: str, config: Mapping[str, Any]) -> None:
    """Raise `BackboneError` for an image tower of open_clip with an impossible number of patches."""
    sizes: dict[str, list[int]] = {}
    for key in ("image_size", "patch_size", "width"):
        value = config.get(key)
        sizes[key] = [one for one in (value if isinstance(value, list) else [value]) if type(one) is int]
    image, patch = max(sizes["image_size"], default=224), min(sizes["patch_size"], default=16)
    if (image // max(patch, 1)) ** 2 * max(sizes["width"], default=768) > MOST_POSITIONS:
        raise BackboneError(f"{name} cuts {image} pixels into patches of {patch}, which are too many: use larger ones.")


class _Preprocess(BaseModel):
    """How images become input, as far as a configuration may say so."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    mode: Literal["RGB"] = "RGB"
    mean: list[float] | None = Field(None, min_length=3, max_length=3)
    std: list[float] | None = Field(None, min_length=3, max_length=3)
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    resize_mode: Literal["shortest", "longest", "squash"] = "shortest"
    fill_color: int = Field(0, ge=0, le=255)

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _one_for_all(cls, value: Any) -> Any:
        return [value] * 3 if isinstance(value, int | float) else value

    @field_validator("std")
    @classmethod
    def _positive(cls, value: list[float] | None) -> list[float] | None:
        if value and min(value) < 1e-6:
            raise ValueError("must be positive")
        return value


def check_preprocess(name: str, config: Any) -> None:
    """Raise `BackboneError` for a `preprocess_cfg` that cannot be carried out."""
    if config is None:
        return
    try:
        _Preprocess.model_validate(config)
    except ValidationError as error:
        raise BackboneError(f"The preprocess_cfg of {name} cannot be used. {' '.join(problems(error))}") from None


def check_parameters(name: str, model: Any, weights: Path | None) -> None:
    """Raise `BackboneError` if a model is much larger than its weights; `model` has shapes only, and no values."""
    needed = sum(parameter.numel() for parameter in model.parameters())
    if weights is None or weights.suffix != ".safetensors":
        most, what = MOST_RANDOM, "more than can be checked"
    else:
        with safe_open(weights, framework="pt") as file:
            sizes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118
        stored = sum(_product(size) for size in sizes)
        most, what = 2 * stored + SPARE, f"but {weights} has only {stored:,}"
    if needed > most:
        raise BackboneError(f"The configuration of {name} describes {needed:,} parameters, {what}: correct it.")


def _product(sizes: list[int]) -> int:
    found = 1
    for one in sizes:
        found *= one
    return found
