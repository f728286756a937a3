"""Formats the results of cells as tables: CSV for programs, Markdown with the paper's numbers and text for people."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from statistics import fmean
from textwrap import fill

from dear.data.splits import span
from dear.evaluation.deviations import recipe_notes
from dear.evaluation.paper_numbers import PaperNumber, paper_number, why_none
from dear.evaluation.results import CellResult, Scores
from dear.evaluation.role_map_notes import resource_notes, used_maps
from dear.evaluation.statistics import Stat
from dear.evaluation.summary import (
    HM_NOTE,
    PROTOCOLS,
    Row,
    Section,
    Summary,
    by_section,
    first_seen,
    further_readouts,
    in_order,
    summarise,
)
from dear.storage import markdown
from dear.storage.csv_text import csv_table
from dear.storage.files import shown
from dear.world.catalog import DATASETS

LONGEST = 28
"""Maximal number of letters of a name in a table for a terminal."""
NO_RESULTS = "There are no results yet: no cell of the grid is done.\n"

_IDENTITY = ("protocol", "method", "variant", "data", "seed", "shots")
_NUMBERS = ("base", "novel", "hm", "accuracy", "source_", "target_", "average")
"""Prefixes of the number columns, in their order."""
_EFFORT = (
    "recipe",
    "tested_on",
    "epochs",
    "cached_views",
    "images",
    "unreadable",
    "skipped",
    "seconds",
    "steps",
    "parameters",
    "peak_memory_mb",
    "artefact_bytes",
)
_ORIGIN = ("backbone", "pretrained", "weights", "role_map", "settings")
"""Columns that distinguish cells of several grids; hashes are shortened, default settings are left out."""
_MISSING = "—"
_TITLES = {
    "base-to-novel": "Base-to-novel",
    "few-shot": "Few-shot",
    "cross-dataset": "Cross-dataset",
    "domain": "Domain generalisation",
}


def to_csv(results: Sequence[CellResult]) -> str:
    """Return one line per cell, or only the header without cells; per cent with two decimals, empty if absent."""
    cells = in_order(results)
    further = {one: further_readouts(cell for cell in cells if cell.protocol == one) for one in PROTOCOLS}
    columns = [
        *_IDENTITY,
        *_columns([_numbers(cell) for cell in cells]),
        *(
            f"{column}_{readout}"
            for readout in first_seen(name for names in further.values() for name in names)
            for column in _columns([_numbers(cell) for cell in cells if readout in further[cell.protocol]])
        ),
        *_EFFORT,
        *first_seen(f"weight_{name}" for cell in cells for name in cell.weights),
        *_ORIGIN,
        "adapter_sha256",
    ]
    return csv_table(columns, [_csv_row(cell, further[cell.protocol]) for cell in cells])


def _columns(rows: Sequence[dict[str, float]]) -> list[str]:
    """The names of all numbers, in the order of `_NUMBERS`."""
    names = first_seen(name for numbers in rows for name in numbers)
    return sorted(names, key=lambda name: next(i for i, start in enumerate(_NUMBERS) if name.startswith(start)))


def _csv_row(cell: CellResult, further: Sequence[str]) -> dict[str, str]:
    numbers = _numbers(cell)
    for readout in further:
        if readout in cell.readout_names:
            numbers |= {f"{name}_{readout}": value for name, value in _numbers(cell, readout).items()}
    memory = cell.peak_memory_mb
    return (
        {name: "" if (value := getattr(cell, name)) is None else str(value) for name in (*_IDENTITY, *_EFFORT)}
        | {name: f"{value:.2f}" for name, value in numbers.items()}
        | {f"weight_{name}": f"{weight:.4f}" for name, weight in cell.weights.items()}
        | {"seconds": f"{cell.seconds:.2f}", "peak_memory_mb": "" if memory is None else f"{memory:.2f}"}
        | {"adapter_sha256": cell.adapter_sha256 or ""}
        | _origin(cell)
    )


def _origin(cell: CellResult) -> dict[str, str]:
    settings = json.dumps(cell.settings, sort_keys=True, ensure_ascii=False) if cell.settings else ""
    used = cell.backbone, cell.files.get("roles.json", "")
    hashes = used[0].weights_sha256[:12], used[1][:12]
    return dict(zip(_ORIGIN, (used[0].name, used[0].pretrained or "", *hashes, settings), strict=True))


def _numbers(cell: CellResult, readout: str | None = None) -> dict[str, float]:
    """The numbers of a cell by column, for the protocol's readouts or for the named one."""
    if cell.protocol == "base-to-novel":
        halves = {one.half: cell.reading(one, readout) for one in cell.scores}
        return {"base": halves["base"], "novel": halves["novel"], "hm": cell.harmonic_mean(readout)}
    source = cell.reading(cell.source, readout)
    if cell.protocol == "few-shot":
        return {"accuracy": source}
    targets = {f"target_{one.data}": cell.reading(one, readout) for one in cell.targets}
    average = {"average": fmean(targets.values())} if targets else {}
    return {f"source_{cell.data}": source, **targets, **average}


