"""`dear compare`: every method on every data set with every seed, ending in one page."""

from __future__ import annotations

import typer

from dear.cli.bench import print_cell
from dear.cli.commands import single_command
from dear.cli.console import say
from dear.options.parts import Compare


def compare(options: Compare) -> None:
    """Compare methods on data sets × seeds: one page that says which to take, with tables and tests."""
    from dear.workflows.compare import PAGE, run_comparison, verdict

    found = run_comparison(options, on_cell=print_cell, record_options=True)
    for row, reason in sorted(found.refused.items()):
        say(f"{' '.join(filter(None, row))} could not be run: {reason}")
    typer.echo("\n".join(verdict(found)))
    say(f"page: {options.out / PAGE}")


app = single_command(compare, Compare, config=True, plugins=True)
