"""The `dear` command: few verbs, one-line errors, results on stdout, talk on stderr."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer
import typer.main

from dear import __version__
from dear.cli import (
    bench,
    compare,
    data,
    doctor,
    evaluate,
    explain,
    paper,
    predict,
    quickstart,
    report,
    roles,
    search,
    train,
    world,
)
from dear.cli.commands import add_command
from dear.cli.console import Group, say, speaking
from dear.cli.usage import UsageError, in_words
from dear.errors import ConfigError, DearError, DearWarning
from dear.options.commands import Evaluate, Explain, Predict, Report
from dear.options.parts import Compare, Paper, Quickstart, Train
from dear.options.tools import Doctor


class _Verbs(Group):
    """The commands; stopping one is one line and exit code 130, and an empty word is a mistake, never a default."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for before, word in zip(["", *args], args, strict=False):
            name, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
            if equals and not value.strip():
                what = name if name.startswith("-") else "An argument"
                raise ConfigError(f"{what} is empty: give a value, or leave it out.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write(f"\ndear: stopped; what was done so far is kept, {_go_on(self)}.\n")
            raise typer.Exit(130) from None


def _go_on(command: Any) -> str:
    """What to do after a stop: not every command has --resume."""
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    can_resume = any("--resume" in parameter.opts for parameter in command.params)
    return "resume with --resume" if can_resume else "give the same command again"


app = typer.Typer(
    name="dear",
    help="DeAR: adapt CLIP from a few photos by decomposing attention-head roles.",
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=True,
    pretty_exceptions_enable=False,
)
add_command(app, train.train, Train, config=True, plugins=True)
add_command(app, evaluate.evaluate, Evaluate, "eval", plugins=True)
add_command(app, predict.predict, Predict, plugins=True)
add_command(app, explain.explain, Explain, plugins=True)
add_command(app, report.report, Report, plugins=True)
add_command(app, quickstart.quickstart, Quickstart)
add_command(app, compare.compare, Compare, config=True, plugins=True)
add_command(app, paper.paper, Paper, config=True, plugins=True)
add_command(app, doctor.doctor, Doctor)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(data.list_app, name="ls")
app.add_typer(search.app, name="search")
app.add_typer(roles.app, name="roles")
app.add_typer(world.app, name="world")
app.add_typer(doctor.cache_app, name="cache")


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


def _show_warning(shown: Callable[..., None], message: Any, category: type[Warning], *where: Any) -> None:
    """A warning of ours is one line without a place in the code."""
    if issubclass(category, DearWarning):
        say(f"note: {message}")
    else:
        shown(message, category, *where)


def main(words: str = "") -> None:
    """Run the command line; an error of ours, or of the disk, is one line on stderr and exit code 2.

    `words` are shown on a terminal until there is more to show.
    """
    for chatter in ("Image size .* exceeds limit", "Corrupt EXIF data", "Truncated File Read"):
        warnings.filterwarnings("ignore", message=chatter)  # Pillow's; ours name the file
    warnings.simplefilter("always", DearWarning)
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    with speaking(words):
        _run()


def _run() -> None:
    try:
        sys.exit(app(prog_name="dear", standalone_mode=False) or 0)
    except UsageError as error:
        say(f"dear: {in_words(error)}")
    except DearError as error:
        say(f"dear: {error}")
    except typer.Abort:
        sys.exit(130)
    except OSError as error:
        where, why = error.filename or "A file", error.strerror or error
        say(
            f"dear: {where} cannot be read or written ({why}): what was done so far is kept; free some space or check "
            f"the permissions, and {_go_on(typer.main.get_command(app))}."
        )
    sys.exit(2)