def to_markdown(results: Sequence[CellResult]) -> str:
    """Return mean ± deviation over seeds for every data set, the average, and the paper's numbers if there are any.

    The first table of a section uses the protocol's readouts; each further readout has its own table.
    """
    if not results:
        return NO_RESULTS
    return "\n".join(_section(section, cells) for section, cells in by_section(results).items())


def to_text(results: Sequence[CellResult], width: int = 80) -> str:
    """Return the main tables for a terminal: mean ± deviation with one decimal, without the paper and notes."""
    blocks = []
    for section, cells in by_section(results).items():
        summary = summarise(section, cells)
        groups = [*summary.data, *([None] if len(summary.averaged) > 1 else [])]
        lines = [
            [
                (_group_title(summary, data).strip("*") if row == summary.rows[0] else "")[:LONGEST],
                _label(row)[:LONGEST],
                *(_short(_entry(summary, row, data, column)) for column in summary.columns),
            ]
            for data in groups
            for row in summary.rows
        ]
        head = ["data", "method", *(_heading(section, column) for column in summary.columns)]
        seeds = sorted({cell.seed for cell in cells})
        over = f"mean ± deviation over {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
        table = markdown.aligned(head, lines, words=2, width=width)
        notes = [fill(note, width) for note in (*recipe_notes(section, cells), *resource_notes(cells))]
        blocks.append("\n".join([f"{_title(section)}, {over}", table, *notes]))
    return "\n\n".join(blocks) or NO_RESULTS.strip()


def _short(entry: str) -> str:
    """Shorten an entry: one decimal per number, and few words."""
    fewer = re.sub(r"\((\d+) of (\d+) sets\)", r"(\1/\2)", entry)
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", fewer)


def _section(section: Section, cells: Sequence[CellResult]) -> str:
    main = summarise(section, cells)
    text, papers = _table(main)
    blocks = [f"## {_title(section)}", text]
    for readout in further_readouts(cells):
        text, more = _table(summarise(section, cells, readout))
        blocks += [f"### Readout: {readout}", text]
        papers += more
    notes = [
        *_reading_notes(main),
        *_readout_notes(cells),
        *_training_notes(cells),
        *recipe_notes(section, cells),
        *training_image_notes(cells),
        *resource_notes(cells),
        *map(str, used_maps(cells)),
        *_average_notes(main),
        *_paper_notes(section, papers),
        *_world_notes(main),
        *_unreadable_notes(cells),
    ]
    return "\n\n".join([*blocks, "\n".join(f"- {note}" for note in notes)]) + "\n"


def _title(section: Section) -> str:
    source = f" from {section.source}" if section.source else ""
    shots = f", {_shots(section.shots)}" if section.shots is not None else ""
    recipe = "" if section.recipe == "own" else f", {section.recipe} recipe"
    images = ", validation images" if section.tested_on == "validation" else ""
    return f"{_TITLES[section.protocol]}{source}{shots}{recipe}{images}"


def _table(summary: Summary) -> tuple[str, list[PaperNumber]]:
    """The table as Markdown, and the paper's numbers in it; a column of the paper appears only if it has a number."""
    groups: list[str | None] = [*summary.data]
    if len(summary.averaged) > 1:
        groups.append(None)
    keys = [(data, row) for data in groups for row in summary.rows]
    header = ["data", "method", "seeds"]
    lines = [
        [_group_title(summary, data) if row == summary.rows[0] else "", _label(row), _seeds(summary, row, data)]
        for data, row in keys
    ]
    quoted: list[PaperNumber] = []
    for column in summary.columns:
        header.append(_heading(summary.section, column))
        papers = [paper_number(summary, row, data, column) for data, row in keys]
        printed = [paper for paper in papers if paper]
        header += ["paper"] if printed else []
        quoted += printed
        for line, (data, row), paper in zip(lines, keys, papers, strict=True):
            line.append(_entry(summary, row, data, column))
            line += [paper.text if paper else ""] if printed else []
    return markdown.table(header, lines, words=2), quoted


def _entry(summary: Summary, row: Row, data: str | None, column: str) -> str:
    if data is not None:
        stat = summary.stat(row, data, column)
        return _stat(stat) if stat else _MISSING
    average = summary.average(row, column)
    if average is None:
        return _MISSING
    done, total = len(average.data), len(summary.averaged)
    return _stat(average.stat) + ("" if done == total else f" ({done} of {total} sets)")


def _stat(stat: Stat) -> str:
    return f"{stat.mean:.2f}" if stat.std is None else f"{stat.mean:.2f} ± {stat.std:.2f}"


def _seeds(summary: Summary, row: Row, data: str | None) -> str:
    """How many seeds an entry is the mean of; a range if the columns of a row differ."""
    counts = [summary.seeds(row, data, column) for column in summary.columns]
    least, most = min(counts), max(counts)
    return str(most) if least == most else f"{least}–{most}"


