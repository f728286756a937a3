"""Results of cells as tables: CSV for programs, Markdown with the paper's numbers for people. Pure functions."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from statistics import fmean

from dear.evaluation.comparison import PaperNumber, paper_number
from dear.evaluation.results import CellResult
from dear.evaluation.statistics import Stat
from dear.evaluation.summary import (
    Row,
    Section,
    Summary,
    by_section,
    first_seen,
    in_order,
    strategies,
    summarise,
)
from dear.world.catalog import DATASETS

NO_RESULTS = "There are no results yet: no cell of the grid is done.\n"

_IDENTITY = ("protocol", "method", "variant", "data", "seed", "shots")
_BASE_TO_NOVEL = ("base", "novel", "hm", "base_decoupled", "novel_decoupled", "hm_decoupled")
_FEW_SHOT = ("accuracy", "accuracy_decoupled")
_EFFORT = ("tested_on", "epochs", "cached_views", "images", "unreadable", "skipped", "seconds", "steps")
_MISSING = "—"
_TITLES = {
    "base-to-novel": "Base-to-novel",
    "few-shot": "Few-shot",
    "cross-dataset": "Cross-dataset",
    "domain": "Domain generalisation",
}
_OTHER_TITLES = {
    "base-to-novel": "Decoupled inference: by the [CLS] feature alone",
    "few-shot": "Decoupled inference: by the [CLS] feature alone",
    "cross-dataset": "The other way round: source by the [CLS] feature alone, targets by fusion",
    "domain": "The other way round: source by the [CLS] feature alone, variants by fusion",
}


def to_csv(results: Sequence[CellResult]) -> str:
    """One line a cell, the header alone where there is none; per cent with two decimals, empty where absent."""
    cells = in_order(results)
    protocols = {cell.protocol for cell in cells}
    transfers = sorted({found[:2]: None for cell in cells for found in _transfer(cell)}, key=lambda place: place[0])
    attributes = first_seen(name for cell in cells if cell.alpha for name in cell.attributes)
    columns = [
        *_IDENTITY,
        *(_BASE_TO_NOVEL if "base-to-novel" in protocols else ()),
        *(_FEW_SHOT if "few-shot" in protocols else ()),
        *first_seen(name for _, name in transfers),
        *_EFFORT,
        "alpha_cls",
        *(f"alpha_{name}" for name in attributes),
        "adapter_sha256",
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_csv_row(cell) for cell in cells)
    return out.getvalue()


def _csv_row(cell: CellResult) -> dict[str, str]:
    numbers: dict[str, float] = {name: value for _, name, value in _transfer(cell)}
    if cell.protocol == "base-to-novel":
        base, novel = cell.score("base"), cell.score("novel")
        plain = (base.fusion, novel.fusion, cell.harmonic_mean("fusion"))
        decoupled = (base.decoupled, novel.decoupled, cell.harmonic_mean("decoupled"))
        numbers = dict(zip(_BASE_TO_NOVEL, plain + decoupled, strict=True))
    elif cell.protocol == "few-shot":
        numbers = dict(zip(_FEW_SHOT, (cell.source.fusion, cell.source.decoupled), strict=True))
    names = ("alpha_cls", *(f"alpha_{name}" for name in cell.attributes)) if cell.alpha else ()
    return (
        {name: "" if (value := getattr(cell, name)) is None else str(value) for name in (*_IDENTITY, *_EFFORT)}
        | {name: f"{value:.2f}" for name, value in numbers.items()}
        | {name: f"{weight:.4f}" for name, weight in zip(names, cell.alpha, strict=True)}
        | {"seconds": f"{cell.seconds:.2f}", "adapter_sha256": cell.adapter_sha256 or ""}
    )


def _transfer(cell: CellResult) -> list[tuple[int, str, float]]:
    """Rank among the columns, name and value of what a cell found on its source and its targets."""
    if cell.protocol not in ("cross-dataset", "domain"):
        return []
    found = []
    for other in (False, True):
        home, away = strategies(cell.protocol, other=other)
        at_home, elsewhere = (f"_{home}", f"_{away}") if other else ("", "")
        rank = 3 if other else 0
        found.append((rank, f"source_{cell.data}{at_home}", cell.source.accuracy(home)))
        values = [target.accuracy(away) for target in cell.targets]
        names = [f"target_{target.data}{elsewhere}" for target in cell.targets]
        found += [(rank + 1, name, value) for name, value in zip(names, values, strict=True)]
        if values:
            found.append((rank + 2, f"average{elsewhere}", fmean(values)))
    return found


def to_markdown(results: Sequence[CellResult]) -> str:
    """Mean ± deviation over seeds for every data set, the average, and the paper's numbers where there are any."""
    if not results:
        return NO_RESULTS
    return "\n".join(_section(section, cells) for section, cells in by_section(results).items())


