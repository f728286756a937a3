"""Spread, intervals, paired tests and Holm's correction, against scipy's own and against their definitions."""

from itertools import combinations, product
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dear.errors import ConfigError
from dear.evaluation.statistics import (
    holm,
    interval,
    mean_and_std,
    signed_rank,
    smallest_p,
)

PERCENT = st.floats(1, 100)
SEVERAL = st.lists(PERCENT, min_size=2, max_size=8).filter(lambda values: stdev(values) > 1e-3)


@given(PERCENT, st.integers(2, 5))
def test_equal_numbers_have_no_spread(value, count):
    stat = mean_and_std([value] * count)
    assert stat.mean == pytest.approx(value)
    assert stat.std == 0
    assert stat.seeds == count


@given(st.lists(PERCENT, min_size=2, max_size=5))
def test_spread_is_the_sample_deviation(values):
    assert mean_and_std(values).std == pytest.approx(stdev(values), abs=1e-9)


def test_one_number_has_no_spread():
    assert mean_and_std([71.5]) == (71.5, None, 1)
    assert interval([71.5]) is None


@given(SEVERAL, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_intervals_are_students(values, level):
    mean = sum(values) / len(values)
    expected = stats.t.interval(level, len(values) - 1, loc=mean, scale=stats.sem(values))
    assert interval(values, level) == pytest.approx(expected, rel=1e-9)


def test_a_known_interval():
    assert interval([70.0, 71.0, 72.0]) == pytest.approx((68.5159, 73.4841), abs=1e-4)  # 71 ± 4.3027 / √3


@pytest.mark.parametrize("level", [0, 1, 95, -0.5])
def test_a_level_that_is_none(level):
    with pytest.raises(ConfigError, match="a confidence level lies between 0 and 1"):
        interval([1.0, 2.0], level)


DIFFERENT = st.lists(st.floats(-50, 50), min_size=1, max_size=20).filter(
    lambda values: len({round(abs(one), 6) for one in values} - {0.0}) == len(values)
)


@given(DIFFERENT)
def test_signed_ranks_are_scipys(differences):
    expected = stats.wilcoxon(differences, method="exact")
    found = signed_rank(differences, [0.0] * len(differences))
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.better == sum(one > 0 for one in differences)
    assert found.better + found.worse == found.n == len(differences)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_signed_ranks_with_ties_by_brute_force(differences):
    """Every way to sign the ranks of the differences that are not zero, each as likely as any other."""
    told = [one for one in differences if one]
    ranks = stats.rankdata([abs(one) for one in told]) if told else []
    middle = sum(ranks) / 2
    found = abs(sum(rank for rank, one in zip(ranks, told, strict=True) if one > 0) - middle)
    sums = [sum(rank for rank, up in zip(ranks, ups, strict=True) if up) for ups in product((0, 1), repeat=len(told))]
    expected = sum(abs(one - middle) >= found - 1e-9 for one in sums) / len(sums)
    assert signed_rank(differences, [0] * len(differences)).p == pytest.approx(expected)


def test_signed_ranks_at_their_limits():
    assert signed_rank([], []).p == 1
    assert signed_rank([1.0, 2.0], [1.0, 2.0]) == (0.0, 0, 0, 2, 1.0)
    assert signed_rank([0.1 + 0.2], [0.3]).better == 0  # equal but for rounding
    for n in (1, 5, 60):
        assert signed_rank(range(1, n + 1), [0] * n).p == pytest.approx(smallest_p(n))
    assert smallest_p(0) == 1
    with pytest.raises(ValueError, match="shorter"):
        signed_rank([1.0, 2.0], [1.0])


def test_signed_ranks_do_not_depend_on_the_order_of_pairs():
    a, b = [70.0, 71.5, 68.0, 90.25, 71.5], [69.0, 72.5, 60.0, 90.0, 71.0]
    assert signed_rank(a, b) == signed_rank(a[::-1], b[::-1])
    assert signed_rank(a, b).p == signed_rank(b, a).p


def test_known_corrections():
    assert holm([]) == []
    assert holm([0.03]) == [0.03]
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_holm_is_the_closure_of_bonferroni(p_values):
    """A hypothesis falls if Bonferroni rejects every set of hypotheses that it belongs to."""
    places = range(len(p_values))
    sets = [chosen for size in range(1, len(p_values) + 1) for chosen in combinations(places, size)]
    expected = [
        max(min(1.0, len(chosen) * min(p_values[i] for i in chosen)) for chosen in sets if place in chosen)
        for place in places
    ]
    assert holm(p_values) == pytest.approx(expected)
