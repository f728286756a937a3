"""Builds the paper's tables from the results of cells, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dear.evaluation.published import AVERAGE, Quantity, published_table, readout_variant
from dear.evaluation.results import CellResult
from dear.evaluation.statistics import Stat
from dear.evaluation.summary import HEADS, HM_NOTE, Row, Summary, by_section, summarise
from dear.paper.numbers import (
    QUANTITIES,
    average_text,
    average_value,
    does_not_follow,
    paper_text,
    paper_titles,
    paper_value,
    published_row,
    stands_for,
    verdict,
    yes,
)
from dear.paper.plan import THRESHOLDS, Experiment, Sets, results_of
from dear.reports.page_sections import PageSection, Table, Value

ZERO_SHOT, DEAR = Row("zero_shot", ""), Row("dear", "")
NAMES = {ZERO_SHOT: "CLIP, zero-shot", DEAR: "DeAR"}
PERCENT = "Top-1 accuracy in per cent, mean ± sample standard deviation over seeds."
ONE_SEED = "Top-1 accuracy in per cent, of one seed: the spread is unknown."
BRACKETS = "[In brackets]: the HM computed from the paper's base and novel, where the printed HM differs."
ELEVEN = "average of its eleven"
STAR = "*: the mean of the paper's numbers over the same data sets."


OTHERS = "The paper's other methods are measured with --methods all."


class Line(NamedTuple):
    """A row of an ablation: its label, its row in our results, and its variant in the paper's table."""

    label: str
    row: Row
    paper: str


def summary_of(experiment: Experiment, results: Sequence[CellResult], readout: str | None = None) -> Summary | None:
    """The numbers of an experiment, for the protocol's readouts or the named one; None without finished cells."""
    sections = by_section(results_of(experiment, results))
    if not sections:
        return None
    section, cells = next(iter(sections.items()))
    return summarise(section, cells, readout)


def stat_of(summary: Summary | None, row: Row, data: str | None, column: str) -> Stat | None:
    """One entry, or the average over data sets if `data` is None; None if it is missing."""
    if summary is None or row not in summary.values:
        return None
    if data is not None:
        return summary.stat(row, data, column)
    average = summary.average(row, column)
    return average.stat if average else None


def rows_of(summary: Summary, table_name: str) -> list[Row]:
    """The methods of a table: plain CLIP, the others in the paper's order, then those it does not name, then DeAR."""
    printed = [Row(row.method, row.variant) for row in published_table(table_name).rows]
    others = [row for row in (*printed, *summary.rows) if row not in (ZERO_SHOT, DEAR)]
    return [row for row in dict.fromkeys((ZERO_SHOT, *others, DEAR)) if row in summary.values]


def name_of(table_name: str, row: Row) -> str:
    """A method as the paper writes it, or its own name."""
    published = published_row(table_name, row.method, row.variant)
    return NAMES.get(row) or (published.label if published else row.method)


def state_notes(experiment: Experiment, results: Sequence[CellResult]) -> tuple[str, ...]:
    """Notes on what is incomplete: why nothing ran, missing data sets, unfinished cells, unreadable images."""
    if experiment.blocked:
        return (f"Not run: {experiment.blocked}.",)
    notes = [f"Left out, because they are missing: {', '.join(experiment.lacks)}."] if experiment.lacks else []
    done = results_of(experiment, results)
    if len(done) < len(experiment.cells):
        notes.append(f"{len(done)} of {len(experiment.cells)} cells are done; the numbers are from these cells.")
    unreadable, skipped = sum(one.unreadable for one in done), sum(one.skipped for one in done)
    if unreadable or skipped:
        notes.append(f"Unreadable images: {unreadable} in tests (counted as wrong), {skipped} in training (skipped).")
    return tuple(notes)


def percent_note(experiment: Experiment, results: Sequence[CellResult]) -> str:
    """A note on what the numbers are, with the spread only if there are several seeds."""
    return PERCENT if len({cell.seed for cell in results_of(experiment, results)}) > 1 else ONE_SEED


