"""How long a grid still takes, from what its cells took so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean

FIRST = 3
"""Cells that have to be done before the others are foretold."""


class Pace:
    """Foretells the rest of a grid: a cell takes as long as those of its method did, or as all did."""

    def __init__(self, methods: Iterable[str], jobs: int = 1) -> None:
        self._waiting, self._jobs = Counter(methods), jobs
        self._took: dict[str, list[float]] = {}

    def add(self, method: str, seconds: float | None) -> None:
        """One more cell of a method is there; None if it was there before."""
        self._waiting[method] -= 1
        if seconds is not None:
            self._took.setdefault(method, []).append(seconds)

    @property
    def waiting(self) -> int:
        """Cells that are not there yet."""
        return sum(self._waiting.values())

    def left(self) -> float | None:
        """Seconds left; None as long as too few cells are done."""
        everything = [one for seconds in self._took.values() for one in seconds]
        if len(everything) < FIRST:
            return None
        each = {name: fmean(self._took.get(name) or everything) for name in self._waiting}
        return sum(count * each[name] for name, count in self._waiting.items()) / self._jobs