def _reading_notes(summary: Summary) -> list[str]:
    section = summary.section
    weights = f"weights {section.backbone.weights_sha256[:12]}…"
    clip = ", ".join(filter(None, (section.backbone.name, section.backbone.pretrained, weights)))
    seeds = {seed for values in summary.values.values() for seed in values}
    spread = "mean ± sample standard deviation over seeds" if len(seeds) > 1 else "of one seed: the spread is unknown"
    notes = [f"Backbone: {clip}.", f"Top-1 accuracy in per cent, {spread}."]
    if section.protocol == "base-to-novel":
        notes.append(HM_NOTE)
    if section.source:
        notes.append("The average is the mean over the targets.")
    return notes


def _readout_notes(cells: Sequence[CellResult]) -> list[str]:
    """Which readout the main table uses for each method that has several."""
    notes = []
    for cell in cells:
        if len(cell.readout_names) > 1:
            used = {_tested(cell, scores): cell.readout(scores) for scores in cell.scores}
            how = ", ".join(f"{test} by {readout}" for test, readout in sorted(used.items()))
            how = how if len(set(used.values())) > 1 else f"all by {cell.readouts['default']}"
            notes.append(f"Readouts of {cell.method} in the main table: {how}.")
    return first_seen(notes)


def _tested(cell: CellResult, scores: Scores) -> str:
    if cell.protocol == "base-to-novel":
        return scores.half
    return "source" if scores.data == cell.data else "targets"


def _training_notes(cells: Sequence[CellResult]) -> list[str]:
    """Number of epochs and kind of views, if they are the same in all cells."""
    ways = {(cell.epochs, cell.cached_views) for cell in cells if cell.steps}
    if len(ways) != 1 or (way := ways.pop())[0] is None:
        return []
    views = f"{way[1]} cached views per image" if way[1] else "new views of each image in every epoch"
    return [f"Trained for {way[0]} epoch{'' if way[0] == 1 else 's'} on {views}."]


def training_image_notes(cells: Sequence[CellResult]) -> list[str]:
    """The file that lists the training images, and data sets whose classes have fewer than the number of shots."""
    listed = first_seen(f"Training images from {shown(cell.shots_file)}." for cell in cells if cell.shots_file)
    return listed + first_seen(
        f"Classes of {cell.data} have {span(cell.training_images)} training images instead of {cell.shots}, because "
        f"they have too few images."
        for cell in cells
        if cell.training_images and cell.has_few_images
    )


def _average_notes(summary: Summary) -> list[str]:
    """Notes on the averages of an incomplete grid."""
    if len(summary.averaged) < 2:
        return []
    keys = [(row, column) for row in summary.rows for column in summary.columns]
    averages = [summary.average(row, column) for row, column in keys]
    notes = []
    if any(average and len(average.data) < len(summary.averaged) for average in averages):
        notes.append("An average over fewer data sets is marked: do not compare it with one over all of them.")
    if any(
        summary.seeds(row, data, column) > summary.seeds(row, None, column)
        for row, column in keys
        for data in summary.averaged
    ):
        notes.append("An average uses only the seeds that are complete on all of its data sets.")
    return notes


def _paper_notes(section: Section, papers: list[PaperNumber]) -> list[str]:
    kinds = {paper.kind for paper in papers}
    notes = []
    sources = first_seen(paper.source for paper in papers if paper.kind != "own")
    if sources:
        notes.append(f"paper: the paper's {'; '.join(sources)}, with OpenAI's ViT-B/16 and 16 shots.")
    if "own" in kinds:
        others = first_seen(paper.source for paper in papers if paper.kind == "own")
        notes.append(f"†: not in the paper, but in the method's own publication ({'; '.join(others)}).")
    if "corrected" in kinds:
        notes.append("[in brackets]: the HM computed from the paper's base and novel, where the printed HM differs.")
    if "mean" in kinds:
        how = ", HM from mean base and mean novel" if section.protocol == "base-to-novel" else ""
        notes.append(f"\\*: the mean of the paper's numbers over the same data sets{how}.")
    if section.protocol == "few-shot":
        notes.append("The paper shows few-shot results only as curves, so there are no numbers to compare with.")
    elif why := why_none(section):
        notes.append(f"Published numbers are not shown: {why}.")
    return notes


def _world_notes(summary: Summary) -> list[str]:
    replaced = [f"{name} for {DATASETS[name].stands_for}" for name in summary.data if name in DATASETS]
    if not replaced:
        return []
    return [
        f"Rendered data sets replace photographs ({'; '.join(replaced)}): the paper's numbers do not apply to them."
    ]


def _unreadable_notes(cells: Sequence[CellResult]) -> list[str]:
    unreadable, skipped = sum(cell.unreadable for cell in cells), sum(cell.skipped for cell in cells)
    if not unreadable and not skipped:
        return []
    return [
        f"Unreadable images, over all cells: {unreadable} in tests (counted as wrong), {skipped} in training (skipped)."
    ]


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
