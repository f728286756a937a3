"""The `dear` command: few verbs, one-line errors, results on stdout, talk on stderr."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dear import __version__
from dear.cli import bench, data, paper, retrieve, roles, train, world
from dear.errors import DearError

app = typer.Typer(
    name="dear",
    help="DeAR: adapt CLIP from a few photos by decomposing attention-head roles.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("eval")(train.evaluate)
app.command("predict")(train.predict)
app.command("paper")(paper.paper)
app.add_typer(bench.app, name="bench")
app.add_typer(data.list_app, name="ls")
app.add_typer(data.check_app, name="check")
app.add_typer(retrieve.app, name="retrieve")
app.add_typer(roles.app, name="roles")
app.add_typer(world.app, name="world")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dear {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """DeAR: adapt CLIP from a few photos by decomposing attention-head roles."""


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and exit code 2."""
    try:
        app()
    except DearError as error:
        sys.stderr.write(f"dear: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("dear: stopped; what was done so far is kept where --resume finds it.\n")
        sys.exit(130)
