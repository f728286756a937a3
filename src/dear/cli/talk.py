"""How the command line talks: progress and remarks on stderr, results on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def say(remark: str) -> None:
    """A remark for the person at the terminal."""
    sys.stderr.write(f"{remark}\n")


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere; call what it gives with the number done so far."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def step_bar() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar for training: steps, loss terms, the fusion weight of [CLS], images a second."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading images", total=None)

        def show(metrics: dict[str, Any]) -> None:
            terms = [
                f"{name} {metrics[name]:.3f}" for name in ("total", "ce", "reg_image", "reg_text") if name in metrics
            ]
            alpha = [f"α_cls {metrics['alpha_0']:.3f}"] if "alpha_0" in metrics else []
            speed = f"{metrics['images_per_second']:.0f} images/s"
            bar.update(
                task,
                completed=metrics["step"],
                total=metrics["steps"],
                description=" ".join([f"epoch {metrics['epoch']}", *terms, *alpha, speed]),
            )

        yield show