def base_to_novel_section(experiment: Experiment, results: Sequence[CellResult]) -> PageSection:
    """Table 2: every data set beside the paper's data set that it represents."""
    summary = summary_of(experiment, results)
    if summary is None:
        return empty_section(experiment, results)
    rows: list[tuple[Value, ...]] = []
    for data in (*summary.data, None):
        rows += [_base_to_novel_row(summary, row, data) for row in rows_of(summary, "base-to-novel")]
    ours, papers = _averages(summary, "hm")
    novel, paper_novel = _averages(summary, "novel")
    names = [name for data in summary.data for name in stands_for(data) if len(stands_for(data)) == 1]
    table = Table(
        ("data", "paper, on", "method", "base", "paper", "novel", "paper", "HM", "paper"),
        tuple(rows),
        words=3,
        paper=(1, 4, 6, 8),
    )
    notes = (
        f"{percent_note(experiment, results)} {HM_NOTE}",
        *((BRACKETS,) if does_not_follow("base-to-novel", [*names, AVERAGE]) else ()),
        *_star_note(table),
        "If a data set represents two of the paper's, the paper's number is the mean of both.",
        "Plain CLIP is tested once: nothing in it is random.",
        *(() if len(summary.rows) > 2 else (OTHERS,)),
    )
    says = (verdict("Average HM", ours, papers), verdict("Average novel accuracy", novel, paper_novel))
    return finished_section(experiment, results, (table,), says, notes)


def _base_to_novel_row(summary: Summary, row: Row, data: str | None) -> tuple[Value, ...]:
    published = published_row("base-to-novel", row.method)
    cells: list[Value] = [data or "average", paper_titles(data) if data else ELEVEN, name_of("base-to-novel", row)]
    for quantity in QUANTITIES:
        cells.append(stat_of(summary, row, data, quantity))
        if data is None:
            cells.append(average_text("base-to-novel", published, summary.averaged, quantity))
        else:
            cells.append(paper_text(published, stands_for(data), quantity))
    return tuple(cells)


def _averages(summary: Summary, column: str) -> tuple[dict[str, Stat | None], dict[str, float | None]]:
    rows = rows_of(summary, "base-to-novel")
    names = {row: name_of("base-to-novel", row) for row in rows}
    ours = {names[row]: stat_of(summary, row, None, column) for row in rows}
    papers = {
        names[row]: average_value(
            "base-to-novel", published_row("base-to-novel", row.method), summary.averaged, column
        )[0]
        for row in rows
    }
    return ours, papers


def transfer_section(experiment: Experiment, results: Sequence[CellResult], table_name: str) -> PageSection:
    """Tables 3 and 4: the source, every target and their average."""
    summary = summary_of(experiment, results)
    if summary is None:
        return empty_section(experiment, results)
    methods = dict.fromkeys((ZERO_SHOT, *rows_of(summary, table_name), DEAR))
    published = {row: published_row(table_name, row.method, row.variant) for row in methods}
    rows: list[tuple[Value, ...]] = []
    for data in (*summary.data, None):
        cells: list[Value] = []
        for row in methods:
            cells.append(stat_of(summary, row, data, "accuracy"))
            if (paper := published[row]) is None:
                continue
            averages = data is None and average_text(table_name, paper, summary.averaged, "accuracy")
            cells.append(averages or (paper_text(paper, stands_for(data), "accuracy") if data else ""))
        source = " (source)" if data == summary.section.source else ""
        on = paper_titles(data) if data else "average of its targets"
        rows.append((f"{data}{source}" if data else "average of the targets", on, *cells))
    head, paper_columns = ["data", "paper, on"], [1]
    for row in methods:
        head.append(name_of(table_name, row))
        if published[row] is not None:
            paper_columns.append(len(head))
            head.append(f"paper, {head[-1]}")
    table = Table(tuple(head), tuple(rows), words=2, paper=tuple(paper_columns))
    plain, adapted = (stat_of(summary, row, None, "accuracy") for row in (ZERO_SHOT, DEAR))
    says = []
    if plain and adapted:
        says.append(
            f"Average of the targets: DeAR {adapted.mean:.2f}, plain CLIP {plain.mean:.2f}; DeAR is the better one: "
            f"{yes(adapted.mean > plain.mean)}. The paper prints no number for plain CLIP here."
        )
    if table_name == "domain":
        says.append(_targets_verdict(summary, table_name))
    how = "The source by fusion, the targets by decoupled inference: the [CLS] feature alone."
    notes = (percent_note(experiment, results), how, *_star_note(table), *(() if len(methods) > 2 else (OTHERS,)))
    return finished_section(experiment, results, (table,), says, notes)


