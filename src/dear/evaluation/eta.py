"""Estimates the remaining time of a grid from the time that its finished cells took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean

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
