"""Methods against each other over the same cells: paired differences, tests, their correction, and what each costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, median
from typing import NamedTuple

from dear.evaluation.results import CellResult
from dear.evaluation.statistics import SignedRank, holm, interval, signed_rank
from dear.evaluation.summary import Row, Summary

LEVEL = 0.05
"""A corrected p below this counts as a difference."""


class Pair(NamedTuple):
    """Two methods on the cells that both have, by one column."""

    first: Row
    second: Row
    column: str
    test: SignedRank
    """Of first − second."""
    corrected: float
    """p after Holm's correction for all pairs of the column."""

    @property
    def differs(self) -> bool:
        """Whether the difference is larger than chance explains."""
        return self.corrected < LEVEL


class Behind(NamedTuple):
    """A method's mean difference to another one, with its 95 % interval if there are several cells."""

    row: Row
    difference: float
    low: float
    high: float


class Effort(NamedTuple):
    """What a method costs, as the median over its cells; None if no cell tells.

    The median: some cells fill the cache that all use, and some run beside other work.
    """

    parameters: float | None
    seconds: float | None
    peak_memory_mb: float | None
    artefact_bytes: float | None


def all_pairs(summary: Summary, column: str, rows: Sequence[Row]) -> list[Pair]:
    """Every pair of rows in their order, corrected for the number of pairs."""
    found = list(combinations(rows, 2))
    tests = [signed_rank(*paired(summary, column, first, second)) for first, second in found]
    corrected = holm([test.p for test in tests])
    return [Pair(*pair, column, test, p) for pair, test, p in zip(found, tests, corrected, strict=True)]


def paired(summary: Summary, column: str, first: Row, second: Row) -> tuple[list[float], list[float]]:
    """The numbers of two rows on the (seed, data set) that both have, in one order."""
    one, other = (_by_cell(summary, column, row) for row in (first, second))
    both = sorted(one.keys() & other.keys())
    return [one[key] for key in both], [other[key] for key in both]


def behind(summary: Summary, column: str, rows: Sequence[Row], best: Row) -> list[Behind]:
    """How far each row is from one of them, over the cells that both have."""
    found = []
    for row in rows:
        a, b = paired(summary, column, row, best)
        differences = [one - other for one, other in zip(a, b, strict=True)]
        if differences:
            mean = fmean(differences)
            ends = interval(differences)
            found.append(Behind(row, mean, *(ends or (mean, mean))))
    return found


def effort(cells: Sequence[CellResult]) -> Effort:
    """What the cells of one row cost."""
    return Effort(*(_median([getattr(cell, name) for cell in cells]) for name in Effort._fields))


def _median(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return median(told) if told else None


def _by_cell(summary: Summary, column: str, row: Row) -> dict[tuple[int, str], float]:
    return {
        (seed, data): values[data, column]
        for seed, values in summary.values[row].items()
        for data in summary.averaged
        if (data, column) in values
    }
