"""`Settings`: base class of all settings. Unknown names and invalid values are reported together, in one error."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from dear.errors import ConfigError, DearWarning, did_you_mean

MOST_NAMED = 10
MOST_BITS = 63
"""Of a whole number: tensors have no larger ones."""
LARGEST_FLOAT = 3e38
"""Numbers in fp32 are smaller."""


class Former(NamedTuple):
    """Former name of a setting, and pairs of former and current values."""

    name: str
    values: tuple[tuple[Any, Any], ...]


class Settings(BaseModel):
    """Immutable, strictly validated settings; invalid values raise `ConfigError`."""

    former: ClassVar[Mapping[str, Former]] = {}
    """Renamed settings, by current name. Fingerprints always use the first name, and files may contain it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __init__(self, **values: Any) -> None:
        """Validate the values; all problems are reported in one error."""
        current = named_now(type(self), values)
        for hint in renamings(values, current):
            warnings.warn(hint, DearWarning, stacklevel=2)
        for name, value in current.items():
            if (type(value) is int and value.bit_length() > MOST_BITS) or (
                isinstance(value, float) and LARGEST_FLOAT < abs(value) < inf
            ):
                raise ConfigError(f"{name} is {_short(value)}, which is far too large: give a smaller number.")
        try:
            super().__init__(**current)
        except ValidationError as error:
            raise ConfigError(" ".join(problems(error, type(self).model_fields))) from None

    def first_named(self, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Plain values under the first names of the settings, for hashes, which a renaming must not change."""
        return named_first(type(self), self.model_dump(mode="json", exclude=set(exclude)))

    def __repr__(self) -> str:
        """The settings that differ from their defaults, in one line."""
        fields = type(self).model_fields
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, one in fields.items()
            if getattr(self, name) != one.get_default(call_default_factory=True)
        ]
        return one_line(f"{type(self).__name__}({', '.join(changed)})")

    __str__ = __repr__


def named_now(settings: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values under the current names of their settings; a value that never existed under a former name is unchanged."""
    current = dict(values)
    for name, (before, pairs) in settings.former.items():
        value = next((new for old, new in pairs if before in current and current[before] is old), None)
        if value is not None and name not in current:
            current = {name if key == before else key: value if key == before else one for key, one in current.items()}
    return current


def named_first(settings: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with current names under the first names of their settings."""
    first = dict(values)
    for name, (before, pairs) in settings.former.items():
        if name in first:
            value = first.pop(name)
            first[before] = next((old for old, new in pairs if new == value), value)
    return first


def renamings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A sentence for each name of `before` that `named_now` replaced."""
    gone, new = [name for name in before if name not in now], [name for name in now if name not in before]
    return [f"{old}={before[old]} is now called {name}={now[name]}." for old, name in zip(gone, new, strict=True)]


def one_line(text: str, most: int = 160) -> str:
    """A text as one line, truncated to `most` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def whole_number(name: str, value: object, *, least: int = 0) -> int:
    """Return an argument that must be a whole number; anything else raises `ConfigError`."""
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} is {value!r}, but must be a whole number from {least} on.")
    return value


def problems(error: ValidationError, known: Iterable[str] = ()) -> list[str]:
    """A sentence for each problem of a validation; after the first few, only the number of the others."""
    sentences, errors = [], error.errors(include_url=False)
    for item in errors[:MOST_NAMED]:
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
    more = len(errors) - MOST_NAMED
    return [*sentences, *([f"There are {more} more problems."] if more > 0 else [])]


def _usual_list(known: Iterable[str], loc: Sequence[int | str]) -> str:
    """The default of the field with the problem, if the default is a list."""
    field = known.get(str(loc[0])) if isinstance(known, Mapping) and loc else None
    default = getattr(field, "default", None)
    return _short(list(default)) if isinstance(default, tuple) and default else ""


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python prints no number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}…"
