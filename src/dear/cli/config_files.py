"""Config files: the options of a command as strict YAML, read with all errors at once, and written beside each run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dear.errors import ConfigError, did_you_mean
from dear.files import read_regular, write_atomic

FILE = "config.yaml"
ALWAYS = ("data", "clip", "method", "methods")
"""Written even if they are the defaults: they say what a run is."""
SCALARS = (str, int, float, bool)


class _Loader(yaml.SafeLoader):
    """Safe loading; a key that stands twice is an error, and 1e-3 is a number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """As usual, but each key once."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ConfigError(f"{twice[0]!r} stands there twice")
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_config(path: Path, options: Mapping[str, Any], command: str) -> dict[str, Any]:
    """The values of a file by the names of the command's parameters, as if they had been typed.

    `options` are the command's parameters by their names in a file. Every problem is named in one error.
    """
    content = _load(path)
    problems, values = [], {}
    for key, value in content.items():
        if key not in options:
            problems.append(f"{command} has no option {key!r}.{did_you_mean(str(key), options, most=1)}")
            continue
        if value is None:
            continue
        try:
            values[str(options[key].name)] = _typed(value, options[key])
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


def _typed(value: Any, option: Any) -> Any:
    """A value as it would be typed; what an option cannot take is a `ValueError` that says what it takes."""
    kind = option.type.name
    if option.param_type_name != "argument" and option.is_flag:
        if not isinstance(value, bool):
            raise ValueError("give true or false.")
        return value
    if _is_pairs(option):
        return _pairs(value)
    if kind.startswith(("integer", "float")):
        return _number(value, option.type, whole=kind.startswith("integer"))
    if isinstance(value, list) and _is_list(option):
        if not value or not all(isinstance(one, SCALARS) for one in value):
            raise ValueError("give a list of plain values.")
        return ",".join(_word(one) for one in value)
    if isinstance(value, int) and not isinstance(value, bool) and _is_list(option):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError("give a text or a list." if _is_list(option) else "give a text.")
    choices = (option.metavar or "").split("|")
    if len(choices) > 1 and value not in choices:
        raise ValueError(f"choose {', '.join(choices[:-1])} or {choices[-1]}.{did_you_mean(value, choices)}")
    return value


def _number(value: Any, kind: Any, *, whole: bool) -> Any:
    least = getattr(kind, "min", None)
    what = f"give a {'whole ' if whole else ''}number" + (f" from {least:g} on." if least is not None else ".")
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ValueError(what)
    if (least is not None and value < least) or value != value or value in (float("inf"), float("-inf")):
        raise ValueError(what)
    return value


def _is_pairs(option: Any) -> bool:
    return "--set" in option.opts


def _is_list(option: Any) -> bool:
    """Whether an option takes a comma-separated list, as its metavar says."""
    return "," in (option.metavar or "")


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


def write_config(folder: Path, options: Mapping[str, Any], params: Mapping[str, Any], **resolved: Any) -> None:
    """Write the options a command was given as a file that, given back with --config, repeats it.

    Defaults are left out, except for what a run is about; `resolved` has values that the command decided itself.
    """
    content = {}
    for key, option in options.items():
        value = resolved.get(key, params.get(str(option.name)))
        if value in (None, [], ()) or (key not in ALWAYS and value == option.default):
            continue
        content[key] = _plain(value, option)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10_000)
    write_atomic(folder / FILE, text.encode())


def _plain(value: Any, option: Any) -> Any:
    """A value as a person would write it in the file."""
    if _is_pairs(option):
        named = (pair.partition("=") for pair in value)
        return {name.strip(): _values(text) for name, _, text in named}
    if isinstance(value, Path):
        return str(value)
    if _is_list(option) and isinstance(value, str) and "," in value:
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
