"""The `dear` command: few verbs, one-line errors, results on stdout, talk on stderr."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dear import __version__
from dear.cli import bench, data, paper, report, retrieve, roles, train, world
from dear.errors import DearError


class _Verbs(TyperGroup):
    """The commands; stopping one is one line and exit code 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            go_on = "go on with --resume" if _can_resume(self, sys.argv[1:]) else "give the same command again"
            sys.stderr.write(f"\ndear: stopped; what was done so far is kept, {go_on}.\n")
            raise typer.Exit(130) from None


def _can_resume(command: Any, words: list[str]) -> bool:
    """Whether the command that words begin with has --resume."""
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return any("--resume" in parameter.opts for parameter in command.params)


app = typer.Typer(
    name="dear",
    help="DeAR: adapt CLIP from a few photos by decomposing attention-head roles.",
    cls=_Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("eval")(train.evaluate)
app.command("predict")(train.predict)
app.command("report")(report.report)
app.command("quickstart")(report.quickstart)
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
    """Run the command line; an error of ours, or of the disk, is one line on stderr and exit code 2."""
    for chatter in ("Image size .* exceeds limit", "Corrupt EXIF data", "Truncated File Read"):
        warnings.filterwarnings("ignore", message=chatter)  # Pillow's; what matters of it is told by name
    try:
        app(prog_name="dear")
    except DearError as error:
        sys.stderr.write(f"dear: {error}\n")
        sys.exit(2)
    except OSError as error:
        where, why = error.filename or "A file", error.strerror or error
        sys.stderr.write(
            f"dear: {where} cannot be read or written ({why}): what was done so far is kept; make room or check the "
            f"permissions, and go on with --resume.\n"
        )
        sys.exit(2)
