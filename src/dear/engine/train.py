"""The training loop. One step: a batch of views, the method's loss, gradients over all processes, one AdamW update."""

from __future__ import annotations

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
from dear.engine.distributed import Ranks
from dear.engine.feed import Batch, Feed
from dear.engine.schedule import learning_rates
from dear.errors import DataError, TrainingError
from dear.methods.base import Method

Metrics = dict[str, Any]


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
    ranks: Ranks | None = None,
    on_step: Callable[[Metrics], None] | None = None,
) -> Progress:
    """Train a method in place up to its last epoch; `resume` goes on from the checkpoint.

    The same settings end in the same bytes, however often the training was stopped and resumed.
    """
    ranks, parameters = ranks or Ranks(), method.trainable()
    if not parameters:
        return Progress()
    rates = learning_rates(
        settings.epochs, lr=settings.lr, warmup_epochs=settings.warmup_epochs, warmup_lr=settings.warmup_lr
    )
    optimizer = torch.optim.AdamW(parameters.values(), lr=settings.lr, weight_decay=settings.weight_decay)
    precision = resolve_precision(settings.precision, method.clip.device)
    scaler = torch.amp.GradScaler(method.clip.device.type, enabled=precision == "fp16")
    progress = read_checkpoint(checkpoint, parameters, optimizer) if checkpoint and resume else Progress()
    if progress.scaler:
        scaler.load_state_dict(dict(progress.scaler))
    last = settings.epochs * feed.steps_per_epoch
    step, skipped = progress.step, progress.skipped
    for batch in feed.batches(step, last):
        start = time.perf_counter()
        epoch = step // feed.steps_per_epoch
        optimizer.param_groups[0]["lr"] = rates[epoch]
        terms, images = update(method, parameters, optimizer, scaler, batch, settings, precision, ranks, step)
        step, skipped = step + 1, skipped + len(batch.problems)
        _stop_where_nothing_can_be_read(step, feed, skipped, batch)
        scaler_state = scaler.state_dict() if scaler.is_enabled() else None
        progress = Progress(step, skipped, scaler_state)
        due = step % checkpoint_every == 0 or step % feed.steps_per_epoch == 0
        if checkpoint and ranks.is_first and due:
            write_checkpoint(checkpoint, parameters, optimizer, progress)
        if on_step:
            seconds = time.perf_counter() - start
            facts = {"step": step, "steps": last, "epoch": epoch + 1, "lr": rates[epoch], "skipped": skipped}
            on_step({**facts, **terms, "images_per_second": images / seconds, "problems": batch.problems})
    return progress


def update(
    method: Method,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.AdamW,
    scaler: torch.amp.GradScaler,
    batch: Batch,
    settings: TrainSettings,
    precision: str,
    ranks: Ranks,
    step: int,
) -> tuple[Metrics, int]:
    """Make one update; return the means of the loss terms over this process's images, and their number."""
    optimizer.zero_grad(set_to_none=False)
    terms: Metrics = {}
    device, count = method.clip.device, len(batch.labels)
    for first in range(0, count, settings.micro_batch or max(count, 1)):
        assert batch.inputs is not None
        part = slice(first, first + (settings.micro_batch or count))
        inputs, labels = batch.inputs[part].to(device), batch.labels[part].to(device)
        with torch.autocast(device.type, DTYPES.get(precision, torch.bfloat16), enabled=precision != "fp32"):
            out = method.from_prefix(inputs) if is_prefix(inputs) else method(inputs)
            loss = method.loss(out, labels)
        scalars = loss.scalars()
        _stop_where_not_finite(scalars, step)
        scaler.scale(loss.total * len(labels)).backward()  # type: ignore[no-untyped-call]
        for name, value in {**scalars, **_alpha(out.alpha)}.items():
            terms[name] = terms.get(name, 0.0) + value * len(labels) / count
    if _sum_gradients(parameters, count, ranks, step, check=not scaler.is_enabled()):
        scaler.step(optimizer)
        scaler.update()
    return terms, count


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def is_prefix(inputs: Tensor) -> bool:
    """Whether views are stored prefixes; images have four dimensions."""
    return inputs.ndim != 4


def resolve_precision(wanted: str, device: torch.device) -> str:
    """The precision that "auto" stands for on a device."""
    if wanted != "auto":
        return wanted
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported() else "fp16"


def _sum_gradients(parameters: Mapping[str, nn.Parameter], count: int, ranks: Ranks, step: int, *, check: bool) -> bool:
    """Turn the sum of this process's gradients into the mean over all images of all; False where there are none."""
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters.values()]
    flat = torch.cat([*(g.flatten() for g in grads), torch.tensor([float(count)]).to(grads[0])])
    ranks.sum_(flat)
    total = float(flat[-1])
    if total == 0:
        return False
    mean = flat[:-1] / total
    if check and not bool(mean.isfinite().all()):
        raise TrainingError(_not_finite("gradient", step))
    parts = torch.split(mean, [p.numel() for p in parameters.values()])
    for parameter, part in zip(parameters.values(), parts, strict=True):
        parameter.grad = part.view_as(parameter)
    return True


def _stop_where_not_finite(scalars: Mapping[str, float], step: int) -> None:
    for name, value in scalars.items():
        if not math.isfinite(value):
            raise TrainingError(_not_finite(f"loss ({name})", step))


def _not_finite(what: str, step: int) -> str:
    return (
        f"The {what} of step {step + 1} is not finite, and nothing was changed by it: lower the learning rate, "
        f"or check the images; the last checkpoint is whole."
    )


def _stop_where_nothing_can_be_read(step: int, feed: Feed, skipped: int, batch: Batch) -> None:
    if step == feed.steps_per_epoch and skipped >= feed.count:
        raise DataError(f"None of the {feed.count} training images can be read; the last: {batch.problems[-1]}")


def _alpha(alpha: Tensor) -> dict[str, float]:
    return {f"alpha_{i}": value for i, value in enumerate(alpha.detach().tolist())} if len(alpha) > 1 else {}
