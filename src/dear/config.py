"""Strict settings: unknown names and impossible values are refused, all at once, in the user's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dear.errors import ConfigError, did_you_mean

MOST_NAMED = 10


class Settings(BaseModel):
    """Base of every settings object: immutable, strict, and refused with a `ConfigError`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __init__(self, **values: Any) -> None:
        """Check the values; every problem is named in one error."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(" ".join(problems(error, type(self).model_fields))) from None

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
        if item["type"] == "extra_forbidden":
            near = did_you_mean(where, known, most=1) or (f" Known: {', '.join(known)}." if known else "")
            sentences.append(f"There is no setting {where!r}.{near}")
        elif where and not isinstance(item["input"], dict | list | tuple):
            sentences.append(f"{where} is {_short(item['input'])}: {message[:1].lower()}{message[1:]}.")
        else:
            sentences.append(f"{where}: {message}." if where else f"{message}.")
    more = len(found) - MOST_NAMED
    return [*sentences, *([f"There are {more} more problems."] if more > 0 else [])]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
