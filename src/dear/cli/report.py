"""`dear report`: a run as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dear.cli import options as ask
from dear.cli.console import columns, printable, say

if TYPE_CHECKING:
    from dear.workflows.report import Report


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="Where the run's data set is now, if it was moved.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML file to write; by default RUN/report.html.")
    ] = None,
    data_root: ask.DataRoot = None,
    workers: ask.Workers = 2,
    device: ask.Device = None,
    threads: ask.Threads = None,
) -> None:
    """Test a run and write a page about it: how good it is, what it corrects and confuses; details for experts."""
    from dear.engine.run_folder import read_run
    from dear.workflows.report import write_report

    read_run(run)
    ask.use_threads(threads)
    say("testing …")
    print_report(write_report(run, data, out=out, data_root=data_root, workers=workers, device=device))


def print_report(written: Report) -> None:
    """Print the verdict, the table of scores and the path of a page."""
    for sentence in written.verdict:
        typer.echo(sentence)
    typer.echo("\n" + columns([tuple(row) for row in written.scores]) + "\n")
    typer.echo(printable(f"report: {written.path}"))
