"""Display of stages: bars on a terminal of any width, one plain line every 30 seconds elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, TextIO

from dear.progress.stages import BEAT, Stage, checked, clock, duration, heard_by
from dear.storage.files import shown

WORKING = "working"


class Lines:
    """Prints how far a stage is every 30 seconds, also while nothing is counted; shorter stages are not shown."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream, self._last = stream, clock()
        self._open: list[Stage] = []
        self._lock, self._over = Lock(), Event()
        self._watch: Thread | None = None

    def opened(self, stage: Stage) -> None:
        """Check whether a line is due, from now on every second."""
        self._open.append(stage)
        self._beat()
        if self._watch is None:
            self._watch = Thread(target=self._look, daemon=True)
            self._watch.start()

    def moved(self, stage: Stage) -> None:
        """Check whether a line is due."""
        self._beat()

    def closed(self, stage: Stage) -> None:
        """Forget it."""
        self._open.remove(stage)

    def printed(self, text: str) -> None:
        """Print a remark at once."""
        with self._lock:
            stream = self._stream or sys.stderr
            stream.write(f"{shown(text)}\n")
            stream.flush()

    def close(self) -> None:
        """Print nothing more."""
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(1.0):
            self._beat()

    def _beat(self) -> None:
        with self._lock:
            if clock() - self._last < BEAT or not self._open:
                return
            self._last = clock()
            lines = [stage.line() for stage in shown_of(list(self._open))]
            stream = self._stream or sys.stderr
            stream.write("; ".join(lines) + "\n")
            stream.flush()


class Bars:
    """Progress bars of the open stages on a terminal; they disappear when something is printed, and at the end."""

    def __init__(
        self, stream: TextIO, words: str = WORKING, *, width: int | None = None, redirect: bool = False
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._open: list[Stage] = []
        self._rows: list[tuple[Row, Any]] = []
        self._console = Console(file=stream, width=width)
        row = "{task.fields[row]."
        self._progress = Progress(
            TextColumn(row + "count}", markup=False),
            BarColumn(bar_width(self._console.width)),
            TextColumn(row + "left}", style="cyan", markup=False),
            TextColumn(row + "words}", markup=False),
            console=self._console,
            transient=True,
            redirect_stdout=redirect and sys.stdout.isatty(),
            redirect_stderr=redirect,
            refresh_per_second=5,
        )
        self._idle, self._closed = Stage(words), False
        self._update()

    def opened(self, stage: Stage) -> None:
        """Show it, unless it is a part of a stage that is shown."""
        self._open.append(stage)
        self._update()

    def moved(self, stage: Stage) -> None:
        """Show how far it is."""
        self._update()

    def closed(self, stage: Stage) -> None:
        """Show the stages that are left."""
        self._open.remove(stage)
        self._idle.name = WORKING
        self._update()

    def printed(self, text: str) -> None:
        """Print a remark above the bars."""
        self._console.print(shown(text), markup=False, highlight=False, soft_wrap=True)

    def clear(self) -> None:
        """Make room for something printed."""
        self._progress.stop()

    def come_back(self) -> None:
        """Show the bars again."""
        if not self._closed:
            self._update()

    def close(self) -> None:
        """Remove the bars for good."""
        self._closed = True
        self._progress.stop()

    def room(self) -> int:
        """Characters left for words: the line without the bar and the widest count and time left."""
        rows = [row for row, _ in self._rows]
        widest = max((len(row.count) for row in rows), default=0) + max((len(row.left) for row in rows), default=0)
        return self._console.width - widest - bar_width(self._console.width) - 3

    def _update(self) -> None:
        stages = shown_of(self._open) or ([self._idle] if self._idle.name else [])
        if [row.stage for row, _ in self._rows] != stages:
            for _, task in self._rows:
                self._progress.remove_task(task)
            rows = [Row(stage, self.room) for stage in stages]
            self._rows[:] = [(row, self._progress.add_task(row.stage.name, total=None, row=row)) for row in rows]
        for row, task in self._rows:
            self._progress.update(task, total=row.stage.total or None, completed=row.stage.done)
        if self._rows and not self._progress.live.is_started:
            self._progress.start()


@dataclass(frozen=True)
class Row:
    """The texts beside the bar of a stage, computed whenever the bar is refreshed."""

    stage: Stage
    room: Callable[[], int]

    @property
    def count(self) -> str:
        """Number done and total."""
        unit = f" {self.stage.unit}" if self.stage.unit else ""
        return f"{self.stage.done:,}/{self.stage.total:,}{unit}" if self.stage.total else ""

    @property
    def left(self) -> str:
        """Time left."""
        seconds = self.stage.seconds_left()
        return f"{duration(seconds)} left" if seconds is not None and self.stage.done < self.stage.total else ""

    @property
    def words(self) -> str:
        """As many facts as there is room for."""
        return fitting_words(self.stage, self.room())


def shown_of(stages: list[Stage]) -> list[Stage]:
    """Of all open stages: the first that has parts, and the first that has none."""
    outer = [stage for stage in stages if stage.outer][:1]
    return [*outer, *[stage for stage in stages if not stage.outer][:1]]


def fitting_words(stage: Stage, room: int) -> str:
    """Facts about a stage, or its name if there are none, in at most `room` characters."""
    text = stage.name if not stage.words() else ""
    for word in stage.words():
        longer = f"{text}  {word}" if text else word
        if len(longer) > room:
            break
        text = longer
    return text if len(text) <= room else text[: max(0, room - 1)] + "…" if room > 1 else ""


def bar_width(width: int) -> int:
    """Columns of a bar: a sixth to a third of the line."""
    return 10 if width < 70 else 20 if width < 100 else 36


class Above:
    """A stream that removes the bars before text is written to it.

    Rich's own redirection would wrap long lines at the width of the terminal and hide a line until it is complete.
    """

    def __init__(self, stream: TextIO, bars: Bars) -> None:
        self._stream, self._bars = stream, bars

    def write(self, text: str) -> int:
        """Write where the bars were; they come back below a whole line."""
        if not text:
            return self._stream.write(text)  # raises for b"", by which some libraries detect text streams
        self._bars.clear()
        written = self._stream.write(text)
        if text.endswith("\n"):
            self._stream.flush()
            self._bars.come_back()
        return written

    def __getattr__(self, name: str) -> Any:
        """Otherwise as the stream itself."""
        return getattr(self._stream, name)


@contextmanager
def watched(progress: bool | Callable[[str, int, int], None] | None) -> Iterator[None]:
    """Show progress as `progress=` asks: True for bars or lines, a function, False for nobody, None for no change."""
    if checked(progress) is None:
        yield
    elif progress is True and is_first():
        display = Bars(sys.stderr, redirect=True) if is_terminal(sys.stderr) else Lines()
        try:
            with heard_by(display):
                yield
        finally:
            display.close()
    else:
        with heard_by(None if isinstance(progress, bool) else progress):
            yield


def is_terminal(stream: TextIO) -> bool:
    """Whether bars can be shown on a stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_first() -> bool:
    """Whether this is the first process of `torchrun`; the others print nothing."""
    return os.environ.get("RANK", "0") == "0"
