"""Where a training stands: one safetensors file, written whole or not at all, checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dear.backbone.clip import content_hash
from dear.errors import CheckpointError
from dear.files import sha256, write_atomic

FORMAT = "dear-checkpoint 1"
_MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}


@dataclass(frozen=True)
class Progress:
    """How far a training is, and what it has met."""

    step: int = 0
    skipped: int = 0
    """Unreadable images met so far, counted each time."""
    scaler: Mapping[str, Any] | None = None
    """State of the gradient scaler (fp16 only)."""


def write_checkpoint(
    path: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.AdamW, progress: Progress
) -> None:
    """Write parameters, the optimizer's moments and the progress."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensors[f"parameter.{name}"] = _plain(parameter)
        state = optimizer.state.get(parameter, {})
        tensors |= {f"{ours}.{name}": _plain(state[theirs]) for ours, theirs in _MOMENTS.items() if theirs in state}
        if "step" in state:
            tensors[f"updates.{name}"] = _plain(state["step"])
    progress_json = json.dumps({"step": progress.step, "skipped": progress.skipped, "scaler": progress.scaler})
    metadata = {"format": FORMAT, "progress": progress_json, "sha256": _hash(tensors, progress_json)}
    try:
        write_atomic(path, save(tensors, metadata=metadata))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror or error}); the one before it is whole: "
            f"put that right and go on with --resume."
        ) from error


def read_checkpoint(path: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.AdamW) -> Progress:
    """Put a checkpoint's content into parameters and optimizer."""
    damaged = CheckpointError(f"{path} is damaged or not a checkpoint of this method: start again with --overwrite.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        progress = Progress(**json.loads(metadata["progress"]))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}): check the disk.") from error
    except Exception as error:
        raise damaged from error
    shapes = {f"parameter.{name}": parameter.shape for name, parameter in parameters.items()}
    if (
        metadata.get("format") != FORMAT
        or metadata.get("sha256") != _hash(tensors, metadata["progress"])
        or shapes != {name: tensor.shape for name, tensor in tensors.items() if name.startswith("parameter.")}
    ):
        raise damaged
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"parameter.{name}"])
            if f"mean.{name}" in tensors:
                moments = {theirs: tensors[f"{ours}.{name}"].to(parameter) for ours, theirs in _MOMENTS.items()}
                optimizer.state[parameter] = {"step": tensors[f"updates.{name}"], **moments}
    return progress


def _hash(tensors: dict[str, Tensor], progress_json: str) -> str:
    return sha256(f"{FORMAT} {progress_json} {content_hash(tensors)}".encode())


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).contiguous()
