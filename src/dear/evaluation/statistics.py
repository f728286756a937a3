"""Statistics of results: means with deviations, confidence intervals, paired tests and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit
from scipy.stats import binomtest, rankdata

from dear.errors import ConfigError

SAME = 9
"""Decimals to which differences are rounded: sums in another order differ in later ones."""


class Stat(NamedTuple):
    """Mean and sample standard deviation over seeds; no deviation with one seed."""

    mean: float
    std: float | None
    seeds: int


class Interval(NamedTuple):
    """The two ends of a confidence interval."""

    low: float
    high: float


class SignedRank(NamedTuple):
    """Wilcoxon's signed-rank test of paired numbers: how often each is larger, and the two-sided p value."""

    difference: float
    """Mean of the differences."""
    better: int
    worse: int
    n: int
    p: float


class AnswerTest(NamedTuple):
    """McNemar's exact test of two lists of answers to the same questions."""

    only_first: int
    """Questions that only the first answers rightly."""
    only_second: int
    p: float
    """Two-sided."""


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


def signed_rank(a: Sequence[float], b: Sequence[float]) -> SignedRank:
    """Wilcoxon's signed-rank test of a − b, exact for any number of pairs and with ties.

    Pairs without a difference carry no information and are left out, as Wilcoxon did; ties share their mean rank.
    """
    differences = [round(one - other, SAME) for one, other in zip(a, b, strict=True)]
    nonzero = [one for one in differences if one]
    better = sum(one > 0 for one in nonzero)
    mean = fmean(differences) if differences else 0.0
    return SignedRank(mean, better, len(nonzero) - better, len(differences), _rank_p_value(nonzero))


def share_interval(right: int, of: int, level: float = 0.95) -> Interval:
    """Wilson's interval of a share, between 0 and 1; unlike the normal one it is valid for few answers or all right."""
    if not 0 <= right <= of or of < 1:
        raise ConfigError(f"{right} of {of} is not a share: it needs 0 <= right <= of, and at least one answer.")
    ends = binomtest(right, of).proportion_ci(level, method="wilson")
    return Interval(float(ends.low), float(ends.high))


def answers_test(first: Sequence[bool], second: Sequence[bool]) -> AnswerTest:
    """McNemar's exact test: whether one of two models is right alone significantly more often than the other.

    `first` and `second` mark the right answers, in the same order. Questions that both answer rightly, or both wrongly,
    carry no information.
    """
    pairs = list(zip(first, second, strict=True))
    one = sum(bool(a) and not b for a, b in pairs)
    other = sum(bool(b) and not a for a, b in pairs)
    p = float(binomtest(one, one + other).pvalue) if one + other else 1.0
    return AnswerTest(one, other, p)


def smallest_p(n: int) -> float:
    """The smallest p value that `signed_rank` can return for `n` pairs: all differences have the same sign."""
    return 2.0 ** (1 - n) if n else 1.0


def _rank_p_value(differences: Sequence[float]) -> float:
    """The share of all sign assignments whose rank sum is at least as far from its mean as the observed one."""
    if not differences:
        return 1.0
    doubled = np.rint(2 * rankdata(np.abs(differences))).astype(int)  # mean ranks end in .0 or .5
    ways = np.ones(1)
    for rank in doubled:
        more = np.zeros(len(ways) + rank)
        more[: len(ways)] += ways / 2
        more[rank:] += ways / 2
        ways = more
    observed = int(doubled[np.asarray(differences) > 0].sum())
    tail = min(observed, int(doubled.sum()) - observed)
    return min(1.0, 2 * float(ways[: tail + 1].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for several tests: adjusted p values, in the order given."""
    count = len(p_values)
    adjusted = [0.0] * count
    least = 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda index: p_values[index])):
        least = max(least, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted


def _standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values))


def _t_quantile(freedom: int, level: float) -> float:
    """Half-width of an interval, in standard errors."""
    return float(stdtrit(freedom, (1 + level) / 2))
