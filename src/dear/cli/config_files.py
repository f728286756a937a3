"""Config files: the options of a command as strict YAML, read with all errors at once, and written beside each run."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

import yaml
from typer.models import OptionInfo

from dear.errors import ConfigError, did_you_mean
from dear.storage.files import read_regular, write_atomic

FILE = "config.yaml"
ALWAYS = ("data", "clip", "method", "methods")
"""Written even if they are the defaults: they say what a run is."""
NEVER = ("config", "resume", "overwrite", "plan")
"""They say what to do now, and belong to no config file."""
SCALARS = (str, int, float, bool)


class _Loader(yaml.SafeLoader):
    """Safe loading; a key that stands twice is an error, and 1e-3 is a number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """As usual, but each key once."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if (twice := Counter(map(repr, keys)).most_common(1)) and twice[0][1] > 1:
            raise ConfigError(f"{twice[0][0]} stands there twice")
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class Option:
    """An option of a command, as a config file may hold it."""

    name: str
    """Of the command's parameter."""
    kind: type
    default: Any
    metavar: str
    least: float | None

    @property
    def is_list(self) -> bool:
        """Whether it takes a comma-separated list."""
        return "," in self.metavar and self.kind is str

    @property
    def choices(self) -> list[str]:
        """The words it can take; [] for any."""
        return self.metavar.split("|") if "|" in self.metavar else []


def options_of(parameters: Iterable[inspect.Parameter]) -> dict[str, Option]:
    """The options of a command by their names in a file: as they are typed, with _ for -."""
    found = {}
    for one in parameters:
        if one.name in NEVER or get_origin(one.annotation) is not Annotated:
            continue
        kind, info = get_args(one.annotation)[:2]
        kinds = [part for part in get_args(kind) if part is not NoneType] if get_origin(kind) is UnionType else [kind]
        names = [info.default, *(info.param_decls or ())] if isinstance(info, OptionInfo) else []
        longest = max((name for name in names if isinstance(name, str)), key=len, default=one.name)
        default = None if one.default is inspect.Parameter.empty else one.default
        option = Option(one.name, get_origin(kinds[0]) or kinds[0], default, info.metavar or "", info.min)
        found[longest.lstrip("-").replace("-", "_")] = option
    return found


def read_config(path: Path, options: Mapping[str, Option], command: str) -> dict[str, Any]:
    """The values of a file by the names of the command's parameters, as if they had been typed.

    Every problem is named in one error.
    """
    content = _load(path)
    problems, values = [], {}
    for key, value in content.items():
        if key not in options:
            problems.append(f"{command} has no option {key!r} for a file.{did_you_mean(str(key), options, most=1)}")
            continue
        if value is None:
            continue
        try:
            values[options[key].name] = _typed(value, options[key])
        except ValueError as error:
            problems.append(f"{key} is {_shown(value)}: {error}")
    if problems:
        raise ConfigError(f"{path} cannot be used. {' '.join(problems)}")
    return values


def _load(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.load(read_regular(path), Loader=_Loader)
    except OSError as error:
        raise ConfigError(f"The config file {path} cannot be read ({error.strerror or error}).") from None
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used. {error}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        place = f" at line {where.line + 1}" if where else ""
        raise ConfigError(f"{path} is not valid YAML{place}: write one 'name: value' per line.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a config file: write one 'name: value' per line, such as 'shots: 16'.")
    return content


def _typed(value: Any, option: Option) -> Any:
    """A value as it would be typed; what an option cannot take is a `ValueError` that says what it takes."""
    if option.kind is bool:
        if not isinstance(value, bool):
            raise ValueError("give true or false.")
        return value
    if option.kind is list:
        return _pairs(value)
    if option.kind in (int, float):
        return _number(value, option)
    if option.is_list and isinstance(value, list):
        if not value or not all(isinstance(one, SCALARS) for one in value):
            raise ValueError("give a list of plain values.")
        return ",".join(_word(one) for one in value)
    if option.is_list and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError("give a text or a list." if option.is_list else "give a text.")
    if (known := option.choices) and value not in known:
        raise ValueError(f"choose {', '.join(known[:-1])} or {known[-1]}.{did_you_mean(value, known, most=1)}")
    return value


def _number(value: Any, option: Option) -> Any:
    whole, least = option.kind is int, option.least
    what = f"give a {'whole ' if whole else ''}number" + (f" from {least:g} on." if least is not None else ".")
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not isfinite(value):
        raise ValueError(what)
    if least is not None and value < least:
        raise ValueError(what)
    return value


def _pairs(value: Any) -> list[str]:
    """Settings as `--set` takes them; several values are a list."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError("give settings as 'name: value' below it.")
    found = []
    for name, one in value.items():
        values = one if isinstance(one, list) else [one]
        if not values or not all(each is None or isinstance(each, SCALARS) for each in values):
            raise ValueError(f"{name} takes plain values.")
        found.append(f"{name}={','.join(_word(each) for each in values)}")
    return found


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def write_config(folder: Path, options: Mapping[str, Option], params: Mapping[str, Any], **resolved: Any) -> None:
    """Write the options a command was given as a file that, given back with --config, repeats it.

    Defaults are left out, except for what a run is about; `resolved` has values that the command decided itself.
    """
    content = {}
    for key, option in options.items():
        value = resolved.get(key, params.get(option.name))
        if value in (None, [], ()) or (key not in ALWAYS and value == option.default):
            continue
        content[key] = _plain(value, option)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10_000)
    write_atomic(folder / FILE, text.encode())


def _plain(value: Any, option: Option) -> Any:
    """A value as a person would write it in the file."""
    if option.kind is list:
        named = (pair.partition("=") for pair in value)
        return {name.strip(): _values(text) for name, _, text in named}
    if isinstance(value, Path):
        return str(value)
    if option.is_list and "," in value:
        parts = [part.strip() for part in value.split(",") if part.strip()]
        return [int(part) if part.isdecimal() and str(int(part)) == part else part for part in parts]
    return value


def _values(text: str) -> Any:
    parts: Sequence[Any] = [_literal(part.strip()) for part in text.split(",")]
    return parts[0] if len(parts) == 1 else list(parts)


def _literal(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if value is None or isinstance(value, SCALARS) else text
