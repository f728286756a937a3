"""Looks up the paper's number for an entry of a results table: same method, training and data set."""

from __future__ import annotations

from statistics import fmean
from typing import Literal, NamedTuple, cast

from dear.evaluation.published import (
    AVERAGE,
    Printed,
    Quantity,
    data_sets,
    find_published,
    is_published_backbone,
    own_publication,
    readout_variant,
)
from dear.evaluation.summary import Row, Section, Summary

PAPER_SHOTS = 16
PAPER_SOURCE = "imagenet"


class PaperNumber(NamedTuple):
    """A published number as text, its source table, and how it was obtained.

    "printed": exactly as printed. "corrected": the printed harmonic mean does not follow from base and novel, so the
    computed one is added in brackets. "mean": our mean of printed numbers over the same data sets, marked with a star.
    "own": printed by the method's own publication and not by the paper, marked with a dagger.
    """

    text: str
    source: str
    kind: Literal["printed", "corrected", "mean", "own"]


def paper_number(summary: Summary, row: Row, data: str | None, column: str) -> PaperNumber | None:
    """The paper's number for an entry of a table; `data` is None for the average."""
    section, variant = summary.section, row.variant
    if why_none(section):
        return None
    if summary.readout is not None:
        variant = readout_variant(variant, summary.readout)
    if data is None:
        average = summary.average(row, column)
        if average is None:
            return None
        if set(average.data) != set(data_sets(section.protocol)):
            return _mean_over(average.data, section, Row(row.method, variant), column)
        named = Row(row.method, variant)
        return _printed(section, named, AVERAGE, column) or _own_publication(section, named, column)
    return None if data == AVERAGE else _printed(section, Row(row.method, variant), data, column)


def why_none(section: Section) -> str:
    """Why published numbers do not apply to a section, as the end of a sentence; "" if they do."""
    backbone = section.backbone
    if not is_published_backbone(backbone):
        name = " ".join(filter(None, (backbone.name.rpartition("/")[2], backbone.pretrained)))
        return f"they were measured with OpenAI's ViT-B/16, and this backbone is {name}"
    if section.recipe != "own":
        return f"they use each method's own recipe, and this is the {section.recipe} recipe"
    if section.tested_on != "test":
        return "they were measured on test images, and these are validation images"
    if section.protocol == "few-shot":
        return "the paper shows few-shot results only as curves"
    if section.shots != PAPER_SHOTS:
        return f"they were measured with {PAPER_SHOTS} shots"
    if section.source not in (None, PAPER_SOURCE):
        return f"they were measured after training on {PAPER_SOURCE}"
    return ""


def _own_publication(section: Section, row: Row, column: str) -> PaperNumber | None:
    entry = own_publication(section.protocol, row.method, row.variant)
    value = entry.printed.get(cast(Quantity, column)) if entry else None
    return PaperNumber(f"{value:.2f}†", f"{row.method}: {entry.source}", "own") if entry and value else None


def _printed(section: Section, row: Row, data: str, column: str) -> PaperNumber | None:
    entry = find_published(section.protocol, row.method, row.variant, data)
    if entry is None:
        return None
    value = entry.printed.get(cast(Quantity, column))
    if value is None:
        return None
    deviation = entry.spread.get(cast(Quantity, column)) if entry.spread else None
    text = f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation:.2f}"
    if column == "hm" and not entry.printed.hm_follows:
        return PaperNumber(f"{text} [{entry.printed.computed_hm:.2f}]", entry.source, "corrected")
    return PaperNumber(text, entry.source, "printed")


def _mean_over(data: tuple[str, ...], section: Section, row: Row, column: str) -> PaperNumber | None:
    """The mean of the paper's numbers over some data sets; None unless the paper prints each of them."""
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
