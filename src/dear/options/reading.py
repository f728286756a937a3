"""Read options: values from the command line, a YAML file or a Python call, with all problems in one message."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from dear.config import MOST_NAMED
from dear.errors import ConfigError, DearWarning, did_you_mean, is_typed
from dear.options.fields import Argument, Former, Options, Shown
from dear.storage.files import read_regular, write_atomic
from dear.storage.yaml_text import LARGEST_YAML, YamlError, parse_yaml

FILE = "config.yaml"
ALWAYS = ("data", "clip", "method", "methods")
"""Written to a config file even at their defaults: they say what a run is."""
LONGEST_METAVAR = 20
AnyOptions = TypeVar("AnyOptions", bound=Options)


class Option(NamedTuple):
    """A field of a class of options, as a user sees it."""

    name: str
    """In a file and in Python; on the command line with dashes."""
    field: FieldInfo
    panel: str
    kind: Any
    """The type without None and Annotated."""
    facts: tuple[Any, ...]
    """The metadata of Annotated, innermost first."""

    def fact(self, kind: type) -> Any:
        """The last fact of a kind, or None."""
        return next((one for one in reversed(self.facts) if isinstance(one, kind)), None)

    @property
    def is_argument(self) -> bool:
        """Whether it is typed without its name."""
        return Argument in self.facts

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return get_origin(self.kind) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it accepts; () for any."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def metavar(self) -> str:
        """What help shows as its value."""
        if self.choices:
            words = "|".join(self.choices)
            return words if len(words) <= LONGEST_METAVAR else "WORD"
        return self.fact(Shown).metavar if self.fact(Shown) else ""

    @property
    def text(self) -> str:
        """The field's docstring in one line."""
        return " ".join((self.field.description or "").split())

    @property
    def help(self) -> str:
        """The docstring, the range, choices that the metavar has no room for, and whether it is required."""
        limits = f" {self.limits.strip().capitalize()}." if self.limits else ""
        words = f" One of {self.takes}." if self.metavar == "WORD" else ""
        required = " Required." if self.field.is_required() and not self.is_argument else ""
        return f"{self.text}{limits}{words}{required}"

    @property
    def limits(self) -> str:
        """The range in words; a lower bound that goes without saying is left out."""
        least, most, below = self.fact(Ge), self.fact(Le), self.fact(Lt)
        if below and least:
            return f" from {least.ge:g} to less than {below.lt:g}"
        if most:
            return f" from {least.ge:g} to {most.le:g}" if least else f" up to {most.le:g}"
        return ""

    @property
    def takes(self) -> str:
        """A valid value in words."""
        if self.choices:
            return " or ".join(filter(None, (", ".join(self.choices[:-1]), self.choices[-1])))
        if self.kind is bool:
            return "true or false"
        least = self.fact(Ge)
        above = f" above {self.fact(Gt).gt:g}" if self.fact(Gt) else f" from {least.ge:g} on" if least else ""
        return f"{self.fact(Shown).words}{self.limits or above}"


def options_of(model: type[Options]) -> dict[str, Option]:
    """All options of a class by name; the panel is the title of the part that defines the field."""
    parts = [part for part in model.__mro__ if issubclass(part, Options)]
    titles: dict[str, str] = {}
    for part in parts:
        for name in vars(part).get("__annotations__", {}):
            titles.setdefault(name, str(part.model_config.get("title") or ""))
    found = {}
    for name, field in model.model_fields.items():
        kind, facts = _bare(field.annotation, field.metadata)
        found[field.alias or name] = Option(field.alias or name, field, titles[name], kind, facts)
    return found


