"""The paper's number for a place in one of our tables, if it prints one for the same method, training and data."""

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
    """A published number as text, the table it is from, and how it was obtained.

    "printed": as it is. "corrected": a harmonic mean that does not follow, with the computed one in brackets.
    "mean": over those of the paper's data sets that our average goes over, marked with a star.
    "own": printed by the method's own publication and not by the paper, marked with a dagger.
    """

    text: str
    source: str
    kind: Literal["printed", "corrected", "mean", "own"]


def paper_number(summary: Summary, row: Row, data: str | None, column: str) -> PaperNumber | None:
    """The paper's number beside an entry of a table; `data` is None for the average."""
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
        return _printed(section, named, AVERAGE, column) or _of_its_own(section, named, column)
    return None if data == AVERAGE else _printed(section, Row(row.method, variant), data, column)


def why_none(section: Section) -> str:
    """Why published numbers would mislead beside those of a section, as the end of a sentence; "" if they do not."""
    backbone = section.backbone
    if not is_published_backbone(backbone):
        name = " ".join(filter(None, (backbone.name.rpartition("/")[2], backbone.pretrained)))
        return f"they are of OpenAI's ViT-B/16, and this backbone is {name}"
    if section.recipe != "own":
        return "they are of each method's own recipe, and this is the shared one"
    if section.tested_on != "test":
        return "they are of test images, and these are validation images"
    if section.protocol == "few-shot":
        return "the paper shows few-shot results only as curves"
    if section.shots != PAPER_SHOTS:
        return f"they are of {PAPER_SHOTS} shots"
    if section.source not in (None, PAPER_SOURCE):
        return f"they are of a training on {PAPER_SOURCE}"
    return ""


def _of_its_own(section: Section, row: Row, column: str) -> PaperNumber | None:
    found = own_publication(section.protocol, row.method, row.variant)
    value = found.printed.get(cast(Quantity, column)) if found else None
    return PaperNumber(f"{value:.2f}†", f"{row.method}: {found.source}", "own") if found and value else None


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
