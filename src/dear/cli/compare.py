"""`dear compare`: every method on every data set with every seed, ending in one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dear.cli.bench import print_cell, say_share
from dear.cli.commands import single_command
from dear.cli.console import say
from dear.options.parts import Compare

if TYPE_CHECKING:
    from dear.evaluation.results import CellResult
    from dear.evaluation.summary import Row


HALVES = (
    "Methods are trained on the first half of the classes (base) and tested on both halves; to train on all classes, "
    "add --protocol few-shot."
)


def compare(options: Compare) -> None:
    """Compare methods on data sets × seeds: one page that says which to take, with tables and tests."""
    from dear.workflows.compare import PAGE, compare_cells, run_comparison, verdict

    reported: dict[Row, str] = {}
    notes = [HALVES] if options.protocol == "base-to-novel" and _has_own_photos(options) else []

    def report_cell(done: int, cells: int, result: CellResult) -> None:
        if notes:
            say(notes.pop())
        print_cell(done, cells, result)

    def report_refused(reasons: dict[Row, str], cells: int) -> None:
        reported.update(reasons)
        for row, reason in sorted(reasons.items()):
            say(f"{_name(row)} cannot be run: {reason}")
        say(f"{cells} cell{'' if cells == 1 else 's'} of other methods will be run.")

    if options.cells is not None:
        share = compare_cells(options, on_cell=report_cell, on_refused=report_refused, record_options=True)
        say_share(options.cells, len(share.results))
        return
    found = run_comparison(options, on_cell=report_cell, on_refused=report_refused, record_options=True)
    for row, reason in sorted(found.refused.items()):
        say(f"{_name(row)} could not be run{': ' + reason if row not in reported else ', as reported above.'}")
    typer.echo("\n".join(verdict(found)))
    say(f"page: {options.out / PAGE}")


def _has_own_photos(options: Compare) -> bool:
    return any(Path(name).exists() for name in options.data or ())


def _name(row: Row) -> str:
    return " ".join(filter(None, row))


app = single_command(compare, Compare, config=True, plugins=True)
