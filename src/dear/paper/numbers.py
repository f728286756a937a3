"""Looks up the paper's numbers for our tables, and checks whether the paper's orderings appear in our results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations, pairwise
from statistics import fmean
from typing import cast

from dear.data.catalog import declarations
from dear.evaluation.published import AVERAGE, Printed, PublishedRow, Quantity, data_sets, published_table
from dear.evaluation.results import harmonic_mean
from dear.evaluation.statistics import Stat
from dear.world.catalog import DATASETS

QUANTITIES: tuple[Quantity, ...] = ("base", "novel", "hm")


@cache
def stands_for(name: str) -> tuple[str, ...]:
    """The paper's data sets that a data set represents: itself, if it is one of them."""
    if name not in DATASETS:
        return (name,)
    by_title = {one.title: one.name for one in declarations().values()}
    return tuple(by_title[title.strip()] for title in DATASETS[name].stands_for.split(","))


def paper_titles(name: str) -> str:
    """Those data sets as the paper writes them."""
    known = declarations()
    return ", ".join(known[one].title if one in known else one for one in stands_for(name))


def published_row(table: str, method: str, variant: str = "") -> PublishedRow | None:
    """A method's row in one of the paper's tables."""
    rows = published_table(table).rows
    return next((row for row in rows if (row.method, row.variant) == (method, variant)), None)


def paper_value(row: PublishedRow | None, data: Sequence[str], quantity: str) -> float | None:
    """The paper's number on a data set, or the mean over several."""
    found = [one for one in (row.scores.get(name) if row else None for name in data) if one]
    values = [value for one in found if (value := one.get(cast(Quantity, quantity))) is not None]
    return fmean(values) if values and len(values) == len(data) else None


def paper_text(row: PublishedRow | None, data: Sequence[str], quantity: str) -> str:
    """That number as text; if a printed harmonic mean is inconsistent, the computed one is added in brackets."""
    value = paper_value(row, data, quantity)
    if row is None or value is None:
        return ""
    if len(data) > 1:
        return f"{value:.2f}"
    spread = row.spread[data[0]].get(cast(Quantity, quantity)) if data[0] in row.spread else None
    text = f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"
    printed = row.scores[data[0]]
    return f"{text} [{printed.computed_hm:.2f}]" if quantity == "hm" and not printed.hm_follows else text


def average_text(table: str, row: PublishedRow | None, averaged: Sequence[str], quantity: str) -> str:
    """The paper's average, or its mean over the same data sets, marked with a star, if ours has fewer of them."""
    value, same = average_value(table, row, averaged, quantity)
    if value is None:
        return ""
    return paper_text(row, [AVERAGE], quantity) if same else f"{value:.2f}*"


def average_value(
    table: str, row: PublishedRow | None, averaged: Sequence[str], quantity: str
) -> tuple[float | None, bool]:
    """The number of `average_text`, and whether it is the printed average."""
    ours_are_rendered = all(name in DATASETS for name in averaged)
    if ours_are_rendered or set(averaged) == set(data_sets(published_table(table).protocol)) or _only_average(row):
        return paper_value(row, [AVERAGE], quantity), True
    if quantity == "hm":
        base, novel = (paper_value(row, averaged, one) for one in ("base", "novel"))
        return (None if base is None or novel is None else harmonic_mean(base, novel)), False
    return paper_value(row, averaged, quantity), False


def _only_average(row: PublishedRow | None) -> bool:
    return row is not None and set(row.scores) == {AVERAGE}


def verdict(what: str, ours: Mapping[str, Stat | None], papers: Mapping[str, float | None]) -> str:
    """A sentence with the paper's order, our order, and whether they are the same."""
    known = {name: value for name, value in papers.items() if value is not None}
    if len(known) < 2:
        return ""
    order = sorted(known, key=lambda name: -known[name])
    printed_order = _chain([(name, known[name]) for name in order])
    if any(ours.get(name) is None for name in order):
        return f"{what}: the paper's order is {printed_order}; not all of it has been computed here."
    stats = {name: cast(Stat, ours[name]) for name in order}
    here = _chain([(name, stats[name].mean) for name in sorted(order, key=lambda one: -stats[one].mean)])
    pairs = [(a, b) for a, b in combinations(order, 2) if known[a] > known[b]]
    if not pairs:
        return f"{what}: the paper prints the same number for all, {printed_order}; here it is {here}."
    same_order = all(stats[a].mean > stats[b].mean for a, b in pairs)
    close = [f"{a} and {b}" for a, b in pairwise(order) if known[a] > known[b] and _close(stats[a], stats[b])]
    hedge = f" Within the spread over seeds: {'; '.join(close)}." if close else ""
    agreement = f"The paper's order appears here: {yes(same_order)}.{hedge}"
    return f"{what}: the paper has {printed_order}; here it is {here}. {agreement}"


def _chain(ordered: Sequence[tuple[str, float]]) -> str:
    """Names with their numbers, largest first."""
    text = f"{ordered[0][0]} ({ordered[0][1]:.2f})"
    for (_, before), (name, value) in pairwise(ordered):
        text += f" {'=' if f'{before:.2f}' == f'{value:.2f}' else '>'} {name} ({value:.2f})"
    return text


def yes(same_order: bool) -> str:
    """ "yes" or "no"."""
    return "yes" if same_order else "no"


def _close(one: Stat, other: Stat) -> bool:
    """Whether two means differ by at most their standard deviation, if it is known."""
    known = [stat.std for stat in (one, other) if stat.std is not None]
    return bool(known) and abs(one.mean - other.mean) <= max(known)


def does_not_follow(table: str, data: Sequence[str]) -> bool:
    """Whether one of these printed harmonic means is inconsistent with base and novel."""
    rows = published_table(table).rows
    printed: list[Printed] = [row.scores[name] for row in rows for name in data if name in row.scores]
    return any(not one.hm_follows for one in printed)