def _bare(kind: Any, facts: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """A type without None and Annotated, and the metadata; of a union, its first member."""
    if get_origin(kind) in (Union, UnionType):
        return _bare(next(one for one in get_args(kind) if one is not NoneType), facts)
    if get_origin(kind) is Annotated:
        inner = [fact for one in kind.__metadata__ for fact in (one.metadata if isinstance(one, FieldInfo) else [one])]
        return _bare(get_args(kind)[0], [*inner, *facts])
    if get_origin(kind) is tuple:  # the limits of a list are those of its items
        return kind, (*_bare(get_args(kind)[0], ())[1], *facts)
    return kind, tuple(facts)


def spelled(name: str) -> str:
    """A name as the user writes it: with dashes on the command line, as a keyword in Python."""
    return flag(name) if is_typed() else name


def flag(name: str) -> str:
    """An option's name on the command line."""
    return f"--{name.replace('_', '-')}"


def check(
    model: type[AnyOptions],
    values: Mapping[str, Any],
    spell: Callable[[str], str] = spelled,
    problems: Sequence[str] = (),
    hint: str = "",
) -> AnyOptions:
    """The options, or one error with a sentence for each problem; `spell` writes a name as the user did."""
    sentences = list(problems)
    empty = model.__new__(model)
    try:
        if not model.__pydantic_complete__:
            model.model_rebuild()
        model.__pydantic_validator__.validate_python(dict(values), self_instance=empty)
    except ValidationError as error:
        sentences += _sentences(error, model, spell, values, hint)
    if sentences:
        raise ConfigError(" ".join(sentences))
    return empty


def check_values(model: type[Options], **values: Any) -> None:
    """Refuse values that an option cannot have; options that are not named here are not looked at."""
    try:
        if not model.__pydantic_complete__:
            model.model_rebuild()
        model.__pydantic_validator__.validate_python(values, self_instance=model.__new__(model))
    except ValidationError as error:
        if sentences := _sentences(error, model, spelled, values, "", missing=False):
            raise ConfigError(" ".join(sentences)) from None


def _sentences(
    error: ValidationError,
    model: type[Options],
    spell: Callable[[str], str],
    values: Mapping[str, Any],
    hint: str,
    *,
    missing: bool = True,
) -> list[str]:
    """One sentence per wrong field, in the order of the fields."""
    known = options_of(model)
    order = {name: place for place, name in enumerate(known)}
    items = [item for item in error.errors() if missing or item["type"] != "missing"]
    items.sort(key=lambda item: order.get(str(item["loc"][0]) if item["loc"] else "", len(order)))
    sentences = list(dict.fromkeys(_sentence(item, values, known, spell, hint) for item in items[:MOST_NAMED]))
    return [*sentences, *([f"There are {len(items) - MOST_NAMED} more problems."] if len(items) > MOST_NAMED else [])]


def _sentence(
    item: Any, values: Mapping[str, Any], known: Mapping[str, Option], spell: Callable[[str], str], hint: str
) -> str:
    if not item["loc"]:
        return str(item["ctx"]["error"])
    name = str(item["loc"][0])
    if item["type"] == "extra_forbidden":
        return f"There is no option {spell(name)}.{did_you_mean(name, known, most=1) or hint}"
    option = known[name]
    if item["type"] == "missing":
        return f"{spell(name)} is missing: give {option.takes}."
    value = values.get(name, item["input"])
    near = did_you_mean(value, option.choices, most=1) if isinstance(value, str) else ""
    return f"{spell(name)} is {_short(value)}: give {option.takes}.{near}"


def _short(value: Any) -> str:
    try:
        text = repr(str(value) if isinstance(value, Path) else value)
    except ValueError:  # Python prints no number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}…"


def read_file(path: Path, model: type[Options]) -> tuple[dict[str, Any], list[str]]:
    """The values of a config file by name, and the problems of the file itself."""
    try:
        content, repeated = parse_yaml(read_regular(path, most=LARGEST_YAML))
    except OSError as error:
        raise ConfigError(f"The config file {path} cannot be read ({error.strerror or error}).") from None
    except YamlError as error:
        place = f" at line {error.line}" if error.line else ""
        raise ConfigError(f"{path} is not valid YAML{place}: write one 'name: value' per line.") from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a config file: write one 'name: value' per line, such as 'shots: 16'.")
    actions = [name for name, one in options_of(model).items() if one.field.exclude and name in content]
    problems = [f"{name!r} appears twice in {path}." for name in repeated]
    problems += [f"{name!r} says what to do now, so a file cannot contain it." for name in actions]
    return {str(key): one for key, one in content.items() if one is not None and key not in actions}, problems


def renamed(model: type[Options], values: Mapping[str, Any], spell: Callable[[str], str] = spelled) -> dict[str, Any]:
    """Values under the present names, with a note for each former one."""
    present = {former.name: name for name, one in options_of(model).items() if (former := one.fact(Former))}
    for name in values:
        if name in present:
            warnings.warn(f"{spell(name)} is now called {spell(present[name])}.", DearWarning, stacklevel=2)
    return {present.get(name, name): value for name, value in values.items()}


def read(model: type[AnyOptions], typed: Mapping[str, Any], file: Path | None = None) -> AnyOptions:
    """The options of a command: typed values first, then those of the file, then the defaults."""
    filed, problems = read_file(file, model) if file else ({}, [])
    filed, typed, known = renamed(model, filed, repr), renamed(model, typed, flag), options_of(model)

    def spell(name: str) -> str:
        if name in filed and name not in typed:
            return f"{name!r} in {file}"
        return known[name].metavar if name in known and known[name].is_argument else flag(name)

    values = {**filed, **{name: _as_number(known[name], one) for name, one in typed.items()}}
    return check(model, values, spell, problems)


def _as_number(option: Option, text: Any) -> Any:
    """A typed word as a number where one is wanted; all other texts are parsed by the field itself."""
    try:
        return option.kind(text) if option.kind in (int, float) else text
    except ValueError:
        return text


def as_yaml(options: Options, **decided: Any) -> str:
    """What differs from the defaults, and what a run is about; with --config it repeats the run.

    `decided` overrides values that were resolved later, such as the backbone.
    """
    changed, everything = (
        options.model_dump(mode="json", by_alias=True, exclude_defaults=exclude) for exclude in (True, False)
    )
    everything |= {name: value for name, value in decided.items() if name in everything}
    content = {
        name: _plain(value)
        for name, value in everything.items()
        if value not in (None, {}) and (name in changed or name in ALWAYS or name in decided)
    }
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10_000))


def _plain(value: Any) -> Any:
    """A list of one value as that value; not in a mapping, where settings of methods can be lists."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def write_config(folder: Path, options: Options, **decided: Any) -> None:
    """Write the options to FOLDER/config.yaml."""
    write_atomic(folder / FILE, as_yaml(options, **decided).encode())
