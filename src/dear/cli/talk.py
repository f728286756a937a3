"""How the command line talks: progress and remarks on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from dear.files import shown

if TYPE_CHECKING:
    from dear.evaluation.results import CellResult

FACTS = ("step", "steps", "epoch", "lr", "skipped", "images_per_second", "problems")
"""Metrics of a step that are no loss terms."""
WEIGHT = "weight_"
MOST_TERMS = 3


def say(remark: str) -> None:
    """A remark for the person at the terminal."""
    sys.stderr.write(f"{printable(remark)}\n")


def printable(text: str) -> str:
    """Text with the names of strangers' files in it, without their terminal escapes."""
    return "\n".join(shown(line) for line in text.split("\n"))


def json_line(row: Any) -> str:
    """One JSON object as a line; names that are no UTF-8 are escaped."""
    line = json.dumps(row, ensure_ascii=False)
    return line if printable(line) == line else json.dumps(row)


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as aligned text."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


@contextmanager
def stage_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on a terminal, nothing elsewhere; call with the name of a stage, the number done and the number of all."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total or None)
            bar.update(tasks[stage], completed=done)

        yield show


@contextmanager
def progress_bar(what: str, total: int = 0) -> Iterator[Callable[..., None]]:
    """A bar on a terminal, nothing elsewhere; call with the number done so far, and the number of all if it is news."""
    with stage_bar() as show:
        yield lambda done, of=None: show(what, done, of or total)


@contextmanager
def step_bar() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar for training: steps, time left, loss terms, a learned weight, images per second."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    parts = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*parts, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading images", total=None)

        def show(metrics: dict[str, Any]) -> None:
            bar.update(task, completed=metrics["step"], total=metrics["steps"], description=step_text(metrics))

        yield show


def step_text(metrics: dict[str, Any]) -> str:
    """A step in words: `total` first, then a few other loss terms and one weight, by the names they have."""
    numbers = {name: value for name, value in metrics.items() if name not in FACTS and isinstance(value, int | float)}
    terms = [name for name in numbers if name != "total" and not name.startswith(WEIGHT)][:MOST_TERMS]
    weights = [name for name in numbers if name.startswith(WEIGHT)][:1]
    named = [*(["total"] if "total" in numbers else []), *terms, *weights]
    told = [f"{name} {numbers[name]:.3f}" for name in named]
    return " ".join([f"epoch {metrics['epoch']}", *told, f"{metrics['images_per_second']:.0f} images/s"])


def cell_text(done: int, total: int, result: CellResult) -> str:
    """A cell that is done, in words; what could not be read is a second line."""
    scores = ", ".join(f"{s.data} {s.half} {result.reading(s):.1f}" for s in result.scores[:3])
    name = f"{result.method} {result.variant}".strip()
    text = f"[{done}/{total}] {name}, {result.data}, seed {result.seed}, {result.shots} shots: {scores}"
    problems = [problem for one in result.scores for problem in one.problems]
    return f"{text}\n  {len(problems)} test image(s) count as wrong, the first: {problems[0]}" if problems else text


class Group(TyperGroup):
    """A group of commands; alone it prints its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a command, as if --help had been typed."""
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])
