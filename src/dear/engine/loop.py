"""The training loop. One step: a batch of views, the method's loss, gradients over all processes, one AdamW update."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dear.config import Settings
from dear.engine.checkpoint import Progress, read_checkpoint, write_checkpoint
from dear.engine.feed import Batch, Feed
from dear.engine.optim import learning_rates
from dear.engine.ranks import Ranks
from dear.errors import DataError, TrainingError
from dear.methods.base import Method

Metrics = dict[str, Any]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TrainSettings(Settings):
    """Everything about the training that decides its result; the paper's values are the defaults."""

    epochs: int = Field(default=10, ge=1)
    batch: int = Field(default=16, ge=1)
    """Images an update, over all processes."""
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=5e-4, ge=0)
    warmup_epochs: int = Field(default=1, ge=0)
    warmup_lr: float = Field(default=1e-5, gt=0)
    micro_batch: int | None = Field(default=None, ge=1)
    """At most so many images at once; gradients add up to the batch's."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of the activations. "auto": bf16 on a GPU that has it, fp16 on others, fp32 on a CPU."""


def train(
    method: Method,
    feed: Feed,
    settings: TrainSettings,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    checkpoint_every: int = 50,
    on_step: Callable[[Metrics], None] | None = None,
) -> Progress:
    """Train a method in place up to its last epoch; `resume` goes on from the checkpoint.

    The same settings end in the same bytes, however often the training was stopped and resumed. The first process
    alone writes checkpoints and calls `on_step`, the latter first: a step that is in a checkpoint has been told of.
    """
    parameters, ranks = method.trainable(), feed.ranks
    if not parameters:
        return Progress()
    rates = learning_rates(
        settings.epochs, lr=settings.lr, warmup_epochs=settings.warmup_epochs, warmup_lr=settings.warmup_lr
    )
    optimizer = torch.optim.AdamW(parameters.values(), lr=settings.lr, weight_decay=settings.weight_decay)
    precision = resolve_precision(settings.precision, method.clip.device)
    scaler = torch.amp.GradScaler(method.clip.device.type, 2.0**12, enabled=precision == "fp16")  # of a sum of losses
    progress = read_checkpoint(checkpoint, parameters, optimizer) if checkpoint and resume else Progress()
    if progress.scaler:
        scaler.load_state_dict(dict(progress.scaler))
    last, clock = settings.epochs * feed.steps_per_epoch, time.perf_counter()
    for batch in feed.batches(progress.step, last):
        step, epoch = progress.step + 1, progress.step // feed.steps_per_epoch
        optimizer.param_groups[0]["lr"] = rates[epoch]
        optimizer.zero_grad()
        own = accumulate(method, batch, settings.micro_batch, precision, scaler)
        images, terms, problems = _together([json.loads(one) for one in ranks.gather(json.dumps(own))])
        _stop_where_not_finite(terms, step)
        if images:
            _average_gradients(parameters, images, ranks, step, overflow_is_fine=scaler.is_enabled())
            scaler.step(optimizer)
            scaler.update()
        progress = Progress(step, progress.skipped + len(problems), scaler.state_dict() or None)
        if step == feed.steps_per_epoch and progress.skipped == feed.count:
            raise DataError(f"None of the {feed.count} training images can be read; the last: {problems[-1]}")
        if not ranks.is_first:
            continue
        if on_step:
            speed, clock = images / (time.perf_counter() - clock), time.perf_counter()
            facts = {"step": step, "steps": last, "epoch": epoch + 1, "lr": rates[epoch], "skipped": progress.skipped}
            on_step({**facts, **terms, "images_per_second": speed, "problems": problems})
        if checkpoint and (step % checkpoint_every == 0 or step % feed.steps_per_epoch == 0):
            write_checkpoint(checkpoint, parameters, optimizer, progress)
    return progress


def accumulate(
    method: Method, batch: Batch, micro_batch: int | None, precision: str, scaler: torch.amp.GradScaler
) -> Metrics:
    """Add up the gradients of this process's images; return sums of the loss terms, and what could not be read."""
    device, count = method.clip.device, len(batch.labels)
    size, sums = micro_batch or max(1, count), dict[str, float]()
    for first in range(0, count, size):
        assert batch.inputs is not None
        inputs, labels = (whole[first : first + size].to(device) for whole in (batch.inputs, batch.labels))
        with torch.autocast(device.type, DTYPES.get(precision), enabled=precision in DTYPES):
            out = method(inputs) if inputs.ndim == 4 else method.from_view(inputs)  # images, or stored views
            loss = method.loss(out, labels)
        scaler.scale(loss.total * len(labels)).backward()  # type: ignore[no-untyped-call]
        for name, value in {**loss.scalars(), **_alpha(out.alpha)}.items():
            sums[name] = sums.get(name, 0.0) + value * len(labels)
    return {"images": count, "sums": sums, "problems": batch.problems}


def resolve_precision(wanted: str, device: torch.device) -> str:
    """The precision that "auto" stands for on a device."""
    if wanted != "auto":
        return wanted
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"


def _together(shares: list[Metrics]) -> tuple[int, dict[str, float], list[str]]:
    """Number of images, means of the loss terms over them, and problems, of all processes."""
    images = sum(share["images"] for share in shares)
    names = dict.fromkeys(name for share in shares for name in share["sums"])
    terms = {name: sum(share["sums"].get(name, 0.0) for share in shares) / images for name in names}
    return images, terms, [problem for share in shares for problem in share["problems"]]


def _average_gradients(
    parameters: Mapping[str, nn.Parameter], images: int, ranks: Ranks, step: int, *, overflow_is_fine: bool
) -> None:
    """Turn the sums of gradients of every process into their mean over all images."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters.values()]
    flat = torch.cat([grad.flatten() for grad in grads])
    ranks.sum_(flat)
    flat /= images
    if not overflow_is_fine and not bool(flat.isfinite().all()):
        raise TrainingError(_not_finite("gradient", step))
    for parameter, part in zip(parameters.values(), torch.split(flat, [grad.numel() for grad in grads]), strict=True):
        parameter.grad = part.view_as(parameter)


def _stop_where_not_finite(terms: Mapping[str, float], step: int) -> None:
    for name, value in terms.items():
        if not math.isfinite(value):
            raise TrainingError(_not_finite(f"loss ({name})", step))


def _not_finite(what: str, step: int) -> str:
    return (
        f"The {what} of step {step} is not finite, and nothing was changed by it: lower the learning rate, "
        f"or check the images; the last checkpoint is whole."
    )


def _alpha(alpha: Tensor) -> dict[str, float]:
    return {f"alpha_{i}": value for i, value in enumerate(alpha.detach().tolist())} if len(alpha) > 1 else {}
