"""The page of a run, rendered from plain data; nothing here depends on a particular method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dear.reports.explanation_view import ExplanationView
from dear.reports.glossary import terms_in
from dear.reports.line_charts import line_chart
from dear.reports.render import Picture, render
from dear.reports.svg import round_step
from dear.roles.rolemap import RoleMap

LARGEST_CONFUSION = 40
"""The confusion matrix is shown up to this number of classes."""
WEAKEST = 12
"""With more than twice this number of classes, this number is shown and the others are folded."""
POINTS = 400
"""Maximal number of training steps in a chart."""


@dataclass(frozen=True)
class Confusion:
    """Per cent of each class's images (rows) that were taken for each class (columns)."""

    classes: tuple[str, ...]
    shares: Mapping[tuple[int, int], float]
    """By (row, column), without zeros."""
    note: str = ""

    @property
    def rows(self) -> list[list[float]]:
        """The whole matrix, for few classes."""
        indices = range(len(self.classes))
        return [[self.shares.get((row, column), 0.0) for column in indices] for row in indices]


@dataclass(frozen=True)
class ExampleSearch:
    """A query image, and its nearest images by each feature."""

    query: Picture
    found: Mapping[str, Sequence[Picture]]


@dataclass(frozen=True)
class ConfusedPair:
    """A class that is mistaken for another one: the number of images, and an example of each class."""

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
    """A class with its number of test images, and the accuracy of the adapter and of plain CLIP in per cent."""

    name: str
    images: int
    adapted: float
    plain: float | None


@dataclass(frozen=True)
class MethodChoice:
    """How a method was chosen: sentences, a table with its head in the first row, and notes on it."""

    says: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]


@dataclass(frozen=True)
class RunPage:
    """The content of a run's page. Empty fields and None are left out."""

    title: str
    subtitle: str
    scores: Sequence[Sequence[str]]
    """The first row is the head."""
    settings: Mapping[str, str]
    verdict: Sequence[str] = ()
    """The result in sentences."""
    choice: MethodChoice | None = None
    """How the method was chosen, if it was not named."""
    corrected: Mapping[str, Sequence[Picture]] = field(default_factory=dict)
    """Strips of test images by title: images that only the adapter, or only plain CLIP, names correctly."""
    corrected_note: str = ""
    confused: Sequence[ConfusedPair] = ()
    bars: Mapping[str, Sequence[ClassBar]] = field(default_factory=dict)
    """Bars of classes by the title of their group, the weakest first."""
    scores_note: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Learned weights by the name of the feature."""
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """Charts by title, each of lines by name: one number per step."""
    examples: Mapping[str, Sequence[Picture]] = field(default_factory=dict)
    """Strips of test images by title."""
    confusion: Confusion | None = None
    roles: RoleMap | None = None
    nearest: Sequence[ExampleSearch] = ()
    explained: Sequence[ExplanationView] = ()
    """Explanations of a few examples."""


def run_html(page: RunPage) -> str:
    """Return the page as one self-contained HTML file."""
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
    """Whether a line has at least two points."""
    return any(len(line) > 1 for line in lines.values())


def _words(page: RunPage) -> str:
    """The words of the page that may be in the glossary, including its fixed headings."""
    words = [page.subtitle, *page.verdict, page.corrected_note, page.scores_note]
    words += [cell for row in page.scores for cell in row[:1]] + list(page.scores[0])
    words += [*page.weights, *page.curves, *page.settings, *page.examples]
    words += ["plain CLIP, adapter, class"]
    words += ["confusion"] if page.confusion or page.confused else []
    words += ["weight, feature"] if page.weights else []
    words += ["loss, step"] if page.curves else []
    words += ["head, role"] if page.roles else []
    words += ["feature, cosine"] if page.nearest else []
    return "\n".join(words)


def curves_chart(title: str, lines: Mapping[str, Sequence[float]]) -> str:
    """Lines over the steps of a training, with their last values in the legend."""
    nonempty = {name: line for name, line in lines.items() if line}
    steps = max(map(len, nonempty.values()))
    every = round_step(steps / POINTS)
    shown = range(every - 1, steps, every)
    curves = {f"{name} {line[-1]:.3g}": [line[i] for i in shown if i < len(line)] for name, line in nonempty.items()}
    labels = [str(i + 1) for i in shown]
    return line_chart(title, labels, curves, x_title="step", width=360, height=250, from_zero=True)
