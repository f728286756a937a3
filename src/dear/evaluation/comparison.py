"""The paper's number for a place in one of our tables, if it prints one for the same method, training and data."""

from __future__ import annotations

from statistics import fmean
from typing import Literal, NamedTuple, cast

from dear.evaluation.published import AVERAGE, Printed, Quantity, data_sets, find_published, readout_variant
from dear.evaluation.summary import Row, Section, Summary

PAPER_SHOTS = 16
PAPER_SOURCE = "imagenet"


class PaperNumber(NamedTuple):
    """A published number as text, the table it is from, and how it was obtained.

    "printed": as it is. "corrected": a harmonic mean that does not follow, with the computed one in brackets.
    "mean": over those of the paper's data sets that our average goes over, marked with a star.
    """

    text: str
    source: str
    kind: Literal["printed", "corrected", "mean"]


def paper_number(summary: Summary, row: Row, data: str | None, column: str) -> PaperNumber | None:
    """The paper's number beside an entry of a table; `data` is None for the average."""
    section, variant = summary.section, row.variant
    if section.shots != PAPER_SHOTS or section.source not in (None, PAPER_SOURCE):
        return None
    if section.tested_on != "test" or section.recipe != "own":
        return None
    if summary.readout is not None:
        variant = readout_variant(variant, summary.readout)
    if data is None:
        average = summary.average(row, column)
        if average is None:
            return None
        if set(average.data) != set(data_sets(section.protocol)):
            return _mean_over(average.data, section, Row(row.method, variant), column)
        return _printed(section, Row(row.method, variant), AVERAGE, column)
    return None if data == AVERAGE else _printed(section, Row(row.method, variant), data, column)


def _printed(section: Section, row: Row, data: str, column: str) -> PaperNumber | None:
    found = find_published(section.protocol, row.method, row.variant, data)
    if found is None:
        return None
    value = found.printed.get(cast(Quantity, column))
    if value is None:
        return None
    deviation = found.spread.get(cast(Quantity, column)) if found.spread else None
    text = f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation:.2f}"
    if column == "hm" and not found.printed.hm_follows:
        return PaperNumber(f"{text} [{found.printed.computed_hm:.2f}]", found.source, "corrected")
    return PaperNumber(text, found.source, "printed")


def _mean_over(data: tuple[str, ...], section: Section, row: Row, column: str) -> PaperNumber | None:
    """The mean over other data sets than the paper's average goes over; None unless the paper prints each of them."""
    found = [find_published(section.protocol, row.method, row.variant, name) for name in data]
    entries = [one for one in found if one]
    if len(entries) < len(found):
        return None
    quantities: tuple[Quantity, ...] = ("base", "novel", "accuracy")
    means = {}
    for quantity in quantities:
        numbers = [value for one in entries if (value := one.printed.get(quantity)) is not None]
        means[quantity] = fmean(numbers) if len(numbers) == len(found) else None
    mean = Printed(**means)
    value = mean.computed_hm if column == "hm" else mean.get(cast(Quantity, column))
    return None if value is None else PaperNumber(f"{value:.2f}*", entries[0].source, "mean")
