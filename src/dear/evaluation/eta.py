"""Estimates the time of cells and the remaining time of a grid, from the time that finished cells took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from statistics import fmean

from dear.engine.optim import total_steps
from dear.engine.workspace import Workspace
from dear.errors import DearError
from dear.evaluation.cell_run import CELLS
from dear.evaluation.cells import Cell, fit_options
from dear.evaluation.results import CellResult
from dear.options.parts import Bench

FIRST = 3
"""Number of finished cells before an estimate is made."""


class RemainingTime:
    """Estimates a cell's time as the mean over finished cells of its method, or over all if there are none."""

    def __init__(self, methods: Iterable[str], jobs: int = 1) -> None:
        self._waiting, self._jobs = Counter(methods), jobs
        self._took: dict[str, list[float]] = {}

    def add(self, method: str, seconds: float | None) -> None:
        """Count a finished cell of a method; `seconds` is None if it was finished in an earlier run."""
        self._waiting[method] -= 1
        if seconds is not None:
            self._took.setdefault(method, []).append(seconds)

    @property
    def waiting(self) -> int:
        """Number of unfinished cells."""
        return sum(self._waiting.values())

    def left(self) -> float | None:
        """Estimated seconds left; None while too few cells are finished."""
        everything = [one for seconds in self._took.values() for one in seconds]
        if len(everything) < FIRST:
            return None
        each = {name: fmean(self._took.get(name) or everything) for name in self._waiting}
        return sum(count * each[name] for name, count in self._waiting.items()) / self._jobs


def longest_first(cells: Sequence[Cell], options: Bench, workspace: Workspace) -> list[int]:
    """Indices of cells in the order of their expected time, so that no long one is left for the end.

    The time is the number of steps × the seconds per step of the method's finished cells, or of all if it has none.
    """
    took: dict[str, list[float]] = {}
    for path in sorted((options.out / CELLS).glob("*.json")):
        with suppress(OSError, UnicodeDecodeError, DearError):
            done = CellResult.read(path)
            took.setdefault(done.method, []).append(done.seconds / max(done.steps, 1))
    every = [one for seconds in took.values() for one in seconds] or [1.0]
    times = [steps(cell, options, workspace) * fmean(took.get(cell.method) or every) for cell in cells]
    return sorted(range(len(cells)), key=lambda index: -times[index])


def steps(cell: Cell, options: Bench, workspace: Workspace) -> int:
    """Number of steps of a cell's training; 1 for a method that takes none."""

    def count() -> int:
        job = workspace.job(fit_options(cell, options), protocol=cell.protocol, validate=options.validation)
        return max(1, total_steps(job.resolved, -(-len(job.items) // job.resolved.batch_size), cell.shots))

    key = ("steps", cell.method, cell.choices, cell.data, cell.shots, cell.half, cell.protocol)
    return workspace.remember(key, count)
