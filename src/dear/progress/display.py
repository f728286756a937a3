"""How stages are shown: bars on a terminal of any width, one plain line every 30 seconds elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any, TextIO

from dear.progress.stages import BEAT, Stage, checked, clock, duration, heard_by

WORKING = "working"


class Lines:
    """Says how far a stage is, every 30 seconds, also while nothing is counted; what ends sooner is passed over."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream, self._last = stream, clock()
        self._open: list[Stage] = []
        self._lock, self._over = Lock(), Event()
        self._watch: Thread | None = None

    def opened(self, stage: Stage) -> None:
        """See whether a line is due, from now on every second."""
        self._open.append(stage)
        self._beat()
        if self._watch is None:
            self._watch = Thread(target=self._look, daemon=True)
            self._watch.start()

    def moved(self, stage: Stage) -> None:
        """See whether a line is due."""
        self._beat()

    def closed(self, stage: Stage) -> None:
        """Forget it."""
        self._open.remove(stage)

    def close(self) -> None:
        """Nothing more is said."""
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
    """Draws the stages that are open; vanishes when something is printed, and when all is done."""

    def __init__(
        self, stream: TextIO, words: str = WORKING, *, width: int | None = None, redirect: bool = False
    ) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._open: list[Stage] = []
        self._drawn: list[tuple[Stage, Any]] = []
        self._console = Console(file=stream, width=width)
        self._progress = Progress(
            *_columns(self._console, self._drawn),
            console=self._console,
            transient=True,
            redirect_stdout=redirect and sys.stdout.isatty(),
            redirect_stderr=redirect,
            refresh_per_second=5,
        )
        self._idle, self._closed = Stage(words), False
        self._draw()

    def opened(self, stage: Stage) -> None:
        """Draw it, unless it is a part of what is drawn."""
        self._open.append(stage)
        self._draw()

    def moved(self, stage: Stage) -> None:
        """Draw how far it is."""
        self._draw()

    def closed(self, stage: Stage) -> None:
        """Draw what goes on."""
        self._open.remove(stage)
        self._idle.name = WORKING
        self._draw()

    def clear(self) -> None:
        """Make room for something printed."""
        self._progress.stop()

    def come_back(self) -> None:
        """Draw on."""
        if not self._closed:
            self._draw()

    def close(self) -> None:
        """The end."""
        self._closed = True
        self._progress.stop()

    def _draw(self) -> None:
        wanted = shown_of(self._open) or ([self._idle] if self._idle.name else [])
        if [stage for stage, _ in self._drawn] != wanted:
            for _, task in self._drawn:
                self._progress.remove_task(task)
            self._drawn[:] = [(one, self._progress.add_task(one.name, total=None, stage=one)) for one in wanted]
        for stage, task in self._drawn:
            self._progress.update(task, total=stage.total or None, completed=stage.done)
        if self._drawn and not self._progress.live.is_started:
            self._progress.start()


def shown_of(stages: list[Stage]) -> list[Stage]:
    """Of all open stages: the first that has parts, and the first that has none."""
    outer = [stage for stage in stages if stage.outer][:1]
    return [*outer, *[stage for stage in stages if not stage.outer][:1]]


def line_at(stage: Stage, width: int, taken: int) -> str:
    """The words about a stage that fit into a line of which so much is taken."""
    told = stage.name if not stage.words() else ""
    room = width - taken
    for word in stage.words():
        longer = f"{told}  {word}" if told else word
        if len(longer) > room:
            break
        told = longer
    return told if len(told) <= room else told[: max(0, room - 1)] + "…" if room > 1 else ""


def bar_width(width: int) -> int:
    """Columns of a bar: a sixth to a third of the line."""
    return 10 if width < 70 else 20 if width < 100 else 36


def _columns(console: Any, drawn: list[tuple[Stage, Any]]) -> list[Any]:
    """Count, bar, time left, and as many words as there is room for."""
    from rich.progress import BarColumn, ProgressColumn
    from rich.text import Text

    def count(stage: Stage) -> str:
        return f"{stage.done:,}/{stage.total:,}" if stage.total else ""

    def left(stage: Stage) -> str:
        seconds = stage.seconds_left()
        return f"{duration(seconds)} left" if seconds is not None and stage.done < stage.total else ""

    class Count(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(count(task.fields["stage"]), no_wrap=True)

    class Left(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(left(task.fields["stage"]), no_wrap=True, style="cyan")

    class Words(ProgressColumn):
        def render(self, task: Any) -> Text:
            stages = [one for one, _ in drawn] or [task.fields["stage"]]
            widest = max(len(count(one)) for one in stages), max(len(left(one)) for one in stages)
            taken = sum(widest) + bar_width(console.width) + 3
            return Text(line_at(task.fields["stage"], console.width, taken), no_wrap=True)

    class Bar(BarColumn):
        def render(self, task: Any) -> Any:
            self.bar_width = bar_width(console.width)
            return super().render(task)

    return [Count(), Bar(), Left(), Words()]


class Above:
    """A stream that makes the bars vanish before anything is written to it."""

    def __init__(self, stream: TextIO, bars: Bars) -> None:
        self._stream, self._bars = stream, bars

    def write(self, text: str) -> int:
        """Write, where the bars were; they come back below a whole line."""
        if not text:
            return self._stream.write(text)  # which refuses b"", as whoever asks for the kind of a stream expects
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
    """What `progress=` asks for: True for a bar or lines on stderr, a function, False for nobody; None: as it is."""
    if checked(progress) is None:
        yield
    elif progress is True and is_first():
        drawn = Bars(sys.stderr, redirect=True) if is_terminal(sys.stderr) else Lines()
        try:
            with heard_by(drawn):
                yield
        finally:
            drawn.close()
    else:
        with heard_by(None if isinstance(progress, bool) else progress):
            yield


def is_terminal(stream: TextIO) -> bool:
    """Whether bars can be drawn on it."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_first() -> bool:
    """Whether this is the first of the processes that `torchrun` started: the others say nothing."""
    return os.environ.get("RANK", "0") == "0"
