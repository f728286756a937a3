"""Strict settings: unknown names and impossible values are refused, all at once, in the user's words."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from dear.errors import ConfigError, DearWarning, did_you_mean

MOST_NAMED = 10


class Former(NamedTuple):
    """What a setting was called before, and each former value with today's."""

    name: str
    values: tuple[tuple[Any, Any], ...]


class Settings(BaseModel):
    """Base of every settings object: immutable, strict, and refused with a `ConfigError`."""

    former: ClassVar[Mapping[str, Former]] = {}
    """Settings that had another name, by today's. Files hold the former ones, and so do fingerprints, for ever."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __init__(self, **values: Any) -> None:
        """Check the values; every problem is named in one error."""
        told = named_now(type(self), values)
        for hint in renamings(values, told):
            warnings.warn(hint, DearWarning, stacklevel=2)
        try:
            super().__init__(**told)
        except ValidationError as error:
            raise ConfigError(" ".join(problems(error, type(self).model_fields))) from None

    def first_named(self, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Plain values under the names that the settings had first, for hashes, which renaming must not change."""
        return named_first(type(self), self.model_dump(mode="json", exclude=set(exclude)))

    def __repr__(self) -> str:
        """What is not at its default, in one line."""
        fields = type(self).model_fields
        told = [
            f"{name}={getattr(self, name)!r}"
            for name, one in fields.items()
            if getattr(self, name) != one.get_default(call_default_factory=True)
        ]
        return one_line(f"{type(self).__name__}({', '.join(told)})")

    __str__ = __repr__


def named_now(settings: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that may stand under former names, under today's; what is none of the former values stays as it is."""
    told = dict(values)
    for name, (before, pairs) in settings.former.items():
        found = next((new for old, new in pairs if before in told and told[before] is old), None)
        if found is not None and name not in told:
            told = {name if key == before else key: found if key == before else one for key, one in told.items()}
    return told


def named_first(settings: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values under today's names, under those that the settings had first."""
    told = dict(values)
    for name, (before, pairs) in settings.former.items():
        if name in told:
            value = told.pop(name)
            told[before] = next((old for old, new in pairs if new == value), value)
    return told


def renamings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A sentence for each name of `before` that `named_now` replaced."""
    gone, new = [name for name in before if name not in now], [name for name in now if name not in before]
    return [f"{old}={before[old]} is now called {name}={now[name]}." for old, name in zip(gone, new, strict=True)]


def one_line(text: str, most: int = 160) -> str:
    """A text that fits a line, cut if it must be."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def whole_number(name: str, value: object, *, least: int = 0) -> int:
    """An argument that counts something."""
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} is {value!r}, but must be a whole number from {least} on.")
    return value


def problems(error: ValidationError, known: Iterable[str] = ()) -> list[str]:
    """Each problem of a validation as a sentence, or the first few of very many."""
    sentences, found = [], error.errors(include_url=False)
    for item in found[:MOST_NAMED]:
        where = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ").rstrip(".")
        if item["type"] in ("tuple_type", "missing", "too_long") and (usual := _usual_list(known, item["loc"])):
            sentences.append(f"{item['loc'][0]} is {_short(item['input'])}: give a list such as {usual}.")
        elif item["type"] == "extra_forbidden":
            near = did_you_mean(where, known, most=1) or (f" Known: {', '.join(known)}." if known else "")
            sentences.append(f"There is no setting {where!r}.{near}")
        elif where and not isinstance(item["input"], dict | list | tuple):
            sentences.append(f"{where} is {_short(item['input'])}: {message[:1].lower()}{message[1:]}.")
        else:
            sentences.append(f"{where}: {message}." if where else f"{message}.")
    more = len(found) - MOST_NAMED
    return [*sentences, *([f"There are {more} more problems."] if more > 0 else [])]


def _usual_list(known: Iterable[str], loc: Sequence[int | str]) -> str:
    """The default of the field that a problem is in, if that is a list."""
    field = known.get(str(loc[0])) if isinstance(known, Mapping) and loc else None
    default = getattr(field, "default", None)
    return _short(list(default)) if isinstance(default, tuple) and default else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
