"""Reads the few-shot samples that CoOp saves (`shot_16-seed_1.pkl`), without running code that such a file names.

They are written by Python's object serializer, a list of instructions for a small stack machine. This module carries
out only the instructions that such a sample needs, on plain values. It imports nothing and calls nothing: the one class
that may be named, Dassl's `Datum`, becomes a dictionary. Everything else is refused.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

from dear.errors import DataError

_START = object()
"""Marks a place on the stack, from which on values belong to a list or a dictionary."""
_PLAIN = {"SHORT_BINUNICODE", "BINUNICODE", "BININT", "BININT1", "BININT2"}
"""Instructions that put a text or a whole number on the stack."""
_NOTHING = {"PROTO", "FRAME"}
_MOST_STEPS, _MOST_ATTRIBUTES = 1_000_000, 16
"""Limits of what is carried out; 16 images of each of ImageNet's classes need about 400,000 instructions."""


class CoopShot(NamedTuple):
    """One image of a sample: its path on the machine that wrote the file, its label and its class name."""

    path: str
    label: int
    class_name: str


class _Refused(ValueError):
    """The file contains something that a sample does not need."""


class _Datum(dict[str, Any]):
    """The attributes of one `Datum`."""


def read_coop_shots(content: bytes, *, where: str) -> tuple[CoopShot, ...]:
    """The training images of a sample; anything but such a sample raises `DataError`."""
    try:
        found = _Machine().run(content)
        return tuple(_shot(one) for one in found["train"])
    except _Refused as error:
        raise DataError(f"{where} is not read, because {error}: CoOp's lists of shots contain no such thing.") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError):
        raise DataError(
            f"{where} is damaged, or is not a list of shots as CoOp saves it, shot_16-seed_1.pkl."
        ) from None


def _shot(datum: Any) -> CoopShot:
    if type(datum) is not _Datum:
        raise TypeError
    shot = CoopShot(datum["_impath"], datum["_label"], datum["_classname"])
    if [type(value) for value in shot] != [str, int, str]:
        raise TypeError
    return shot


class _Machine:
    """The stack machine: instructions by name, each checked for the kinds of values that it may meet."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._steps: dict[str, Callable[[Any], None]] = {
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "EMPTY_TUPLE": lambda _: self._stack.append(()),
            "MARK": lambda _: self._stack.append(_START),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
            "BINPUT": self._remember,
            "LONG_BINPUT": self._remember,
            "BINGET": lambda number: self._stack.append(self._memo[number]),
            "LONG_BINGET": lambda number: self._stack.append(self._memo[number]),
            "APPEND": lambda _: self._extend([self._stack.pop()]),
            "APPENDS": lambda _: self._extend(self._since_start()),
            "SETITEM": lambda _: self._update([self._stack.pop() for _ in range(2)][::-1]),
            "SETITEMS": lambda _: self._update(self._since_start()),
            "GLOBAL": lambda names: self._name(*names.split(" ", 1)),
            "STACK_GLOBAL": lambda _: self._name(*[self._stack.pop() for _ in range(2)][::-1]),
            "NEWOBJ": lambda _: self._new(),
            "BUILD": lambda _: self._build(),
        }

    def run(self, content: bytes) -> dict[str, Any]:
        """The dictionary that a file describes."""
        for step, (instruction, argument, _) in enumerate(pickletools.genops(io.BytesIO(content))):
            name = instruction.name
            if name == "STOP":
                break
            if step > _MOST_STEPS:
                raise _Refused(f"it has more than {_MOST_STEPS:,} instructions")
            if name in _PLAIN:
                self._stack.append(argument)
            elif name in self._steps:
                self._steps[name](argument)
            elif name not in _NOTHING:
                raise _Refused(f"it contains the instruction {name}")
        (found,) = self._stack
        if type(found) is not dict:
            raise TypeError
        return found

    def _remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _since_start(self) -> list[Any]:
        values: list[Any] = []
        while (value := self._stack.pop()) is not _START:
            values.append(value)
        return values[::-1]

    def _extend(self, values: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise TypeError
        self._stack[-1].extend(values)

    def _update(self, values: list[Any]) -> None:
        names = values[::2]
        if type(self._stack[-1]) is not dict or not all(isinstance(name, str) for name in names):
            raise TypeError
        self._stack[-1].update(zip(names, values[1::2], strict=True))

    def _name(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError
        if module.split(".")[0] != "dassl" or name != "Datum":
            raise _Refused(f"it names {module[:60]!r}, {name[:60]!r}")
        self._stack.append(_Datum)

    def _new(self) -> None:
        arguments, kind = self._stack.pop(), self._stack.pop()
        if arguments != () or kind is not _Datum:
            raise TypeError
        self._stack.append(_Datum())

    def _build(self) -> None:
        state, datum = self._stack.pop(), self._stack[-1]
        if type(state) is not dict or len(state) > _MOST_ATTRIBUTES or type(datum) is not _Datum:
            raise TypeError
        datum.update(state)