def _section(section: Section, cells: Sequence[CellResult]) -> str:
    source = f" from {section.source}" if section.source else ""
    shots = f", {_shots(section.shots)}" if section.shots is not None else ""
    main, other = summarise(section, cells), summarise(section, cells, other=True)
    main_table, main_papers = _table(main, other=False)
    other_table, other_papers = _table(other, other=True)
    notes = [
        *_reading_notes(main),
        *_training_notes(cells),
        *_average_notes(main),
        *_paper_notes(section, main_papers + other_papers),
        *_world_notes(main),
        *_unreadable_notes(cells),
    ]
    images = ", validation images" if section.tested_on == "validation" else ""
    title, second = f"## {_TITLES[section.protocol]}{source}{shots}{images}", f"### {_OTHER_TITLES[section.protocol]}"
    listed = "\n".join(f"- {note}" for note in notes)
    return f"{title}\n\n{main_table}\n\n{second}\n\n{other_table}\n\n{listed}\n"


def _table(summary: Summary, *, other: bool) -> tuple[str, list[PaperNumber]]:
    """The table as Markdown, and the paper's numbers in it. A column of the paper is there if it has any number."""
    groups: list[str | None] = [*summary.data]
    if len(summary.averaged) > 1:
        groups.append(None)
    places = [(data, row) for data in groups for row in summary.rows]
    header = ["data", "method", "seeds"]
    lines = [
        [_group_title(summary, data) if row == summary.rows[0] else "", _label(row), _seeds(summary, row, data)]
        for data, row in places
    ]
    quoted: list[PaperNumber] = []
    for column in summary.columns:
        header.append(_heading(summary.section, column))
        papers = [paper_number(summary, row, data, column, other=other) for data, row in places]
        there = [paper for paper in papers if paper]
        header += ["paper"] if there else []
        quoted += there
        for line, (data, row), paper in zip(lines, places, papers, strict=True):
            line.append(_entry(summary, row, data, column))
            line += [paper.text if paper else ""] if there else []
    return _markdown(header, lines), quoted


def _entry(summary: Summary, row: Row, data: str | None, column: str) -> str:
    if data is not None:
        stat = summary.stat(row, data, column)
        return _stat(stat) if stat else _MISSING
    average = summary.average(row, column)
    if average is None:
        return _MISSING
    done, all_of_them = len(average.data), len(summary.averaged)
    return _stat(average.stat) + ("" if done == all_of_them else f" ({done} of {all_of_them} sets)")


def _stat(stat: Stat) -> str:
    return f"{stat.mean:.2f}" if stat.std is None else f"{stat.mean:.2f} ± {stat.std:.2f}"


def _seeds(summary: Summary, row: Row, data: str | None) -> str:
    """How many seeds an entry is the mean of; a range where the columns of a row differ."""
    counts = [summary.seeds(row, data, column) for column in summary.columns]
    least, most = min(counts), max(counts)
    return str(most) if least == most else f"{least}–{most}"


def _reading_notes(summary: Summary) -> list[str]:
    section = summary.section
    weights = f"weights {section.backbone.weights_sha256[:12]}…"
    clip = ", ".join(filter(None, (section.backbone.name, section.backbone.pretrained, weights)))
    notes = [f"Backbone: {clip}.", "Top-1 accuracy in per cent, mean ± sample standard deviation over seeds."]
    if section.protocol == "base-to-novel":
        notes.append(
            "HM is computed for each seed and then averaged over seeds; in the average it is the harmonic mean of a "
            "seed's average base and average novel accuracy, as in the paper."
        )
    if section.source:
        home, away = map(_by, strategies(section.protocol))
        how = f"All by {home}" if home == away else f"Source by {home}, targets by {away}"
        notes.append(f"{how}; the average is of the targets.")
    return notes


