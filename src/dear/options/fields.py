"""Building blocks of options: kinds of values, and the base class that checks them.

An option is one field of a class: its type, range, choices, default and help text are defined there and nowhere else.
The command line, YAML files and Python calls all read them from the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from dear.cluster.connection import address_of
from dear.config import LARGEST_FLOAT, MOST_BITS, Settings

Half = Literal["all", "base", "novel"]
RecipeName = Literal["own", "shared", "tuned"]
LogName = Literal["tensorboard", "wandb"]
Part = TypeVar("Part", bound="Options")
Precision = Literal["auto", "fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Shown:
    """How help shows a value, and how an error message describes a valid one."""

    metavar: str
    words: str


@dataclass(frozen=True)
class Short:
    """A one-letter spelling on the command line."""

    flag: str


@dataclass(frozen=True)
class Former:
    """An earlier name of an option. It still works, with a note."""

    name: str


class Argument:
    """Marks an option that is typed without its name."""


class Repeated:
    """Marks a list whose option is typed once per value."""


IfExists = Literal["refuse", "resume", "overwrite"]
"""What to do with an output folder that has content."""


class Options(Settings, defer_build=True):
    """Base class of all options: immutable and strict; unknown names are refused."""

    def part(self, kind: type[Part]) -> Part:
        """Only the options of one part, such as Training."""
        return kind.model_construct(**{name: getattr(self, name) for name in kind.model_fields})


def as_list(value: Any) -> Any:
    """One value, a list, or 'a,b' as a tuple; whole numbers become numbers."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        return tuple(int(part) if part.isdecimal() else part for part in parts)
    return tuple(value) if isinstance(value, list | tuple | range) else (value,)


def as_words(value: Any) -> Any:
    """As `as_list`, but a class or a folder may be called 7 or 007."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(str(one) if type(one) is int or isinstance(one, Path) else one for one in as_list(value))


def as_items(value: Any) -> Any:
    """One value or a list as a tuple; commas have no meaning, as they may be part of a file's name."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def as_mapping(value: Any) -> Any:
    """['NAME=VALUE', …], as typed on the command line, as a mapping."""
    if not isinstance(value, list | tuple):
        return value
    pairs = [one.partition("=") if isinstance(one, str) else ("", "", "") for one in value]
    if not all(name.strip() and text.strip() for name, _, text in pairs):
        raise ValueError("not NAME=VALUE")
    if len({name.strip() for name, _, _ in pairs}) < len(pairs):
        raise ValueError("a name is set twice")
    return {name.strip(): literal(text.strip()) for name, _, text in pairs}


def as_pairs(value: Any) -> Any:
    """As `as_mapping`; 'NAME=N,NAME=N' is accepted as well."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    return as_mapping([part for text in texts for part in str(text).split(",")])


def as_texts(value: Any) -> Any:
    """As `as_mapping`, but values stay text."""
    if not isinstance(value, list | tuple):
        return value
    found = as_mapping(value)
    return {name: one.partition("=")[2].strip() for name, one in zip(found, value, strict=True)}


def as_choices(value: Any) -> Any:
    """As `as_mapping`, with a tuple of values per name: each value is a variant."""
    if isinstance(value, list | tuple):
        value = as_mapping(value)
    if not isinstance(value, Mapping):
        return value
    return {
        name: tuple(map(literal, one.split(","))) if isinstance(one, str) else _several(one)
        for name, one in value.items()
    }


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def literal(text: str) -> Any:
    """A number, true, false or null if the text is one; otherwise the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text.strip()
    return text.strip() if isinstance(value, dict | list) else value


def not_empty(value: Any) -> Any:
    """A path that can be one: Path('') would be the current folder, and no path has a null character."""
    if isinstance(value, str | Path) and (not str(value).strip() or "\0" in str(value)):
        raise ValueError("not a path")
    return value


_SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(time: str) -> float:
    """Seconds of a time such as "90s", "5m" or "1.5h"."""
    number = float(time[:-1]) * _SECONDS[time[-1]]
    if not 0 < number < float("inf"):
        raise ValueError("not a time")
    return number


