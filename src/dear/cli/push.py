"""`dear push`: publish an adapter on the hub."""

from __future__ import annotations

import typer

from dear.cli.commands import single_command
from dear.cli.console import printable, say
from dear.options.commands import Push


def push(options: Push) -> None:
    """Publish an adapter on the hub: its files and a card, never photos or records of the run."""
    from dear.workflows.push import push

    found = push(
        options.run,
        options.repository,
        private=options.private,
        scores=options.scores,
        overwrite=options.overwrite,
    )
    for note in found.notes:
        say(f"note: {note}.")
    for file, size in found.files.items():
        typer.echo(printable(f"{size:12,} bytes  {file}"))
    typer.echo(printable(f"{found.page}, commit {found.commit[:12]}: 'dear predict {found.name} PHOTO' uses it."))


app = single_command(push, Push)
