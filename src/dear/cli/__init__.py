"""The `dear` command: few verbs, one-line errors, results on stdout, progress and remarks on stderr."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand

from dear import __version__
from dear.cli.console import Group, plain_help, say, speaking
from dear.cli.usage import UsageError, in_words
from dear.errors import ConfigError, DearError, DearWarning, Terminated


class Place(NamedTuple):
    """Where a command is defined, and what the list of commands says about it."""

    module: str
    about: str
    name: str = "app"


COMMANDS = {
    "train": Place(
        "train", "Adapt a CLIP to DATA; OUT then contains the adapter, its log and its options as config.yaml."
    ),
    "eval": Place(
        "evaluate",
        "Say how good a run is: test it on images it was not trained on, beside plain CLIP.",
    ),
    "calibrate": Place(
        "calibrate", "Fit the probabilities of a run, and when to answer 'none of these', on photos that were held out."
    ),
    "predict": Place("predict", "Classify images, among the run's classes or any others."),
    "explain": Place(
        "explain", "Say why IMAGE gets its answer: logits as exact sums over heads, attributes, MLPs and patches."
    ),
    "report": Place(
        "report",
        "Test a run and write a page about it: how good it is, what it corrects and confuses; details for experts.",
    ),
    "quickstart": Place(
        "quickstart",
        "Adapt the embedded world's CLIP to half of a data set's classes, test both halves, write a report.",
    ),
    "app": Place(
        "window", "Open an adapter in a window of the browser: predict, search, teach; served on this computer only."
    ),
    "compare": Place(
        "compare", "Compare methods on data sets × seeds: one page that says which to take, with tables and tests."
    ),
    "paper": Place(
        "paper", "Make every table and figure of the paper, its own numbers beside ours; give --mini or --full."
    ),
    "export": Place(
        "export",
        "Write an adapter as ONNX files, which run without torch, or class features for them.",
    ),
    "push": Place(
        "push",
        "Publish an adapter on the hub: its files and a card, never photos or records of the run.",
    ),
    "sync": Place(
        "sync",
        "Copy cells, adapters and tables of FOLDER to storage such as s3://, and fetch those that others put there.",
    ),
    "convert": Place(
        "convert",
        "Write the weights of a CLIP to OUT as safetensors; pickled files are read as tensors only, never as code.",
    ),
    "doctor": Place(
        "doctor",
        "Print versions, device, threads, memory, caches and extras: what a bug report needs.",
    ),
    "bench": Place("bench", "Run the paper's protocols as resumable grids with tables."),
    "data": Place("data", "List and verify data sets."),
    "ls": Place("data", "List methods, their settings, and backbones.", "list_app"),
    "search": Place(
        "search",
        "Search images by an image or a text, by one kind of feature.",
    ),
    "roles": Place(
        "roles",
        "What attention heads do: discover, show, compare and test their roles.",
    ),
    "world": Place(
        "world",
        "The embedded world: a small visual world and a small CLIP trained on it.",
    ),
    "cache": Place(
        "doctor",
        "List and clear caches: everything in them can be made again.",
        "cache_app",
    ),
}
"""Every command in the order of help. A module is imported when its command is used, so that `dear -h` stays fast."""


class LazyCommands(Mapping[str, Any]):
    """The commands by name, each built when it is first asked for."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Import and build a command."""
        if name not in self._built:
            place = COMMANDS[name]
            command = typer.main.get_command(getattr(import_module(f"dear.cli.{place.module}"), place.name))
            command.name = name
            plain_help(command)
            self._built[name] = command
        return self._built[name]

    def is_loaded(self, words: Sequence[str]) -> bool:
        """Whether the command that some words name has been built."""
        return any(word in self._built for word in words)

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of help."""
        return iter(COMMANDS)

    def __len__(self) -> int:
        """How many there are."""
        return len(COMMANDS)


class _Verbs(Group):
    """The commands; stopping one is one line and exit code 130, and an empty word is a mistake, never a default."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = LazyCommands()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands by name, without importing them."""
        commands = self.commands
        self.commands = {name: TyperCommand(name, help=place.about) for name, place in COMMANDS.items()}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = commands

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
        except KeyboardInterrupt as stop:
            loaded = self.commands.is_loaded(sys.argv[1:])
            sys.stderr.write(f"\ndear: stopped; {_after_stop(self) if loaded else 'nothing was done'}.\n")
            raise typer.Exit(128 + stop.signal if isinstance(stop, Terminated) else 130) from None


def _after_stop(command: Any) -> str:
    """What was saved before a stop, and what to type next: not every command has --resume."""
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    if not any("--resume" in parameter.opts for parameter in command.params):
        return "what was saved so far is kept, give the same command again"
    if _is_unsaved(sys.argv[1:]):
        return "nothing was saved yet, start over with --resume"
    return "what was saved so far is kept, resume with --resume"


def _is_unsaved(words: Sequence[str]) -> bool:
    """Whether the run or grid of a command with these words has neither a checkpoint nor a result."""
    named = [word.partition("=")[2] for word in words if word.startswith("--out=")]
    named += [after for word, after in pairwise(words) if word == "--out"]
    patterns = {"run": ["*.safetensors"], "grid": ["cells/*.json", "runs/**/*.safetensors"]}
    folder = Path(named[-1]) if named else Path()
    kind = import_module("dear.storage.locks").kind_of(folder) if named else None  # loaded by the command that ran
    return kind in patterns and not any(any(folder.glob(one)) for one in patterns[kind])


app = typer.Typer(
    name="dear",
    help="DeAR: adapt CLIP from a few photos by decomposing attention-head roles.",
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=True,
    pretty_exceptions_enable=False,
)


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
    except RuntimeError as error:
        if not str(error).startswith("Symlink loop"):  # what pathlib raises for a link that leads to itself
            raise
        say(f"dear: {str(error).partition(' from ')[2] or 'A path'} is a link that leads to itself: remove it.")
    except OSError as error:
        where, why = str(error.filename or "A file")[:1000], error.strerror or error
        say(
            f"dear: {where} cannot be read or written ({why}): what was done so far is kept; free some space or check "
            f"the permissions, and {_after_stop(typer.main.get_command(app))}."
        )
    sys.exit(2)
