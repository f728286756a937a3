"""Means with their spread, intervals, paired tests and their correction. Pure arithmetic on numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.special import stdtr, stdtrit

from dear.errors import ConfigError


class Stat(NamedTuple):
    """Mean and sample standard deviation over seeds; no deviation with one seed."""

    mean: float
    std: float | None
    seeds: int


class Interval(NamedTuple):
    """The two ends of a confidence interval."""

    low: float
    high: float


class PairedTest(NamedTuple):
    """Mean of the differences, its interval, and the two-sided p value; with one pair only the mean is known."""

    difference: float
    low: float | None
    high: float | None
    p: float | None
    n: int


def mean_and_std(values: Sequence[float]) -> Stat:
    """Mean and sample standard deviation of at least one number."""
    return Stat(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Student's t interval of the mean; None if there are fewer than two numbers."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}: a confidence level lies between 0 and 1, such as 0.95.")
    if len(values) < 2:
        return None
    mean, half_width = fmean(values), _t_quantile(len(values) - 1, level) * _standard_error(values)
    return Interval(mean - half_width, mean + half_width)


def paired_test(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> PairedTest:
    """Student's paired t test of a − b; `a` and `b` are in the same order and equally long.

    Differences that are all equal have no spread: p is then 1 if they are 0, and 0 otherwise.
    """
    differences = [one - other for one, other in zip(a, b, strict=True)]
    mean, ends = fmean(differences), interval(differences, level)
    if ends is None:
        return PairedTest(mean, None, None, None, len(differences))
    p = _p_value(mean, _standard_error(differences), len(differences) - 1)
    return PairedTest(mean, ends.low, ends.high, p, len(differences))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for several tests: adjusted p values, in the order given."""
    count = len(p_values)
    adjusted = [0.0] * count
    least = 0.0
    for rank, place in enumerate(sorted(range(count), key=lambda index: p_values[index])):
        least = max(least, min(1.0, (count - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


def _standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values))


def _p_value(mean: float, error: float, freedom: int) -> float:
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * float(stdtr(freedom, -abs(mean / error)))


def _t_quantile(freedom: int, level: float) -> float:
    """How many standard errors an interval reaches to each side of the mean."""
    return float(stdtrit(freedom, (1 + level) / 2))
