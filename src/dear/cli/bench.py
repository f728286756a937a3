"""`dear bench`: the four protocols over data sets × methods × settings × seeds, as grids that can be resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import typer

from dear.cli.commands import add_command
from dear.cli.console import Group, cell_text, printable, say, terminal_width
from dear.options.parts import Bench, FewShot, Transfer

if TYPE_CHECKING:
    from dear.evaluation.results import CellResult, Protocol

app = typer.Typer(help="Run the paper's protocols as resumable grids with tables.", cls=Group, add_completion=False)


def base_to_novel(options: Bench) -> None:
    """Train on one half of the classes; test that half and the other, each among its own classes."""
    _run("base-to-novel", options)


def few_shot(options: FewShot) -> None:
    """Train on all classes with 1, 2, 4, 8 and 16 images each."""
    _run("few-shot", options)


def cross_dataset(options: Transfer) -> None:
    """Train on one data set; test others."""
    _run("cross-dataset", options)


def domain(options: Transfer) -> None:
    """Train on one data set; test its shifted variants."""
    _run("domain", options)


def _run(protocol: str, options: Bench) -> None:
    from dear.workflows.bench import run_bench

    found = run_bench(cast("Protocol", protocol), options, on_cell=print_cell, record_options=True)
    if options.cells is not None:
        say_share(options.cells, len(found.results))
        return
    typer.echo(printable(found.table(terminal_width())))
    say(f"tables: {options.out / 'table.csv'}, {options.out / 'table.md'}")


def print_cell(done: int, total: int, result: CellResult) -> None:
    """Print the scores of a cell that is done, and the time left."""
    say(cell_text(done, total, result))


def say_share(share: str, cells: int) -> None:
    """Report the end of a share of a grid, and what to do when all shares are done."""
    number = f"{cells} cell{'' if cells == 1 else 's'}"
    say(f"share {share}: {number} done; after all shares, the same command with --resume instead writes the tables.")


add_command(app, base_to_novel, Bench, config=True, plugins=True)
add_command(app, few_shot, FewShot, config=True, plugins=True)
add_command(app, cross_dataset, Transfer, config=True, plugins=True)
add_command(app, domain, Transfer, config=True, plugins=True)
