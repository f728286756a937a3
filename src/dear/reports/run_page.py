"""The page of a run, from plain data: numbers have names, pictures have captions, and no method is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dear.reports.charts import line_chart, round_step
from dear.reports.explaining import View
from dear.reports.render import Picture, render
from dear.roles.rolemap import RoleMap

SHOWN = 8
"""Pairs of classes that are named as the most confused ones."""
LARGEST_CONFUSION = 40
"""Classes up to which the whole matrix is shown."""
POINTS = 400
"""Steps of a training that are drawn at most."""


@dataclass(frozen=True)
class Confusion:
    """Per cent of each class's images (rows) that were taken for each class (columns)."""

    classes: tuple[str, ...]
    shares: Mapping[tuple[int, int], float]
    """By (row, column); what never happened is left out, as most is among many classes."""
    note: str = ""

    @property
    def rows(self) -> list[list[float]]:
        """The whole matrix, for few classes."""
        places = range(len(self.classes))
        return [[self.shares.get((row, column), 0.0) for column in places] for row in places]


@dataclass(frozen=True)
class Search:
    """An image, and what is nearest to it by each feature."""

    query: Picture
    found: Mapping[str, Sequence[Picture]]


@dataclass(frozen=True)
class RunPage:
    """Everything a run's page shows. What is empty or None is left out."""

    title: str
    subtitle: str
    scores: Sequence[Sequence[str]]
    """The first row is the head."""
    settings: Mapping[str, str]
    scores_note: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    """What was learned about how much each feature counts, by the feature's name."""
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """Charts by title, each of lines by name: one number per step."""
    examples: Mapping[str, Sequence[Picture]] = field(default_factory=dict)
    """Strips of test images by title."""
    confusion: Confusion | None = None
    roles: RoleMap | None = None
    nearest: Sequence[Search] = ()
    explained: Sequence[View] = ()
    """A few examples, taken apart."""


def run_html(page: RunPage) -> str:
    """The page as text; it needs no other file and no network."""
    return render(
        "run.html",
        title=page.title,
        subtitle=page.subtitle,
        page=page,
        charts=[curves_chart(title, lines) for title, lines in page.curves.items() if any(lines.values())],
        pairs=confused_pairs(page.confusion) if page.confusion else [],
        largest_confusion=LARGEST_CONFUSION,
    )


def curves_chart(title: str, lines: Mapping[str, Sequence[float]]) -> str:
    """Lines over the steps of a training, with their last values in the legend."""
    drawn = {name: line for name, line in lines.items() if line}
    steps = max(map(len, drawn.values()))
    every = round_step(steps / POINTS)
    kept = range(every - 1, steps, every)
    shown = {f"{name} {line[-1]:.3g}": [line[i] for i in kept if i < len(line)] for name, line in drawn.items()}
    return line_chart(title, [str(i + 1) for i in kept], shown, x_title="step", width=360, height=250, from_zero=True)


def confused_pairs(confusion: Confusion) -> list[list[str]]:
    """The pairs of classes that are confused most often: what it is, what it is taken for, per cent."""
    names = confusion.classes
    wrong = [(share, names[i], names[j]) for (i, j), share in confusion.shares.items() if i != j]
    wrong.sort(key=lambda one: (-one[0], one[1], one[2]))
    return [[is_, taken_for, f"{share:.0f}"] for share, is_, taken_for in wrong[:SHOWN]]
