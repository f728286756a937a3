"""Send the metrics of every step to TensorBoard or Weights & Biases, as `--log` asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch.distributed

from dear.engine.loop import Metrics
from dear.errors import ConfigError, MissingExtraError, option
from dear.options.fields import LogName

TENSORBOARD = "tensorboard"
PROJECT = "dear"
"""The project of Weights & Biases, unless WANDB_PROJECT names another."""


class _Log(NamedTuple):
    """Where metrics go: a function of numbers and their step, and what to call at the end."""

    add: Callable[[dict[str, float], int], None]
    close: Callable[[], None]


def check_log(kind: LogName | None, folder: Path | None) -> None:
    """Refuse a log whose package is missing, or that has no folder to be in."""
    if kind is None:
        return
    if find_spec(kind) is None:
        raise MissingExtraError(f'{option(log=kind)} needs a package: pip install "dear-vlm[{kind}]".')
    if folder is None:
        raise ConfigError(f"{option(log=kind)} needs a folder: give {option(out='FOLDER')}.")


@contextmanager
def step_log(
    kind: LogName | None, folder: Path | None, on_step: Callable[[Metrics], None] | None = None
) -> Iterator[Callable[[Metrics], None]]:
    """A function that passes the metrics of a step on to `on_step` and logs them for the training in `folder`.

    TensorBoard reads FOLDER/tensorboard. The log begins with the first step, so a training that is refused leaves none,
    and one that is resumed continues its log. Under `torchrun`, only the first process logs.
    """
    check_log(kind, folder)
    opened: list[_Log] = []

    def each_step(metrics: Metrics) -> None:
        if on_step is not None:
            on_step(metrics)
        if kind is None or folder is None or not _is_first_process():
            return
        if not opened:
            opened.append(_tensorboard(folder, metrics["step"]) if kind == TENSORBOARD else _wandb(folder))
        opened[0].add(_numbers(metrics), metrics["step"])

    try:
        yield each_step
    finally:
        for log in opened:
            log.close()


def _is_first_process() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and name not in ("step", "steps")
    }


def _tensorboard(folder: Path, first: int) -> _Log:
    """Steps from `first` on replace those of an earlier log in the same folder."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder / TENSORBOARD, purge_step=first)

    def add(numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return _Log(add, writer.close)


def _wandb(folder: Path) -> _Log:
    import wandb

    try:
        run = wandb.init(project=os.environ.get("WANDB_PROJECT", PROJECT), name=folder.name, dir=str(folder))
    except wandb.errors.Error as error:
        first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ConfigError(
            f"Weights & Biases does not accept this run ({first}): run 'wandb login', or set WANDB_MODE=offline."
        ) from None
    return _Log(lambda numbers, step: run.log(numbers, step=step), run.finish)
