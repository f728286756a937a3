"""Pairwise comparison of methods on the same cells: paired differences, corrected significance tests, and cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, median
from typing import NamedTuple

from dear.evaluation.results import CellResult
from dear.evaluation.statistics import SignedRank, holm, interval, signed_rank
from dear.evaluation.summary import Row, Summary

LEVEL = 0.05
"""A difference is significant if its corrected p value is below this."""


class MethodPair(NamedTuple):
    """Two methods compared by one column, on the cells that both have."""

    first: Row
    second: Row
    column: str
    test: SignedRank
    """Test of first − second."""
    corrected: float
    """The p value after Holm's correction for all pairs of the column."""

    @property
    def differs(self) -> bool:
        """Whether the difference is significant."""
        return self.corrected < LEVEL


class Gap(NamedTuple):
    """A method's mean difference to another method, with its 95 % interval if there are several cells."""

    row: Row
    difference: float
    low: float
    high: float


class Effort(NamedTuple):
    """What a method costs, as medians over its cells; None if no cell recorded it.

    Medians are used because some cells fill the shared cache, and some run beside other work.
    """

    parameters: float | None
    seconds: float | None
    peak_memory_mb: float | None
    artefact_bytes: float | None


def all_pairs(summary: Summary, column: str, rows: Sequence[Row]) -> list[MethodPair]:
    """Compare every pair of rows, in their order, with p values corrected for the number of pairs."""
    pairs = list(combinations(rows, 2))
    tests = [signed_rank(*paired(summary, column, first, second)) for first, second in pairs]
    corrected = holm([test.p for test in tests])
    return [MethodPair(*pair, column, test, p) for pair, test, p in zip(pairs, tests, corrected, strict=True)]


def paired(summary: Summary, column: str, first: Row, second: Row) -> tuple[list[float], list[float]]:
    """The numbers of two rows for every (seed, data set) that both have, in the same order."""
    one, other = (_by_cell(summary, column, row) for row in (first, second))
    both = sorted(one.keys() & other.keys())
    return [one[key] for key in both], [other[key] for key in both]


def gaps_to(summary: Summary, column: str, rows: Sequence[Row], best: Row) -> list[Gap]:
    """The difference of each row to the best one, over the cells that both have."""
    gaps = []
    for row in rows:
        a, b = paired(summary, column, row, best)
        differences = [one - other for one, other in zip(a, b, strict=True)]
        if differences:
            mean = fmean(differences)
            ends = interval(differences)
            gaps.append(Gap(row, mean, *(ends or (mean, mean))))
    return gaps


def effort(cells: Sequence[CellResult]) -> Effort:
    """What the cells of one row cost."""
    return Effort(*(_median([getattr(cell, name) for cell in cells]) for name in Effort._fields))


def _median(values: Sequence[float | None]) -> float | None:
    recorded = [value for value in values if value is not None]
    return median(recorded) if recorded else None


def _by_cell(summary: Summary, column: str, row: Row) -> dict[tuple[int, str], float]:
    return {
        (seed, data): values[data, column]
        for seed, values in summary.values[row].items()
        for data in summary.averaged
        if (data, column) in values
    }
