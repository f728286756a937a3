"""Writes a comparison of methods as a page, Markdown, CSV and JSON; the same results always give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dear.evaluation.deviations import earlier_notes
from dear.evaluation.paper_numbers import PAPER_SHOTS
from dear.evaluation.published import PublishedEntry
from dear.evaluation.role_map_notes import UsedMap, used_maps
from dear.evaluation.summary import HEADS, HM_NOTE, Row
from dear.evaluation.tables import training_image_notes
from dear.progress.stages import duration
from dear.reports.compare_data import Comparison, known, label
from dear.reports.compare_words import goal, many, names_of, verdict
from dear.reports.method_charts import NAMED, Mark, Point, difference_chart, interval_chart, scatter_chart
from dear.reports.page_sections import Figure, PageSection, Table, Value, report_page
from dear.storage import markdown
from dear.storage.csv_text import csv_table
from dear.storage.files import write_atomic

PAGE, TEXT, ROWS, JSON, PAIRS = "compare.html", "compare.md", "compare.csv", "compare.json", "compare-pairs.csv"
DIFFERENCES, COST = "differences", "cost"
"""Keys of the sections that are charts."""
FILES = (PAGE, TEXT, ROWS, JSON, PAIRS)
PROTOCOLS = {"base-to-novel": "base-to-novel", "few-shot": "few-shot learning"}
BESIDE_INTERVALS = (
    " The test is corrected for the number of pairs and the intervals are not, so the interval of a blue dot may "
    "exclude zero."
)
_RECIPES = {
    "own": "each method by its own recipe (own)",
    "shared": "one recipe for all methods (shared)",
    "tuned": "each method by the best of the same few recipes (tuned)",
}
LEAST_SECONDS = 0.5
"""Less time than this is no encoding, but looking into the cache."""
COSTS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("parameters", "trained parameters", lambda value: f"{value:,.0f}"),
    ("seconds", "seconds per training with tests", lambda value: f"{value:,.1f}"),
    ("peak_memory_mb", "peak memory, MB", lambda value: f"{value:,.0f}"),
    ("artefact_bytes", "saved adapter, bytes", lambda value: f"{value:,.0f}"),
)


def write_comparison(out: Path, comparison: Comparison) -> None:
    """Write the page and the tables into the folder of a grid."""
    contents = (
        page(comparison),
        text(comparison),
        _csv(comparison.records),
        _json(comparison.records),
        _csv(comparison.pair_records),
    )
    for name, content in zip(FILES, contents, strict=True):
        write_atomic(out / name, content.encode())


def page(comparison: Comparison) -> str:
    """Return the page as one self-contained HTML file."""
    return report_page(_title(comparison), _subtitle(comparison), [], sections(comparison), lead=verdict(comparison))


def text(comparison: Comparison) -> str:
    """Return the same content as Markdown, with a table of all differences instead of charts."""
    plain = markdown.plain
    lead = "\n".join(f"- {plain(sentence)}" for sentence in verdict(comparison))
    blocks = [f"# {plain(_title(comparison))}", plain(_subtitle(comparison)), lead]
    for section in sections(comparison):
        if section.key == COST:
            continue
        if section.key == DIFFERENCES:
            section = PageSection("pairs", "Differences", (_pair_table(comparison),))
        blocks.append(f"## {plain(section.title)}")
        for one in section.tables:
            blocks += [plain(one.title)] if one.title else []
            blocks.append(markdown.table(one.head, one.texts(), words=one.words))
        blocks += ["\n".join(f"- {plain(note)}" for note in section.notes)] if section.notes else []
    return "\n\n".join(blocks) + "\n"


def sections(comparison: Comparison) -> list[PageSection]:
    """The sections of the page."""
    made = [_results(comparison)]
    if len(comparison.complete) > 1:
        made += [_differences(comparison), _cost(comparison)]
    made.append(_published(comparison))
    made.append(_by_data(comparison))
    if maps := used_maps(cell for row in comparison.rows for cell in comparison.cells[row]):
        made.append(_role_maps(maps))
    if comparison.refused:
        rows = tuple((label(row), why) for row, why in sorted(comparison.refused.items()))
        made.append(PageSection("refused", "Methods that could not be run", (Table(("method", "why"), rows, words=2),)))
    return [*made, _methods(comparison)]


def _title(comparison: Comparison) -> str:
    protocol = comparison.section.protocol
    return f"{len(comparison.rows)} methods compared: {PROTOCOLS.get(protocol, protocol)}"


def _subtitle(comparison: Comparison) -> str:
    section = comparison.section
    clip = " ".join(filter(None, (section.backbone.name.rpartition("/")[2], section.backbone.pretrained)))
    shots = f", {many(section.shots, 'shot')}" if section.shots else ""
    images = ", tested on validation images" if section.tested_on == "validation" else ""
    sets = ", ".join(comparison.summary.averaged)
    how = (
        "Trained on half of the classes (base), tested on both (novel: the other half). "
        if "hm" in comparison.columns
        else ""
    )
    seeds = f"seed{'s' if len(comparison.seeds) > 1 else ''} {', '.join(map(str, comparison.seeds))}"
    return f"{how}Backbone {clip}{shots}; {_recipe(comparison)}{images}; {seeds}; data: {sets}."


def _recipe(comparison: Comparison) -> str:
    """The recipe that methods were trained by, and that it was changed if it was."""
    text = _RECIPES[comparison.section.recipe]
    if comparison.deviations.common:
        text += f", but all with {'; '.join(comparison.deviations.common)}"
    changed = [one for row in comparison.rows if (one := comparison.deviations.of(row))]
    marks = [mark for note, mark in comparison.marks.items() if note in changed]
    further = " further" if comparison.deviations.common else ""
    return f"{text}, changed{further} where marked {names_of(marks)}" if marks else text


def _results(comparison: Comparison) -> PageSection:
    rows: list[tuple[Value, ...]] = []
    ordered = (
        comparison.main,
        *comparison.columns[:-1],
    )  # what a narrow screen shows first is what methods are ordered by
    for row in comparison.rows:
        name = label(row) + "".join(f" {comparison.marks[text]}" for text in comparison.footnotes(row))
        numbers = [comparison.mean(row, column) for column in ordered]
        costs = [_cost_text(comparison, row, field, show) for field, _, show in COSTS]
        rows.append((str(comparison.places[row]), name, *numbers, *costs))
    heads = [_head(comparison, column) for column in ordered]
    table = Table(("", "method", *heads, *(what for _, what, _ in COSTS)), tuple(rows), words=2)
    texts = [
        f"Top-1 accuracy in per cent: the mean over {many(len(comparison.summary.averaged), 'data set')}, "
        + (
            "of one seed, so the spread is unknown."
            if len(comparison.seeds) == 1
            else f"then the mean ± sample standard deviation over {len(comparison.seeds)} seeds. The deviation shows "
            "how much a seed matters, not how certain a difference is."
        )
    ]
    if "hm" in comparison.columns:
        texts.append(HM_NOTE)
    if len(set(comparison.places.values())) < len(comparison.rows):
        texts.append("Methods with the same rank tie: their stored means are equal, not only as printed.")
    texts += training_image_notes([cell for cells in comparison.cells.values() for cell in cells])
    texts += [f"{mark} {text}." for text, mark in comparison.marks.items()]
    texts += earlier_notes(cell for cells in comparison.cells.values() for cell in cells)
    texts += _cost_notes(comparison)
    return PageSection("results", "Results", (table,), notes=tuple(texts))


def _cost_notes(comparison: Comparison) -> list[str]:
    """What the costs in the table are, and who is charged for encoding images."""
    cells = [cell for found in comparison.cells.values() for cell in found]
    known = [cell.encoding_seconds for cell in cells if cell.encoding_seconds is not None]
    notes = [
        "Costs are medians over trainings with their tests, on the machine that ran them. Peak memory is that of the "
        "whole process (on a GPU: of tensors)."
    ]
    if sum(known) >= LEAST_SECONDS:
        notes.append(
            f"Reading and encoding images: {duration(sum(known))}, once for all methods. The outputs of frozen layers "
            f"are cached, and the seconds of the methods do not include this."
        )
    elif known:
        notes.append("No images were encoded for the cache: that was done before, or there is no cache.")
    if len(known) < len(cells):
        notes.append(
            "The seconds of cells of earlier versions include reading and encoding images: the first method that needs "
            "an image is charged for it."
        )
    return notes


def _role_maps(maps: Sequence[UsedMap]) -> PageSection:
    """Which role map each method used on which data sets, and where it comes from."""
    rows = tuple((one.method, ", ".join(one.data), one.sha256 or "—", one.source, one.rule or "—") for one in maps)
    head = ("method", "data sets", "map, SHA-256", "where it comes from", "rule")
    note = "A role map lists what each attention head responds to; --roles auto finds one from the training photos."
    return PageSection("role-maps", "Role maps", (Table(head, rows, words=5),), notes=(note,))


def _differences(comparison: Comparison) -> PageSection:
    column = comparison.main
    best, what = comparison.best(column), goal(comparison, column)[1]
    has = "has" if len(comparison.leaders(column)) == 1 else "ties with others for"
    near = {best, *comparison.tied(column)}
    gaps = sorted(comparison.gaps(column), key=lambda one: (-one.difference, one.row))
    marks = [Mark(label(one.row), one.difference, one.low, one.high, one.row in near) for one in gaps]
    head, intervals = _head(comparison, column), comparison.results_per_pair > 1
    figures = [
        Figure(
            "behind",
            "behind the best",
            interval_chart(
                f"{head}: difference to {label(best)}",
                marks,
                x_title="points, mean and 95 % interval over results" if intervals else "points, one result",
            ),
        )
    ]
    figures += [
        Figure(
            f"pairs-{one}",
            one,
            difference_chart(
                f"{_head(comparison, one)}: row minus column", _names(comparison), _matrix(comparison, one)
            ),
        )
        for one in (column, *(other for other in comparison.columns if other != column))
    ]
    notes = (
        f"First chart, blue filled dots: not significantly different from {label(best)}, which {has} the highest "
        f"{what}. Grey hollow dots: significantly behind.{BESIDE_INTERVALS if intervals else ''}",
        "Other charts: each number is the mean difference, row minus column, in points; columns have the numbers of "
        "the rows. Bold on blue: the row is significantly better. Bold on red: it is significantly worse. Grey: not "
        "significantly different.",
        f"Test: Wilcoxon's signed-rank test (exact, two-sided) on the {many(comparison.results_per_pair, 'result')}, "
        f"one per data set and seed, that two methods have in common. Holm's correction is for the "
        f"{len(comparison.pairs[column])} pairs of each chart, at 5 %. Seeds of one data set are alike, so the tests "
        f"say less about other data sets than about these. All pairs with their p values: {PAIRS}.",
        "Differences are means over single results. The HM in the table above is computed from mean accuracies, so its "
        "differences can deviate slightly.",
    )
    return PageSection(
        DIFFERENCES,
        "Which differences are significant",
        figures=tuple(figures),
        notes=notes if "hm" in comparison.columns else notes[:3],
    )


def _names(comparison: Comparison) -> list[str]:
    return [label(row) for row in comparison.complete]


def _matrix(comparison: Comparison, column: str) -> list[list[tuple[float, str, bool] | None]]:
    return [[_entry(comparison, column, row, other) for other in comparison.complete] for row in comparison.complete]


def _entry(comparison: Comparison, column: str, row: Row, other: Row) -> tuple[float, str, bool] | None:
    if row == other:
        return None
    pair = comparison.pair(column, row, other)
    hint = (
        f"{label(row)} minus {label(other)}: {pair.test.difference:+.2f} points, better in {pair.test.better} and "
        f"worse in {pair.test.worse} of {pair.test.n} results, p = {pair.corrected:.2g} after correction"
    )
    return pair.test.difference, hint, pair.differs


def _pair_table(comparison: Comparison) -> Table:
    """Differences in the main column as text; a star marks significant ones."""
    head = ("row minus column", *(str(place + 1) for place in range(len(comparison.complete))))
    rows = []
    for place, line in enumerate(_matrix(comparison, comparison.main)):
        texts = [f"{entry[0]:+.2f}{'*' if entry[2] else ''}" if entry else "" for entry in line]
        rows.append((f"{place + 1} {label(comparison.complete[place])}", *texts))
    return Table(head, tuple(rows), title=f"{_head(comparison, comparison.main)}; *: significant")


def _cost(comparison: Comparison) -> PageSection:
    """Cost against accuracy, one chart per recorded kind of cost."""
    figures = []
    for field, what, _ in COSTS:
        points = [
            Point(label(row), str(comparison.places[row]), cost, stat.mean)
            for row in comparison.complete
            if (cost := getattr(comparison.effort[row], field)) is not None
            and (stat := comparison.mean(row, comparison.main))
        ]
        if len(points) > 1:
            head = _head(comparison, comparison.main)
            chart = scatter_chart(f"{head} against {what}", points, x_title=f"{what} (logarithmic)", y_title=head)
            figures.append(Figure(f"cost-{field}", what, chart))
    notes = ["Blue, filled and joined: no other method is both cheaper and better. Better methods are up and left."]
    if figures and len(comparison.complete) > NAMED:
        notes.append("Numbers are ranks in the table of results; hover over a dot to see its name.")
    return PageSection(COST, "Cost against accuracy", figures=tuple(figures), notes=tuple(notes))


def _published(comparison: Comparison) -> PageSection:
    key, title = "published", "Published numbers"
    if comparison.no_published:
        return PageSection(key, title, notes=(f"Published numbers are not shown: {comparison.no_published}.",))
    rows: list[tuple[Value, ...]] = []
    for row in comparison.rows:
        paper, own = comparison.published(row)
        if paper or own:
            ours = [comparison.mean(row, column) for column in comparison.columns]
            rows.append((label(row), *ours, _printed(paper), _printed(own), own.source if own else ""))
    if not rows:
        return PageSection(key, title, notes=("None of these methods has published averages.",))
    heads = [f"here, {_head(comparison, column)}" for column in comparison.columns]
    head = (
        "method",
        *heads,
        "DeAR's paper, base / novel / HM",
        "own publication, base / novel / HM",
        "source",
    )
    count = len(heads)
    table = Table(head, tuple(rows), paper=(1 + count, 2 + count, 3 + count))
    note = (
        f"Published averages: the paper's eleven data sets, OpenAI's ViT-B/16, {PAPER_SHOTS} shots. Compare them with "
        f"the numbers here only if these use the same data sets."
    )
    return PageSection(key, title, (table,), notes=(note,))


def _printed(entry: PublishedEntry | None) -> str:
    if entry is None:
        return "—"
    return " / ".join(f"{value:.2f}" for value in (entry.printed.base, entry.printed.novel, entry.printed.hm) if value)


def _by_data(comparison: Comparison) -> PageSection:
    """The main column on every data set."""
    data = comparison.summary.data
    rows = tuple(
        (label(row), *(comparison.summary.stat(row, name, comparison.main) for name in data)) for row in comparison.rows
    )
    head = _head(comparison, comparison.main)
    return PageSection(
        "data-sets",
        f"{head} by data set",
        (Table(("method", *data), rows),),
        notes=("Mean ± spread over seeds.",) if len(comparison.seeds) > 1 else (),
    )


def _methods(comparison: Comparison) -> PageSection:
    """A table that describes the methods."""
    rows = []
    for name in dict.fromkeys(row.method for row in (*comparison.rows, *sorted(comparison.refused))):
        method = known(name)
        if method is None:
            continue
        about = method.about
        what = next(iter((method.__doc__ or "").strip().splitlines()), "")
        rows.append(
            (name, what, about.touches if about else "", about.needs if about else "", about.citation if about else "")
        )
    table = Table(("method", "what it is", "acts on", "needs besides photos", "published"), tuple(rows), words=5)
    return PageSection("methods", "The methods", (table,))


def _head(comparison: Comparison, column: str) -> str:
    if comparison.section.protocol == "few-shot":
        return "1 shot" if column == "1" else f"{column} shots"
    return HEADS.get(column, column)


def _cost_text(comparison: Comparison, row: Row, field: str, show: Callable[[float], str]) -> str:
    value = getattr(comparison.effort[row], field)
    return "—" if value is None else show(value)


def _csv(records: Sequence[dict[str, Any]]) -> str:
    """Records as CSV, for `pandas.read_csv`."""
    rows = ({name: "" if value is None else str(value) for name, value in record.items()} for record in records)
    return csv_table(list(records[0]) if records else [], rows)


def _json(records: Sequence[dict[str, Any]]) -> str:
    """Records as JSON, for `pandas.read_json`."""
    return json.dumps(list(records), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
