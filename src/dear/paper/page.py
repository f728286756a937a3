"""Writes the report of a paper: one page, one Markdown file per table, one file per figure, and all numbers as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dear.errors import DataError, OverwriteError
from dear.evaluation.results import CellResult
from dear.paper import tables
from dear.paper.figures import (
    ablation_result_section,
    few_shot_section,
    fusion_section,
    retrieval_section,
    roles_section,
)
from dear.paper.gains import gains_section
from dear.paper.measures import Gallery, Retrieval
from dear.paper.plan import Experiment, Sets, results_of
from dear.reports.page_sections import PageSection, Table, report_page, section_json, section_markdown
from dear.roles.ablation import Ablation
from dear.roles.rolemap import RoleMap
from dear.storage.documents import Document, OpenRecord
from dear.storage.files import write_atomic

PAGE, RESULTS, TABLES, FIGURES = "report.html", "results.json", "tables", "figures"

Kind = Literal["mini", "full"]
ASSIGNED = (
    " Not evidence about other CLIPs: the pre-training of the world's CLIP assigned heads of its last four layers to "
    "the five attributes."
)
"""Follows every statement about heads or layers whose part was assigned by pre-training."""


class PaperResults(Document, OpenRecord):
    """The document `results.json`: every number of a report."""

    format = "dear-paper"
    version = 2
    noun = "paper's results"
    error = DataError


@dataclass(frozen=True)
class Findings:
    """The data of a report; fields that have not been computed yet are None or empty."""

    kind: Kind
    sets: Sets
    experiments: tuple[Experiment, ...]
    results: Sequence[CellResult]
    setting: str
    """A sentence on how everything was trained."""
    roles: RoleMap | None = None
    assigned_heads: bool = False
    """Whether pre-training assigned heads to attributes, as that of the world's CLIP did."""
    retrieval: Retrieval | None = None
    ablation: Ablation | None = None
    gallery: Gallery | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    """Missing data sets, and how to get them."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Methods that could not be run, and why."""


def make_sections(found: Findings) -> list[PageSection]:
    """Every table and figure, in the order of the plan."""
    return [_section(found, experiment) for experiment in found.experiments]


def _section(found: Findings, one: Experiment) -> PageSection:
    results, sets = found.results, found.sets
    assigned = ASSIGNED if found.assigned_heads else ""
    from_cells: dict[str, Callable[[], PageSection]] = {
        "table-2": lambda: tables.base_to_novel_section(one, results),
        "table-3": lambda: tables.transfer_section(one, results, "cross-dataset"),
        "table-4": lambda: tables.transfer_section(one, results, "domain"),
        "table-5": lambda: tables.ablation_section(one, results, "mask-strategies", tables.mask_lines()),
        "table-6": lambda: tables.ablation_section(one, results, "losses", tables.loss_lines()),
        "figure-4": lambda: few_shot_section(one, results),
        "supplement-table-3": lambda: tables.seeds_section(one, results, sets),
        "supplement-table-5": lambda: tables.strategy_section(one, results),
        "supplement-table-6-left": lambda: tables.source_section(
            one, results, "entropy-threshold", tables.threshold_lines(), sets
        ),
        "supplement-table-6-right": lambda: tables.source_section(one, results, "roles", tables.role_lines(), sets),
        "supplement-figure-2": lambda: fusion_section(one, results, sets),
        "role-gains": lambda: gains_section(one, results),
    }
    if one.blocked:
        return tables.empty_section(one, results)
    if one.key in from_cells:
        return from_cells[one.key]()
    if one.key == "supplement-table-2" and found.roles:
        return roles_section(one, found.roles, RoleMap.load("vit-b-16"), assigned=assigned)
    if one.key == "figure-3" and found.retrieval and found.gallery:
        return retrieval_section(one, found.retrieval, found.gallery, assigned=assigned)
    if one.key == "mean-ablation" and found.ablation:
        return ablation_result_section(one, found.ablation, assigned=assigned)
    return PageSection(one.key, one.title, notes=("Not measured yet.",))


def write_paper(out: Path, found: Findings) -> None:
    """Write the page, tables, figures and JSON; the same findings always give the same bytes."""
    parts = make_sections(found)
    try:
        for folder in (TABLES, FIGURES):
            (out / folder).mkdir(parents=True, exist_ok=True)
        for part in parts:
            write_atomic(out / TABLES / f"{part.key}.md", section_markdown(part).encode())
            for figure in part.figures:
                write_atomic(out / FIGURES / figure.file, figure.data)
        write_atomic(out / RESULTS, results_json(found, parts).encode())
        write_atomic(out / PAGE, page_html(found, parts).encode())
    except OSError as error:
        raise OverwriteError(f"The report cannot be written to {out} ({error.strerror}).") from None


def page_html(found: Findings, parts: Sequence[PageSection]) -> str:
    """Return the page as one self-contained HTML file."""
    title = {"mini": "DeAR on the world: the mini paper", "full": "DeAR: the paper's tables and figures, reproduced"}
    intro = [_INTRO[found.kind], *_state(found)]
    missing = [
        PageSection(
            "missing",
            "Missing data sets",
            tables=(Table(("data", "how to get it"), tuple(found.missing.items()), words=2),),
        )
    ]
    refused = Table(("method", "why"), tuple(sorted(found.refused.items())), words=2)
    more = [
        *(missing if found.missing else []),
        *([PageSection("refused", "Methods that could not be run", (refused,))] if found.refused else []),
    ]
    return report_page(title[found.kind], found.setting, intro, [*parts, *more])


_INTRO = {
    "mini": "Every table and figure of the paper, computed on rendered data sets that replace its photographs, with a "
    "CLIP that was trained on rendered images. The shaded columns are the paper's numbers, for ViT-B/16 on "
    "photographs: orders can be compared with them, levels cannot.",
    "full": "Every table and figure of the paper, as far as its data sets are available. The shaded columns are the "
    "paper's numbers.",
}


def _state(found: Findings) -> list[str]:
    planned = (cell for experiment in found.experiments for cell in experiment.cells)
    cells = {cell for cell in planned if cell.method not in found.refused}
    done = {
        (one.protocol, one.method, one.variant, one.data, one.seed, one.shots)
        for experiment in found.experiments
        for one in results_of(experiment, found.results)
    }
    if len(done) < len(cells):
        return [f"This report is not complete: {len(done)} of {len(cells)} cells are done."]
    return []


def results_json(found: Findings, parts: Sequence[PageSection]) -> str:
    """Every number of the report, and every cell's scores."""
    content = {
        "paper": found.kind,
        "setting": found.setting,
        "backbone": found.results[0].backbone.model_dump() if found.results else None,
        "missing": dict(found.missing),
        "parts": [section_json(part) for part in parts],
        "cells": [_cell_json(cell) for cell in found.results],
    }
    return PaperResults.encode(content)


def _cell_json(cell: CellResult) -> dict[str, Any]:
    """The result of a cell, without values that depend on the machine's speed."""
    names = {"protocol", "method", "variant", "data", "seed", "shots", "readouts", "weights", "skipped"}
    plain = cell.model_dump(mode="json", include=names)
    shown = {"data", "half", "accuracy", "images", "unreadable"}
    scores = [one.model_dump(mode="json", include=shown) for one in cell.scores]
    return {**plain, "scores": scores}