def _is_time(value: str) -> str:
    try:
        seconds_of(value)
    except (ValueError, KeyError, IndexError):
        raise ValueError("not a time") from None
    return value


def _is_on(value: str) -> str:
    address_of(value)
    return value


def share_of(text: str) -> tuple[int, int]:
    """The numbers in '3/20'."""
    which, slash, count = text.partition("/")
    numbers = [int(one) if one.isascii() and one.isdecimal() else 0 for one in (which, count)]
    if not slash or not 1 <= numbers[0] <= numbers[1] <= LARGEST:
        raise ValueError("not a share such as 3/20")
    return numbers[0], numbers[1]


def _is_share(value: str) -> str:
    which, count = share_of(value)
    return f"{which}/{count}"


def within_reach(value: Any) -> Any:
    """A number that a tensor can hold: 63 bits, or the range of fp32."""
    is_long = isinstance(value, int) and value.bit_length() > MOST_BITS
    if is_long or (isinstance(value, float) and abs(value) > LARGEST_FLOAT):
        raise ValueError("far too large")
    return value


LARGEST = 100_000
"""Largest number of shares of a grid."""
Count = Annotated[int, Field(ge=1), AfterValidator(within_reach), Shown("N", "a whole number")]
Epochs = Annotated[Count, Field(le=100_000)]
"""More would only be a mistake: the learning rate is planned for all of them, and the run ends after the last one."""
Number = Annotated[int, Field(ge=0), AfterValidator(within_reach), Shown("N", "a whole number")]
Rate = Annotated[float, Field(ge=0), AfterValidator(within_reach), Shown("RATE", "a number")]
Share = Annotated[float, Field(ge=0, lt=1), Shown("SHARE", "a number")]
Name = Annotated[str, Field(min_length=1), Shown("NAME", "a name")]
Text = Annotated[str, Field(min_length=1), Shown("TEXT", "a text")]
Folder = Annotated[Path, BeforeValidator(not_empty), Field(strict=False), Shown("FOLDER", "a folder")]
File = Annotated[Path, BeforeValidator(not_empty), Field(strict=False), Shown("FILE", "a file")]
RunFolder = Annotated[Path, BeforeValidator(not_empty), Field(strict=False), Shown("RUN", "the folder of a run")]
On = Annotated[
    str, AfterValidator(_is_on), Shown("ray[:ADDRESS]", "ray, or ray and the address of a head node, ray:10.0.0.1:6379")
]
Time = Annotated[str, AfterValidator(_is_time), Shown("TIME", "a time such as 90s, 5m or 1h")]
ShareOfCells = Annotated[str, AfterValidator(_is_share), Shown("K/N", "a share such as 3/20")]
Tag = Annotated[str, Field(min_length=1), Shown("TAG", "a tag")]
MapName = Annotated[str, Field(min_length=1), Shown("MAP", "a role map")]
DataName = Annotated[str, Field(min_length=1), Shown("DATA", "a folder, a list or a data set's name")]
Names = Annotated[tuple[str, ...], BeforeValidator(as_words), Field(min_length=1), Shown("NAME,NAME", "names")]
Folders = Annotated[tuple[str, ...], BeforeValidator(as_words), Field(min_length=1), Shown("FOLDER,FOLDER", "folders")]
Counts = Annotated[tuple[Count, ...], BeforeValidator(as_list), Field(min_length=1), Shown("N,N", "whole numbers")]
Numbers = Annotated[tuple[Number, ...], BeforeValidator(as_list), Field(min_length=1), Shown("N,N", "whole numbers")]
MethodSettings = Annotated[
    dict[str, Any], BeforeValidator(as_mapping), Shown("NAME=VALUE", "NAME=VALUE once per name, as in beta=0.8")
]
Variants = Annotated[
    dict[str, tuple[Any, ...]],
    BeforeValidator(as_choices),
    Shown("NAME=V1,V2", "NAME=V1,V2 once per name, as in beta=0.5,0.9"),
]
