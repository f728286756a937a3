"""Reads the published numbers of the paper and of other methods, exactly as printed, from the package's data."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

from pydantic import Field

from dear.evaluation.results import Backbone, Protocol, harmonic_mean
from dear.storage.documents import Record

AVERAGE = "average"
"""Used instead of a data set's name for the paper's average over data sets or targets."""

TABLES = (
    "base-to-novel",
    "cross-dataset",
    "domain",
    "mask-strategies",
    "losses",
    "seeds",
    "inference-strategy",
    "entropy-threshold",
    "roles",
)
"""Names of the tables, the paper's main ones first: if two tables print the same quantity, the first one counts."""

OWN = "own-publications"
"""Averages that the other methods' own publications print, each with its source."""
BACKBONES = ("ViT-B-16", "ViT-B-16-quickgelu", "vit_base_patch16_clip_224.openai")
"""Names of the backbone of all published numbers; the first two count only with OpenAI's weights."""

Quantity = Literal["base", "novel", "hm", "accuracy"]

_HALF_DIGIT = 0.005 + 1e-9


class Printed(Record):
    """Numbers that a table prints for one method on one data set, in per cent; None where it prints nothing."""

    base: float | None = None
    novel: float | None = None
    hm: float | None = None
    accuracy: float | None = None

    def get(self, quantity: Quantity) -> float | None:
        """One of the numbers."""
        value: float | None = getattr(self, quantity)
        return value

    @property
    def computed_hm(self) -> float | None:
        """Harmonic mean of the printed base and novel, if both are printed."""
        return None if self.base is None or self.novel is None else harmonic_mean(self.base, self.novel)

    @property
    def hm_follows(self) -> bool:
        """Whether the printed harmonic mean agrees with the printed base and novel, up to rounding of all three."""
        if self.base is None or self.novel is None or self.hm is None:
            return True
        least = harmonic_mean(self.base - _HALF_DIGIT, self.novel - _HALF_DIGIT)
        most = harmonic_mean(self.base + _HALF_DIGIT, self.novel + _HALF_DIGIT)
        return least - _HALF_DIGIT <= self.hm <= most + _HALF_DIGIT


class PublishedRow(Record):
    """One method, or one variant of DeAR: its label in the paper, our name for it, its numbers by data set."""

    label: str
    method: str
    variant: str
    scores: dict[str, Printed] = Field(min_length=1)
    spread: dict[str, Printed] = Field(default_factory=dict)
    """Standard deviation over seeds, if the paper prints it."""
    source: str = ""
    """Source of the numbers, if it is not the table."""


class PublishedTable(Record):
    """One table of the paper."""

    source: str
    title: str
    protocol: Protocol
    rows: tuple[PublishedRow, ...] = Field(min_length=1)


class PublishedEntry(NamedTuple):
    """A published entry with its source: a table of the paper, or another publication."""

    source: str
    printed: Printed
    spread: Printed | None


@cache
def published_table(name: str) -> PublishedTable:
    """Read one of `TABLES`, or `OWN`."""
    file = resources.files("dear") / "assets" / "published" / f"{name}.json"
    return PublishedTable.model_validate_json(file.read_text(encoding="utf-8"))


def readout_variant(variant: str, readout: str) -> str:
    """The variant under which the numbers of a variant by one readout are stored."""
    return ",".join(filter(None, (variant, f"readout={readout}")))


def find_published(protocol: Protocol, method: str, variant: str = "", data: str = AVERAGE) -> PublishedEntry | None:
    """What the paper prints for a method (by the name that the grid uses) on a data set, or None."""
    return next(filter(None, (_find_entry(name, protocol, method, variant, data) for name in TABLES)), None)


def own_publication(protocol: Protocol, method: str, variant: str = "") -> PublishedEntry | None:
    """The average that a method's own publication prints, or None."""
    return _find_entry(OWN, protocol, method, variant, AVERAGE)


def _find_entry(table_name: str, protocol: Protocol, method: str, variant: str, data: str) -> PublishedEntry | None:
    table, wanted = published_table(table_name), _settings(variant)
    for row in table.rows if table.protocol == protocol else ():
        if row.method == method and _settings(row.variant) == wanted and data in row.scores:
            return PublishedEntry(row.source or table.source, row.scores[data], row.spread.get(data))
    return None


def is_published_backbone(backbone: Backbone) -> bool:
    """Whether a backbone is OpenAI's ViT-B/16, the backbone of all published numbers."""
    name = backbone.name.rpartition("/")[2]
    return name == BACKBONES[2] or (name in BACKBONES[:2] and backbone.pretrained == "openai")


def data_sets(protocol: Protocol) -> tuple[str, ...]:
    """The data sets that the paper averages over in a protocol; () if it prints no table."""
    for table in map(published_table, TABLES):
        if table.protocol == protocol:
            names = (name for name in table.rows[0].scores if name != AVERAGE)
            return tuple(name for name in names if protocol == "base-to-novel" or name != "imagenet")
    return ()


def _settings(variant: str) -> frozenset[tuple[str, str | float]]:
    """A variant as a set of its settings: order does not matter, and 0 equals 0.0."""
    pairs = (setting.partition("=") for setting in variant.split(",") if setting)
    return frozenset((name.strip(), _number(value.strip())) for name, _, value in pairs)


def _number(value: str) -> str | float:
    try:
        return float(value)
    except ValueError:
        return value
