"""`dear report`: a run as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dear.cli.commands import single_command
from dear.cli.console import columns, printable
from dear.options.commands import Report as ReportOptions

if TYPE_CHECKING:
    from dear.workflows.report import Report


def report(options: ReportOptions) -> None:
    """Test a run and write a page about it: how good it is, what it corrects and confuses; details for experts."""
    from dear.workflows.report import write_report

    written = write_report(
        options.run,
        options.data,
        out=options.out,
        data_root=options.data_root,
        workers=options.workers,
        device=options.device,
        threads=options.threads,
        allow_pickled=options.allow_pickled,
    )
    print_report(written)


def print_report(written: Report) -> None:
    """Print the verdict, the table of scores and the path of a page."""
    for sentence in written.verdict:
        typer.echo(printable(sentence))
    typer.echo("\n" + columns([tuple(row) for row in written.scores]) + "\n")
    typer.echo(printable(f"report: {written.path}"))


app = single_command(report, ReportOptions, plugins=True)
