"""Where a training stands: one safetensors file, written whole or not at all, checked when it is read.

It holds the method's state, any optimiser's state under its own names, and running averages or the best epoch's state,
each tensor in its own type: method/NAME, optimiser/NAME/KEY, average/NAME. Format 1, of AdamW alone, is read as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from dear.backbone.clip import content_hash
from dear.errors import CheckpointError, option
from dear.methods.base import Method
from dear.model.load import restore
from dear.storage.files import sha256, write_atomic

FORMAT, OLD_FORMAT = "dear-checkpoint 2", "dear-checkpoint 1"
LARGE = 64 * 2**20
"""Bytes of a method's state from which on writing it takes longer than many steps."""
SECONDS = 300.0
"""Between two checkpoints of such a method."""
_OLD_NAMES = {"mean": "exp_avg", "square": "exp_avg_sq", "updates": "step"}


@dataclass(frozen=True)
class Progress:
    """How far a training is, and what it has met."""

    step: int = 0
    skipped: int = 0
    """Unreadable images met so far, counted each time."""
    scaler: Mapping[str, Any] | None = None
    """State of the gradient scaler (fp16 only)."""
    best: Sequence[float] | None = None
    """Accuracy of the best epoch on held-out images, and how many epochs there were until then."""
    problems: tuple[str, ...] = ()
    """What was wrong with images that are looked at before and after the steps; of those in steps, `on_step` hears."""


class Pace:
    """When a checkpoint is due: by steps and at the end of every epoch; by time, and at the end, if it is large.

    The result does not depend on it, as resuming from any step ends in the same bytes.
    """

    def __init__(self, method: Method, every: int) -> None:
        self._every = every
        self._large = sum(one.numel() * one.element_size() for one in method.state_dict().values()) >= LARGE
        self._written = time.monotonic()

    def due(self, step: int, *, ends_epoch: bool, ends: bool) -> bool:
        """Whether to write one after this step."""
        if not self._large:
            return step % self._every == 0 or ends_epoch
        if not ends and time.monotonic() - self._written < SECONDS:
            return False
        self._written = time.monotonic()
        return True


def write_checkpoint(
    path: Path,
    method: Method,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    average: Mapping[str, Tensor] | None = None,
    *,
    owner: str = "",
) -> None:
    """Write the method's state, the optimiser's and the progress; `owner` is the fingerprint of the run."""
    tensors = {f"method/{name}": _plain(tensor) for name, tensor in method.state_dict().items()}
    for name, parameter in method.trained.items():
        for key, value in optimiser.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"optimiser/{name}/{key}"] = _plain(torch.as_tensor(value))
    tensors |= {f"average/{name}": _plain(tensor) for name, tensor in (average or {}).items()}
    known = {"step": progress.step, "skipped": progress.skipped, "scaler": progress.scaler, "owner": owner}
    recorded = json.dumps({**known, **({} if progress.best is None else {"best": progress.best})})
    metadata = {"format": FORMAT, "progress": recorded, "sha256": _hash(FORMAT, tensors, recorded)}
    try:
        write_atomic(path, save(tensors, metadata=metadata))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror or error}); the one before it is whole: "
            f"fix that and resume with {option(resume=True)}."
        ) from error


def read_checkpoint(
    path: Path, method: Method, optimiser: torch.optim.Optimizer, *, owner: str = ""
) -> tuple[Progress, dict[str, Tensor]]:
    """Put a checkpoint's content into method and optimiser; returns the progress and the running average."""
    damaged = CheckpointError(
        f"{path} is damaged or not a checkpoint of this method: start over with {option(overwrite=True)}."
    )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        recorded = json.loads(metadata["progress"])
        written_by = recorded.pop("owner", "")
        best = [float(one) for one in recorded["best"]] if recorded.get("best") else None
        progress, form = (
            Progress(int(recorded["step"]), int(recorded["skipped"]), recorded["scaler"], best),
            metadata["format"],
        )
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}): check the disk.") from error
    except Exception as error:
        raise damaged from error
    if form not in (FORMAT, OLD_FORMAT) or metadata.get("sha256") != _hash(form, tensors, metadata["progress"]):
        raise damaged
    if owner and written_by and owner != written_by:
        raise CheckpointError(
            f"{path} belongs to another run, with other settings or images: start over with {option(overwrite=True)}."
        )
    try:
        named = tensors if form == FORMAT else _renamed(tensors)
        restore(method, _below("method/", named))
        method.check_shapes()
    except (ValueError, KeyError):
        raise damaged from None
    _fill_optimiser(method, optimiser, _below("optimiser/", named))
    return progress, _below("average/", named)


def _fill_optimiser(method: Method, optimiser: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    for name, parameter in method.trained.items():
        own = {key: value for full, value in state.items() for key in [full.removeprefix(f"{name}/")] if "/" not in key}
        if own:
            moved = {key: value if key == "step" else value.to(parameter.device) for key, value in own.items()}
            optimiser.state[parameter] = moved


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Format 1 under the names of format 2."""
    found = {}
    for full, tensor in tensors.items():
        kind, _, name = full.partition(".")
        found[f"method/{name}" if kind == "parameter" else f"optimiser/{name}/{_OLD_NAMES[kind]}"] = tensor
    return found


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _hash(form: str, tensors: dict[str, Tensor], progress: str) -> str:
    """Format 1 hashes fp32 values; format 2 the bytes as they are, with their types."""
    if form == OLD_FORMAT:
        return sha256(f"{form} {progress} {content_hash(tensors)}".encode())
    parts = [f"{form} {progress}"]
    for name in sorted(tensors):
        data = tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes() if tensors[name].numel() else b""
        parts.append(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)} {sha256(data)}")
    return sha256("\n".join(parts).encode())


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu").contiguous()
