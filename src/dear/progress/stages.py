"""Progress events: what is being done and how far it is.

Work opens a `stage` and counts in it, without knowing who listens. The caller chooses the listener with `heard_by` or
`dear.progress.display.watched`: bars, a log or a function. The log `logging.getLogger("dear")` always listens.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from dear.errors import ConfigError

logger = logging.getLogger("dear")
clock = time.monotonic
MOST = 3
"""Facts in a line of a log."""
BEAT = 30.0
"""Seconds between the lines of a log, or of a command without a terminal."""
WEIGHT = "weight_"
"""Beginning of the names of a method's learned weights, among the numbers of a step."""

_FACTS = ("step", "steps", "epoch", "lr", "skipped", "images_per_second", "problems", "total")


@dataclass(eq=False)
class Stage:
    """A piece of work that can be counted."""

    name: str
    total: int = 0
    """0 if unknown."""
    done: int = 0
    outer: bool = False
    """Whether other stages are parts of it."""
    first: int | None = 0
    """Count at the start, so that earlier work does not affect the pace; None until it is known."""
    began: float = field(default_factory=lambda: clock())
    facts: Mapping[str, Any] = field(default_factory=dict)
    left: float | None = None
    """Seconds left, if the caller knows better than the pace so far."""
    unit: str = ""
    """What is counted, such as "MB"; "" for images, steps and the like."""

    def seconds_left(self) -> float | None:
        """Seconds left by the pace so far; None if there is no pace yet."""
        if self.left is not None:
            return self.left
        counted = 0 if self.first is None else self.done - self.first
        return (clock() - self.began) / counted * (self.total - self.done) if counted > 0 and self.total else None

    def line(self) -> str:
        """The stage as one line of a log."""
        count = f"{self.done:,} of {self.total:,}" if self.total else f"{self.done:,}" if self.done else "…"
        count += f" {self.unit}" if self.unit and self.total else ""
        left = self.seconds_left()
        wait = [f"about {duration(left)} left"] if left else []
        return ", ".join([f"{self.name}: {count}", *wait, *self.words()[:MOST]])

    def words(self) -> list[str]:
        """Facts besides the count, the most important first; loss terms have their own names."""
        facts = self.facts
        numbers = {name: one for name, one in facts.items() if name not in _FACTS and isinstance(one, int | float)}
        terms = sorted(numbers, key=lambda name: name.startswith(WEIGHT))
        return [
            *([f"loss {facts['total']:.3f}"] if "total" in facts else []),
            *([f"epoch {facts['epoch']}"] if "epoch" in facts else []),
            *([f"{facts['images_per_second']:.0f} images/s"] if "images_per_second" in facts else []),
            *(f"{name} {numbers[name]:.3f}" for name in terms),
        ]


class Listener(Protocol):
    """Receives the events of stages."""

    def opened(self, stage: Stage) -> None:
        """A stage begins."""
        ...

    def moved(self, stage: Stage) -> None:
        """A stage's count has changed."""
        ...

    def closed(self, stage: Stage) -> None:
        """A stage is over, done or not."""
        ...


class Calls:
    """Calls a function with the name of a stage, the number done and the total."""

    def __init__(self, function: Callable[[str, int, int], None]) -> None:
        self._function = function

    def opened(self, stage: Stage) -> None:
        """Report the name as soon as it is known."""
        self._function(stage.name, stage.done, stage.total)

    def moved(self, stage: Stage) -> None:
        """Report the count."""
        self._function(stage.name, stage.done, stage.total)

    def closed(self, stage: Stage) -> None:
        """Nothing to report."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_UNSET: Any = object()
_outer: ContextVar[Stage | None] = ContextVar("outer", default=None)


@contextmanager
def heard_by(listener: Listener | Callable[[str, int, int], None] | None) -> Iterator[None]:
    """Send the stages of the `with` block to a listener or a function; None for nobody."""
    hears: Any = listener if listener is None or hasattr(listener, "opened") else Calls(listener)
    token = _listener.set(hears)
    try:
        yield
    finally:
        _listener.reset(token)


def checked(progress: Any) -> Any:
    """The argument `progress=`, refused if it is neither True, False nor a function."""
    if progress is None or isinstance(progress, bool) or callable(progress):
        return progress
    raise ConfigError(f"progress is of type {type(progress).__name__}: give True, False or a function.")


def counting(progress: Any, name: str) -> Any:
    """A `progress=` argument as `watched` takes it: functions of (done, total) or (done) hear of one stage only."""
    if not callable(checked(progress)) or (count := _positional(progress)) > 2:
        return progress
    function: Any = progress
    return lambda stage, done, total: function(*(done, total)[:count]) if stage == name and done else None


def _positional(function: Any) -> int:
    """The number of positional arguments that a function takes; 3 if that cannot be found out."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 3
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return 3
    return sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)


class Advance(Protocol):
    """Counts in a stage."""

    def __call__(
        self, done: int, facts: Mapping[str, Any] | None = None, *, total: int | None = None, left: float | None = None
    ) -> None:
        """Report the number done, with facts about it, a new total, or the seconds left if they are known."""
        ...


@contextmanager
def stage(name: str, total: int = 0, *, done: int | None = 0, outer: bool = False, unit: str = "") -> Iterator[Advance]:
    """Open a stage and yield a function to report the number done. `done` was done before, None if that is unknown."""
    listener = _listener.get()
    at = Stage(name, total, done or 0, outer, first=done, unit=unit)
    logger.info("%s%s", name, f": {total:,} {unit}".rstrip() if total else "")
    beat = at.began
    if listener:
        listener.opened(at)

    def advance(
        done: int, facts: Mapping[str, Any] | None = None, *, total: int | None = None, left: float | None = None
    ) -> None:
        nonlocal beat
        at.done, at.left, at.first = done, left, done - 1 if at.first is None else at.first
        at.facts = at.facts if facts is None else facts
        at.total = at.total if total is None else total
        if clock() - beat >= BEAT:
            beat = clock()
            logger.info("%s", at.line())
        if listener:
            listener.moved(at)

    token = _outer.set(at) if outer else None
    try:
        yield advance
    finally:
        if token is not None:
            _outer.reset(token)
        logger.debug("%s: %d in %.1f s", name, at.done, clock() - at.began)
        if listener:
            listener.closed(at)


def remark(text: str) -> None:
    """Log one line, and print it wherever progress is displayed."""
    logger.info("%s", text)
    listener: Any = _listener.get()
    if hasattr(listener, "printed"):
        listener.printed(text)


def is_unheard() -> bool:
    """Whether no caller has chosen a listener, not even to have none."""
    return _listener.get(_UNSET) is _UNSET


def time_left() -> float | None:
    """Seconds left of the surrounding stage; None if unknown."""
    around = _outer.get()
    return None if around is None else around.left


def duration(seconds: float) -> str:
    """A duration in words: "40 s", "3 min", "2 h 10 min"."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest and hours < 10 else f"{hours} h"
