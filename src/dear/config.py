"""Strict settings: unknown names and impossible values are refused, all at once, in the user's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dear.errors import ConfigError, did_you_mean


class Settings(BaseModel):
    """Base of every settings object."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


S = TypeVar("S", bound=Settings)


def parse(settings: type[S], values: Mapping[str, Any]) -> S:
    """Check values against a settings class; every problem is named in one `ConfigError`."""
    try:
        return settings.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_problems(error, settings)) from None


def _problems(error: ValidationError, settings: type[BaseModel]) -> str:
    """All of a validation's problems in one line."""
    problems = []
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            near = did_you_mean(where, settings.model_fields, most=1) or f" Known: {', '.join(settings.model_fields)}."
            problems.append(f"There is no setting {where!r}.{near}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            problems.append(f"{where} is {item['input']!r}: {message[:1].lower()}{message[1:]}.")
    return " ".join(problems)
