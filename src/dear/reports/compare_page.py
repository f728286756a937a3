"""The page, tables and files of a comparison of methods; the same results always give the same bytes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dear.evaluation.paper_numbers import PAPER_SHOTS
from dear.evaluation.published import PublishedEntry
from dear.evaluation.summary import Row
from dear.evaluation.tables import no_formula
from dear.reports.compare_data import Comparison, known, label
from dear.reports.compare_words import goal, many, verdict
from dear.reports.method_charts import Mark, Point, difference_chart, interval_chart, scatter_chart
from dear.reports.page_sections import Figure, PageSection, Table, Value, report_page
from dear.storage import markdown
from dear.storage.files import write_atomic

PAGE, TEXT, ROWS, JSON, PAIRS = "compare.html", "compare.md", "compare.csv", "compare.json", "compare-pairs.csv"
FILES = (PAGE, TEXT, ROWS, JSON, PAIRS)
HEADS = {"base": "base", "novel": "novel", "hm": "HM"}
PROTOCOLS = {"base-to-novel": "base-to-novel", "few-shot": "few-shot learning"}
ROLE_MAP = "a role map"
COSTS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("parameters", "trained parameters", lambda value: f"{value:,.0f}"),
    ("seconds", "seconds per training with tests", lambda value: f"{value:,.1f}"),
    ("peak_memory_mb", "peak memory, MB", lambda value: f"{value:,.0f}"),
    ("artefact_bytes", "saved adapter, bytes", lambda value: f"{value:,.0f}"),
)


def write_comparison(out: Path, found: Comparison) -> None:
    """Write the page and the tables into the folder of a grid."""
    contents = (page(found), text(found), _csv(found.records), _json(found.records), _csv(found.pair_records))
    for name, content in zip(FILES, contents, strict=True):
        write_atomic(out / name, content.encode())


def page(found: Comparison) -> str:
    """The page; it needs no other file and no network."""
    return report_page(_title(found), _subtitle(found), [], parts(found), lead=verdict(found))


def text(found: Comparison) -> str:
    """The same without pictures, as Markdown."""
    plain = markdown.plain
    said = "\n".join(f"- {plain(sentence)}" for sentence in verdict(found))
    blocks = [f"# {plain(_title(found))}", plain(_subtitle(found)), said]
    for part in (*parts(found)[:1], PageSection("pairs", "Differences", (_pair_table(found),)), *parts(found)[2:]):
        if not (part.tables or part.notes):
            continue
        blocks.append(f"## {plain(part.title)}")
        blocks += [markdown.table(one.head, one.texts(), words=one.words) for one in part.tables]
        blocks += ["\n".join(f"- {plain(note)}" for note in part.notes)] if part.notes else []
    return "\n\n".join(blocks) + "\n"


def parts(found: Comparison) -> list[PageSection]:
    """The parts of the page."""
    made = [_results(found)]
    if len(found.complete) > 1:
        made += [_differences(found), _cost(found)]
    made.append(_published(found))
    made.append(_by_data(found))
    if found.refused:
        rows = tuple((label(row), why) for row, why in sorted(found.refused.items()))
        made.append(PageSection("refused", "Methods that could not be run", (Table(("method", "why"), rows, words=2),)))
    return [*made, _methods(found)]


def _title(found: Comparison) -> str:
    return f"{len(found.rows)} methods compared: {PROTOCOLS.get(found.section.protocol, found.section.protocol)}"


def _subtitle(found: Comparison) -> str:
    section = found.section
    clip = " ".join(filter(None, (section.backbone.name.rpartition("/")[2], section.backbone.pretrained)))
    shots = f", {section.shots} shots" if section.shots else ""
    recipe = (
        "one recipe for all methods (shared)" if section.recipe == "shared" else "each method by its own recipe (own)"
    )
    images = ", tested on validation images" if section.tested_on == "validation" else ""
    sets = ", ".join(found.summary.averaged)
    how = (
        "Trained on half of the classes (base), tested on both (novel: the other half). "
        if "hm" in found.columns
        else ""
    )
    seeds = f"seed{'s' if len(found.seeds) > 1 else ''} {', '.join(map(str, found.seeds))}"
    return f"{how}Backbone {clip}{shots}; {recipe}{images}; {seeds}; data: {sets}."


def _results(found: Comparison) -> PageSection:
    notes: dict[str, str] = {}
    rows: list[tuple[Value, ...]] = []
    ordered = (found.main, *found.columns[:-1])  # what a narrow screen shows first is what methods are ordered by
    for place, row in enumerate(found.rows, start=1):
        marks = [notes.setdefault(text, _letter(len(notes))) for text in found.footnotes(row)]
        name = label(row) + "".join(f" [{mark}]" for mark in marks)
        numbers = [found.mean(row, column) for column in ordered]
        costs = [_cost_text(found, row, field, show) for field, _, show in COSTS]
        rows.append((str(place), name, *numbers, *costs))
    heads = [_head(found, column) for column in ordered]
    table = Table(("", "method", *heads, *(what for _, what, _ in COSTS)), tuple(rows), words=2)
    said = [
        f"Top-1 accuracy in per cent: the mean over {many(len(found.summary.averaged), 'data set')}, "
        + (
            "of one seed, so that no spread is known."
            if len(found.seeds) == 1
            else f"then the mean ± sample standard deviation of that over {len(found.seeds)} seeds. It says how much a "
            "seed matters, not how sure a difference is."
        )
    ]
    if "hm" in found.columns:
        said.append(
            "HM is the harmonic mean of a seed's mean base and mean novel accuracy, as is usual for this protocol."
        )
    if found.section.recipe == "shared":
        said.append("One recipe for all compares the methods, not what each can reach with a recipe of its own.")
    said += [f"All methods were trained with {text}." for text in found.unlike_all]
    said += [f"[{mark}] {text}." for text, mark in notes.items()]
    if any(ROLE_MAP in text for text in notes):
        said.append("A role map says which attention heads see what; --roles auto finds one from the training photos.")
    said.append(
        "Costs are medians over trainings with their tests, on the machine that ran them. What frozen layers make of "
        "an image is computed once, so only the first method that needs it takes the seconds for it; peak memory is of "
        "the whole process (on a GPU: of tensors)."
    )
    return PageSection("results", "Results", (table,), notes=tuple(said))


def _differences(found: Comparison) -> PageSection:
    column = found.main
    best, what = found.best(column), goal(found, column)[1]
    near = {best, *found.tied(column)}
    behind = sorted(found.gaps(column), key=lambda one: (-one.difference, one.row))
    marks = [Mark(label(one.row), one.difference, one.low, one.high, one.row in near) for one in behind]
    head = _head(found, column)
    figures = [
        Figure(
            "behind",
            "behind the best",
            interval_chart(
                f"{head}: difference to {label(best)}", marks, x_title="points, mean and 95 % interval over results"
            ),
        )
    ]
    figures += [
        Figure(
            f"pairs-{one}",
            one,
            difference_chart(f"{_head(found, one)}: row minus column", _names(found), _matrix(found, one)),
        )
        for one in (column, *(other for other in found.columns if other != column))
    ]
    notes = (
        f"Blue, filled dots in the first picture: cannot be told from {label(best)}, which has the highest {what}. "
        f"Grey, hollow dots: behind by more than chance explains. The test is corrected for the number of pairs, the "
        f"intervals are not, so one of a blue dot may lie beside zero.",
        "In the other pictures each number is the mean difference, row minus column, in points; columns bear the rows' "
        "numbers. Bold on blue: the row is better, bold on red: it is worse, grey: cannot be told apart.",
        f"Tested by Wilcoxon's signed-rank test (exact, two-sided) on the {found.results_per_pair} results, one per "
        f"data set and seed, that two methods have in common, with Holm's correction for the "
        f"{len(found.pairs[column])} pairs of each picture, at 5 %. Seeds of one data set are alike, so the tests say "
        f"less about other data sets than about these. All pairs with their p values: {PAIRS}.",
        "These are means of differences of single results; HM in the table above is that of mean accuracies, so "
        "differences can deviate slightly.",
    )
    return PageSection(
        "differences",
        "Which differences are real",
        figures=tuple(figures),
        notes=notes if "hm" in found.columns else notes[:3],
    )


def _names(found: Comparison) -> list[str]:
    return [label(row) for row in found.complete]


def _matrix(found: Comparison, column: str) -> list[list[tuple[float, str, bool] | None]]:
    return [[_entry(found, column, row, other) for other in found.complete] for row in found.complete]


def _entry(found: Comparison, column: str, row: Row, other: Row) -> tuple[float, str, bool] | None:
    if row == other:
        return None
    pair = found.pair(column, row, other)
    hint = (
        f"{label(row)} minus {label(other)}: {pair.test.difference:+.2f} points, better in {pair.test.better} and "
        f"worse in {pair.test.worse} of {pair.test.n} results, p = {pair.corrected:.2g} after correction"
    )
    return pair.test.difference, hint, pair.differs


def _pair_table(found: Comparison) -> Table:
    """Differences in the main column as text; a star marks those that are more than chance."""
    head = ("row minus column", *(str(place + 1) for place in range(len(found.complete))))
    rows = []
    for place, line in enumerate(_matrix(found, found.main) if len(found.complete) > 1 else []):
        texts = [f"{entry[0]:+.2f}{'*' if entry[2] else ''}" if entry else "" for entry in line]
        rows.append((f"{place + 1} {label(found.complete[place])}", *texts))
    return Table(head, tuple(rows), title=f"{_head(found, found.main)}; *: more than chance explains")


def _cost(found: Comparison) -> PageSection:
    """Cost against accuracy, one picture per kind of cost that is known."""
    figures = []
    for field, what, _ in COSTS:
        points = [
            Point(label(row), str(place), cost, stat.mean)
            for place, row in enumerate(found.complete, start=1)
            if (cost := getattr(found.effort[row], field)) is not None and (stat := found.mean(row, found.main))
        ]
        if len(points) > 1:
            head = _head(found, found.main)
            chart = scatter_chart(f"{head} against {what}", points, x_title=f"{what} (logarithmic)", y_title=head)
            figures.append(Figure(f"cost-{field}", what, chart))
    notes = ["Blue, filled and joined: no other method is both cheaper and better. Up and to the left is good."]
    if any(len(figure.svg) for figure in figures) and len(found.complete) > 10:
        notes.append("Numbers are the places in the table of results; pointing at a dot shows its name.")
    return PageSection("cost", "Cost against accuracy", figures=tuple(figures), notes=tuple(notes))


def _published(found: Comparison) -> PageSection:
    key, title = "published", "Published numbers"
    if found.no_published:
        return PageSection(key, title, notes=(f"Published numbers are not shown: {found.no_published}.",))
    rows: list[tuple[Value, ...]] = []
    for row in found.rows:
        paper, own = found.published(row)
        if paper or own:
            ours = [found.mean(row, column) for column in found.columns]
            rows.append((label(row), *ours, _printed(paper), _printed(own), own.source if own else ""))
    if not rows:
        return PageSection(key, title, notes=("None of these methods has published averages.",))
    heads = [f"here, {_head(found, column)}" for column in found.columns]
    head = (
        "method",
        *heads,
        "DeAR's paper, base / novel / HM",
        "own publication, base / novel / HM",
        "where it was found",
    )
    count = len(heads)
    table = Table(head, tuple(rows), paper=(1 + count, 2 + count, 3 + count))
    note = (
        f"Published: averages over the paper's eleven data sets, OpenAI's ViT-B/16, {PAPER_SHOTS} shots. Compare them "
        f"with the numbers here only if these are over the same data sets."
    )
    return PageSection(key, title, (table,), notes=(note,))


def _printed(found: PublishedEntry | None) -> str:
    if found is None:
        return "—"
    return " / ".join(f"{value:.2f}" for value in (found.printed.base, found.printed.novel, found.printed.hm) if value)


def _by_data(found: Comparison) -> PageSection:
    """The main column on every data set."""
    data = found.summary.data
    rows = tuple((label(row), *(found.summary.stat(row, name, found.main) for name in data)) for row in found.rows)
    head = _head(found, found.main)
    return PageSection(
        "data-sets",
        f"{head} by data set",
        (Table(("method", *data), rows),),
        notes=("Mean ± spread over seeds.",) if len(found.seeds) > 1 else (),
    )


def _methods(found: Comparison) -> PageSection:
    """What the methods are."""
    rows = []
    for name in dict.fromkeys(row.method for row in (*found.rows, *sorted(found.refused))):
        method = known(name)
        if method is None:
            continue
        about = method.about
        what = (method.__doc__ or "").strip().splitlines()[0]
        rows.append(
            (name, what, about.touches if about else "", about.needs if about else "", about.citation if about else "")
        )
    table = Table(("method", "what it is", "acts on", "needs besides photos", "published"), tuple(rows), words=5)
    return PageSection("methods", "The methods", (table,))


def _head(found: Comparison, column: str) -> str:
    if found.section.protocol == "few-shot":
        return "1 shot" if column == "1" else f"{column} shots"
    return HEADS.get(column, column)


def _cost_text(found: Comparison, row: Row, field: str, show: Callable[[float], str]) -> str:
    value = getattr(found.effort[row], field)
    return "—" if value is None else show(value)


def _letter(place: int) -> str:
    """a, b, … z, aa, ab, …"""
    first, second = divmod(place, 26)
    return (chr(96 + first) if first else "") + chr(97 + second)


def _csv(records: Sequence[dict[str, Any]]) -> str:
    """Records as CSV, for `pandas.read_csv`."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: "" if value is None else no_formula(str(value)) for name, value in record.items()})
    return out.getvalue()


def _json(records: Sequence[dict[str, Any]]) -> str:
    """Records as JSON, for `pandas.read_json`."""
    return json.dumps(list(records), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