def _training_notes(cells: Sequence[CellResult]) -> list[str]:
    """How long and on which views, where all cells agree about it."""
    ways = {(cell.epochs, cell.cached_views) for cell in cells if cell.steps}
    if len(ways) != 1 or (way := ways.pop())[0] is None:
        return []
    views = f"{way[1]} stored views an image" if way[1] else "new views of the images every epoch"
    return [f"Trained for {way[0]} epoch{'' if way[0] == 1 else 's'} on {views}."]


def _average_notes(summary: Summary) -> list[str]:
    """What a reader of a half-done grid has to know about its averages."""
    if len(summary.averaged) < 2:
        return []
    places = [(row, column) for row in summary.rows for column in summary.columns]
    averages = [summary.average(row, column) for row, column in places]
    notes = []
    if any(average and len(average.data) < len(summary.averaged) for average in averages):
        notes.append("An average over fewer data sets says so: it does not compare with one over all of them.")
    if any(
        summary.seeds(row, data, column) > summary.seeds(row, None, column)
        for row, column in places
        for data in summary.averaged
    ):
        notes.append("An average goes over the seeds that are done on all of its data sets.")
    return notes


def _paper_notes(section: Section, papers: list[PaperNumber]) -> list[str]:
    kinds = {paper.kind for paper in papers}
    notes = []
    if papers:
        sources = first_seen(paper.source for paper in papers)
        notes.append(f"paper: the paper's {'; '.join(sources)}, with OpenAI's ViT-B/16 and 16 shots.")
    if "corrected" in kinds:
        notes.append("[in brackets]: the HM that the paper's own base and novel give, where the printed one does not.")
    if "mean" in kinds:
        how = ", HM from mean base and mean novel" if section.protocol == "base-to-novel" else ""
        notes.append(f"\\*: the mean of the paper's numbers over the same data sets{how}.")
    if section.protocol == "few-shot":
        notes.append("The paper shows few-shot results as curves only, so there are no numbers to put beside these.")
    return notes


def _world_notes(summary: Summary) -> list[str]:
    found = [f"{name} for {DATASETS[name].stands_for}" for name in summary.data if name in DATASETS]
    if not found:
        return []
    return [f"Drawn data sets stand in for photographs ({'; '.join(found)}): the paper's numbers do not apply to them."]


def _unreadable_notes(cells: Sequence[CellResult]) -> list[str]:
    unreadable, skipped = sum(cell.unreadable for cell in cells), sum(cell.skipped for cell in cells)
    if not unreadable and not skipped:
        return []
    return [
        f"Unreadable images, over all cells: {unreadable} in tests (counted as wrong), {skipped} in training (skipped)."
    ]


def _by(strategy: str) -> str:
    return "fusion" if strategy == "fusion" else "the [CLS] feature alone"


def _group_title(summary: Summary, data: str | None) -> str:
    if data is None:
        return "**average**"
    return f"{data} (source)" if data == summary.section.source else data


def _label(row: Row) -> str:
    return f"{row.method}, {row.variant}" if row.variant else row.method


def _heading(section: Section, column: str) -> str:
    if section.protocol == "few-shot":
        return _shots(int(column))
    return "HM" if column == "hm" else column


def _shots(shots: int | None) -> str:
    return "1 shot" if shots == 1 else f"{shots} shots"


def _markdown(header: list[str], lines: list[list[str]]) -> str:
    """A table whose source is aligned too; the first two columns are words, the others numbers."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (header, *lines)]
    widths = [max(3, *(len(line[place]) for line in cells)) for place in range(len(header))]
    rule = ["-" * width if place < 2 else "-" * (width - 1) + ":" for place, width in enumerate(widths)]

    def text(line: list[str]) -> str:
        padded = [
            f"{c:<{w}}" if place < 2 else f"{c:>{w}}" for place, (c, w) in enumerate(zip(line, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    return "\n".join([text(cells[0]), text(rule), *map(text, cells[1:])])
