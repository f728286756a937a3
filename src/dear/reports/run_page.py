"""The page of a run, from plain data: numbers have names, pictures have captions, and no method is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dear.reports.explanation_view import View
from dear.reports.glossary import terms_in
from dear.reports.line_charts import line_chart
from dear.reports.render import Picture, render
from dear.reports.svg import round_step
from dear.roles.rolemap import RoleMap

LARGEST_CONFUSION = 40
"""Classes up to which the whole matrix is shown."""
WEAKEST = 12
"""Classes whose bars are shown at once, if there are more than twice as many; the others are folded."""
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
class ConfusedPair:
    """A class that is taken for another one: how many of how many images, with an image of either."""

    is_: str
    taken_for: str
    count: int
    images: int
    pictures: Sequence[Picture]

    @property
    def says(self) -> str:
        """How often it happens."""
        return f"{self.count:,} of {self.images:,} images ({100 * self.count / self.images:.0f} %)"


@dataclass(frozen=True)
class ClassBar:
    """A class: its test images, and the per cent that is named correctly, by plain CLIP, too."""

    name: str
    images: int
    adapted: float
    plain: float | None


@dataclass(frozen=True)
class RunPage:
    """Everything a run's page shows. What is empty or None is left out."""

    title: str
    subtitle: str
    scores: Sequence[Sequence[str]]
    """The first row is the head."""
    settings: Mapping[str, str]
    verdict: Sequence[str] = ()
    """What came out, in sentences."""
    corrected: Mapping[str, Sequence[Picture]] = field(default_factory=dict)
    """Strips of test images by title: those that only one of plain CLIP and the adapter names correctly."""
    corrected_note: str = ""
    confused: Sequence[ConfusedPair] = ()
    bars: Mapping[str, Sequence[ClassBar]] = field(default_factory=dict)
    """Bars of classes by the title of their group, the weakest first."""
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
        charts=[curves_chart(title, lines) for title, lines in page.curves.items() if _is_curve(lines)],
        largest_confusion=LARGEST_CONFUSION,
        weakest=WEAKEST,
        glossary=terms_in(_words(page)),
    )


def _is_curve(lines: Mapping[str, Sequence[float]]) -> bool:
    """Whether there is anything to follow: one point is none."""
    return any(len(line) > 1 for line in lines.values())


def _words(page: RunPage) -> str:
    """The words on the page that may need to be explained, and those of its fixed headings."""
    said = [page.subtitle, *page.verdict, page.corrected_note, page.scores_note]
    said += [cell for row in page.scores for cell in row[:1]] + list(page.scores[0])
    said += [*page.weights, *page.curves, *page.settings, *page.examples]
    said += ["plain CLIP, adapter, class"]
    said += ["confusion"] if page.confusion or page.confused else []
    said += ["weight, feature"] if page.weights else []
    said += ["loss, step"] if page.curves else []
    said += ["head, role"] if page.roles else []
    said += ["feature, cosine"] if page.nearest else []
    return "\n".join(said)


def curves_chart(title: str, lines: Mapping[str, Sequence[float]]) -> str:
    """Lines over the steps of a training, with their last values in the legend."""
    drawn = {name: line for name, line in lines.items() if line}
    steps = max(map(len, drawn.values()))
    every = round_step(steps / POINTS)
    kept = range(every - 1, steps, every)
    shown = {f"{name} {line[-1]:.3g}": [line[i] for i in kept if i < len(line)] for name, line in drawn.items()}
    return line_chart(title, [str(i + 1) for i in kept], shown, x_title="step", width=360, height=250, from_zero=True)