def _targets_verdict(summary: Summary, table_name: str) -> str:
    """A sentence on whether the shifted sets have the paper's order of difficulty."""
    published = published_row(table_name, "dear")
    ours = {paper_titles(data): stat_of(summary, DEAR, data, "accuracy") for data in summary.averaged}
    papers = {paper_titles(data): paper_value(published, stands_for(data), "accuracy") for data in summary.averaged}
    return verdict("DeAR on the shifted sets, by the paper's names", ours, papers)


def mask_lines() -> list[Line]:
    """The rows of Table 5."""
    masks = [("All-Generalization", "mask=all_generalization"), ("All-Mixed", "mask=all_mixed")]
    return [*(Line(label, Row("dear", variant), variant) for label, variant in masks), Line("DeAR", DEAR, "")]


def loss_lines() -> list[Line]:
    """The rows of Table 6; our variants list the settings in the order of the plan."""
    return [
        Line("L_CE", Row("dear", "lambda_reg=0,lambda_fusion=0"), "lambda_fusion=0,lambda_reg=0"),
        Line("L_CE + L_reg", Row("dear", "lambda_fusion=0"), "lambda_fusion=0"),
        Line("L_CE + L_reg + L_fusion", DEAR, ""),
    ]


def ablation_section(
    experiment: Experiment, results: Sequence[CellResult], table_name: str, lines: Sequence[Line]
) -> PageSection:
    """Tables 5 and 6: averages over the base-to-novel data sets, one row per variant."""
    summary = summary_of(experiment, results)
    if summary is None:
        return empty_section(experiment, results)
    found = {line: {q: stat_of(summary, line.row, None, q) for q in QUANTITIES} for line in lines}
    table, says = _compared(table_name, lines, found, [AVERAGE])
    notes = (f"{percent_note(experiment, results)} {HM_NOTE}", _averages_note(summary))
    return finished_section(experiment, results, (table,), says, notes)


def seeds_section(experiment: Experiment, results: Sequence[CellResult], sets: Sets) -> PageSection:
    """Supplement, Table 3: the spread over seeds, on average and on the set that represents ImageNet."""
    summary = summary_of(experiment, results)
    if summary is None:
        return empty_section(experiment, results)
    published = published_row("seeds", "dear")
    rows: list[tuple[Value, ...]] = []
    says = []
    for data, name in ((None, AVERAGE), (sets.source, "imagenet")):
        cells: list[Value] = []
        for quantity in QUANTITIES:
            cells += [stat_of(summary, DEAR, data, quantity), paper_text(published, [name], quantity)]
        rows.append((data or "average", "ImageNet" if data else ELEVEN, *cells))
        ours = stat_of(summary, DEAR, data, "hm")
        if ours and ours.std is not None and published:
            theirs = published.spread[name].hm or 0.0
            says.append(
                f"Standard deviation of the HM over {ours.seeds} seeds, {data or 'average'}: {ours.std:.2f} here, "
                f"{theirs:.2f} in the paper; ours is at most the paper's: {yes(ours.std <= theirs)}."
            )
    head = ("DeAR on", "paper, on", "base", "paper", "novel", "paper", "HM", "paper")
    table = Table(head, tuple(rows), words=2, paper=(1, 3, 5, 7))
    return finished_section(
        experiment, results, (table,), says, (percent_note(experiment, results), _averages_note(summary))
    )


