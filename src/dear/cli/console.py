"""Output of the command line: progress and remarks on stderr, results on stdout."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from typer.core import TyperGroup

from dear.errors import typed
from dear.progress.display import Above, Bars, Lines, is_first, is_terminal
from dear.progress.stages import duration, heard_by, time_left
from dear.storage.files import shown

if TYPE_CHECKING:
    from dear.evaluation.results import CellResult


def say(remark: str) -> None:
    """A remark for the person at the terminal."""
    sys.stderr.write(f"{printable(remark)}\n")


def printable(text: str) -> str:
    """Text without terminal escapes, which names of files may contain."""
    return "\n".join(shown(line) for line in text.split("\n"))


def json_line(row: Any, *, indent: int | None = None) -> str:
    """A JSON object, by default as a line; names with letters that cannot be printed are escaped."""
    text = json.dumps(row, ensure_ascii=False, indent=indent)
    return text if printable(text) == text else json.dumps(row, indent=indent)


def terminal_width() -> int:
    """Columns to print tables in: those of the terminal, 80 elsewhere."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as aligned text, without terminal escapes and without line breaks in a cell."""
    cells = [[shown(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


@contextmanager
def speaking(words: str) -> Iterator[None]:
    """Run a command for a person: hints name options, and progress is shown as bars, or as lines without a terminal.

    The bars are on stderr and make room for everything that is printed; `words` are shown until the first stage.
    """
    out, err = sys.stdout, sys.stderr
    display: Lines | Bars = Bars(err, words) if is_terminal(err) and is_first() else Lines()
    if isinstance(display, Bars):
        sys.stderr = cast(TextIO, Above(err, display))
        sys.stdout = cast(TextIO, Above(out, display)) if out.isatty() else out
    try:
        with typed(), heard_by(display if is_first() else None):
            yield
    finally:
        display.close()
        sys.stdout, sys.stderr = out, err


def left_text(seconds: float | None) -> str:
    """Time left behind a comma, or nothing."""
    return "" if seconds is None else f", {duration(seconds)} left"


def cell_text(done: int, total: int, result: CellResult) -> str:
    """A cell that is done, in words, with the time left if it is known; what could not be read is a second line."""
    scores = ", ".join(f"{s.data} {s.half} {result.reading(s):.1f}" for s in result.scores[:3])
    name = f"{result.method} {result.variant}".strip()
    left = left_text(time_left()) if done < total else ""
    shots = f"{result.shots} shot{'' if result.shots == 1 else 's'}"
    if result.training_images is not None and result.has_few_images:
        shots = f"{' to '.join(map(str, sorted(set(result.training_images))))} of {shots}"
    text = f"[{done}/{total}{left}] {name}, {result.data}, seed {result.seed}, {shots}: {scores}"
    problems = [problem for one in result.scores for problem in one.problems]
    return f"{text}\n  {len(problems)} test image(s) count as wrong, the first: {problems[0]}" if problems else text


class Group(TyperGroup):
    """A group of commands; alone it prints its help. Its help pages say what is typed, and nothing of types."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in (self, *self.commands.values()):
            plain_help(command)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As usual, with what was added since: the options for completion."""
        for one in self.params:
            one.metavar = "" if getattr(one, "is_flag", False) else one.metavar
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a command, as if --help had been typed."""
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])


def plain_help(command: Any) -> None:
    """Flags take no value, so help shows none; an argument that is optional has brackets in the usage line only."""

    def without_value(flag: Any) -> Any:
        if flag is not None:
            flag.metavar = ""
        return flag

    for one in command.params:
        if getattr(one, "is_flag", False):
            without_value(one)
        elif one.param_type_name == "argument":
            usage = one.metavar or one.name.upper()
            name = usage[1:-1] if usage.startswith("[") and usage.endswith("]") else usage
            one.metavar, one.get_usage_pieces, one.display_type_rich = name, lambda ctx, u=usage: [u], lambda ctx: None
    help_option = command.get_help_option
    command.get_help_option = lambda ctx: without_value(help_option(ctx))
