"""`dear sync`: results of a grid in storage that several machines share."""

from __future__ import annotations

import typer

from dear.cli.commands import single_command
from dear.cli.console import printable
from dear.options.tools import Sync


def sync(options: Sync) -> None:
    """Copy cells, adapters and tables of FOLDER to storage such as s3://, and fetch those that others put there."""
    from dear.workflows.sync import sync

    found = sync(options.folder, options.url, overwrite=options.overwrite)
    typer.echo(printable(f"{len(found.sent):,} files sent to {options.url}, {len(found.fetched):,} fetched"))


app = single_command(sync, Sync)