def strategy_section(experiment: Experiment, results: Sequence[CellResult]) -> PageSection:
    """Supplement, Table 5: both inference strategies of the same models."""
    decoupled, fusion = (summary_of(experiment, results, name) for name in ("decoupled", "fusion"))
    if fusion is None:
        return empty_section(experiment, results)
    lines = [Line("Decoupled", DEAR, readout_variant("", "decoupled")), Line("Fusion", DEAR, "")]
    by_line = dict(zip(lines, (decoupled, fusion), strict=True))
    found = {line: {q: stat_of(by_line[line], DEAR, None, q) for q in QUANTITIES} for line in lines}
    table, says = _compared("inference-strategy", lines, found, [AVERAGE])
    notes = (percent_note(experiment, results), "Both strategies read the same trained models.", _averages_note(fusion))
    return finished_section(experiment, results, (table,), says, notes)


def threshold_lines() -> list[Line]:
    """The rows of the supplement's Table 6, left; the paper's own setting is 20 per cent."""
    return [
        Line(f"{percent} %", Row("dear", f"threshold={percent}"), "" if percent == 20 else f"threshold={percent}")
        for percent in THRESHOLDS
    ]


def role_lines() -> list[Line]:
    """The rows of the supplement's Table 6, right."""
    variants = [("Shuffled roles", "mask=shuffled"), ("K = 3", "attributes=3"), ("K = 7", "attributes=7")]
    return [*(Line(label, Row("dear", variant), variant) for label, variant in variants), Line("K = 5", DEAR, "")]


def source_section(
    experiment: Experiment, results: Sequence[CellResult], table_name: str, lines: Sequence[Line], sets: Sets
) -> PageSection:
    """Supplement, Table 6: variants on the set that represents ImageNet."""
    summary = summary_of(experiment, results)
    if summary is None:
        return empty_section(experiment, results)
    found = {line: {q: stat_of(summary, line.row, sets.source, q) for q in QUANTITIES} for line in lines}
    table, says = _compared(table_name, lines, found, ["imagenet"])
    notes = (
        percent_note(experiment, results),
        f"Here on {sets.source}; the paper's numbers are on ImageNet-1K, and only the HM is printed.",
    )
    return finished_section(experiment, results, (table,), says, notes)


def _compared(
    table_name: str, lines: Sequence[Line], found: dict[Line, dict[Quantity, Stat | None]], data: list[str]
) -> tuple[Table, list[str]]:
    """A table of variants with the paper's numbers, and a sentence per column that the paper prints."""
    published = {line: published_row(table_name, "dear", line.paper) for line in lines}
    papers = {q: {line: paper_value(published[line], data, q) for line in lines} for q in QUANTITIES}
    printed = [q for q in QUANTITIES if any(value is not None for value in papers[q].values())]
    head, paper_columns = ["variant"], []
    for q in QUANTITIES:
        head.append(HEADS[q])
        if q in printed:
            paper_columns.append(len(head))
            head.append("paper")
    rows = []
    for line in lines:
        row: list[Value] = [line.label]
        for q in QUANTITIES:
            row += [found[line][q], *([paper_text(published[line], data, q)] if q in printed else [])]
        rows.append(tuple(row))
    says = [
        verdict(
            HEADS[q].capitalize() if q != "hm" else "HM",
            {line.label: found[line][q] for line in lines},
            {line.label: papers[q][line] for line in lines},
        )
        for q in printed
    ]
    return Table(tuple(head), tuple(rows), paper=tuple(paper_columns)), says


def _averages_note(summary: Summary) -> str:
    count = len(summary.averaged)
    return f"Averages go over {count} data set{'' if count == 1 else 's'}; the paper's over its eleven."


def _star_note(table: Table) -> tuple[str, ...]:
    return (STAR,) if any(isinstance(value, str) and value.endswith("*") for row in table.rows for value in row) else ()


def empty_section(experiment: Experiment, results: Sequence[CellResult]) -> PageSection:
    """A section without any results yet."""
    return PageSection(experiment.key, experiment.title, notes=state_notes(experiment, results))


def finished_section(
    experiment: Experiment,
    results: Sequence[CellResult],
    tables: Sequence[Table],
    says: Sequence[str],
    notes: Sequence[str],
) -> PageSection:
    """A section with its non-empty sentences, and notes on what is missing."""
    sentences = tuple(sentence for sentence in says if sentence)
    notes = (*notes, *state_notes(experiment, results))
    return PageSection(experiment.key, experiment.title, tuple(tables), says=sentences, notes=notes)
