"""Every option of every command with hostile values: typed, in a file, and in Python; nothing is computed.

The options are read from the classes, so a new one is tested without a word here. The quick form tries each definition
of an option in one command; the slow one, every option of every command.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import yaml
from pydantic import ConfigDict, Field

from commands import LEAVES
from dear.cli import commands as made
from dear.cli import main
from dear.errors import ConfigError, DearError
from dear.methods.registry import get_method, list_methods
from dear.options import commands, parts, tools
from dear.options.fields import Options, Shown
from dear.options.reading import FILE, as_yaml, check, options_of, read, read_file
from hostile_values import OBJECTS, TYPED, problem_of, unusable

WHOLE = frozenset({"set"})
"""Options whose values the methods check; see `test_settings_of_methods`."""
FEW = ("nan", "---\x1b[31mred\n")
"""Typed in the quick form."""


def classes() -> list[type[Options]]:
    """Every class of options of a command: those that no other class is made of."""
    found = [one for room in (parts, commands, tools) for one in vars(room).values()]
    return [one for one in found if isinstance(one, type) and issubclass(one, Options) and one is not Options]


def definitions(models: list[type[Options]]) -> Iterator[tuple[type[Options], str]]:
    """Each definition of an option once, with the first class that has it."""
    seen = set[tuple[Any, ...]]()
    for model in models:
        for name, one in options_of(model).items():
            what = (name, str(one.kind), str(one.facts), one.text)
            if what not in seen:
                seen.add(what)
                yield model, name


def flaw_of(call: Callable[[], Any]) -> str:
    """What is wrong with how a value was taken: neither a usable one, nor one sentence."""
    try:
        options = call()
    except DearError as error:
        return problem_of(str(error))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what we look for
        return f"{type(error).__name__}: {error}"
    values = {name: getattr(options, name) for name in type(options).model_fields if name not in WHOLE}
    return unusable(values)


def flaws(model: type[Options], name: str) -> list[str]:
    """What is wrong with an option that is passed in Python, or read from typed words."""
    needed = {one: "x" for one, what in options_of(model).items() if what.field.is_required()}
    tried = [(value, flaw_of(lambda value=value: check(model, {**needed, name: value}))) for value in OBJECTS]
    tried += [(value, flaw_of(lambda value=value: read(model, {**needed, name: value}))) for value in TYPED]
    return [f"{model.__name__}.{name} = {_shown(value)}: {flaw}" for value, flaw in tried if flaw]


def _shown(value: object) -> str:
    try:
        return repr(value)[:60]
    except ValueError:
        return "a number of thousands of digits"


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """Type words; what is wrong with how they were taken, once the options are read and before anything is done."""
    taken: list[Options] = []

    def read_only(model, values, file=None):
        taken.append(read(model, values, file))
        raise typer.Exit

    monkeypatch.setattr(made, "read", read_only)
    monkeypatch.chdir(tmp_path)

    def typed(words: list[str]) -> str:
        taken.clear()
        monkeypatch.setattr(sys, "argv", ["dear", *words])
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is what we look for
            return f"{type(error).__name__}: {error}"
        printed = capsys.readouterr()
        said = [line for line in printed.err.splitlines() if not line.startswith("note: ")]
        if code == 0 and taken:
            return unusable(
                {name: getattr(taken[0], name) for name in type(taken[0]).model_fields if name not in WHOLE}
            )
        if code == 0:  # a help page
            return "" if printed.out else "neither accepted nor refused"
        return problem_of("\n".join(said)) or ("" if code == 2 and said[0].startswith("dear: ") else f"{code}: {said}")

    return typed


def words_of(path: tuple[str, ...], parameter: Any, value: str) -> list[str]:
    """A command with one hostile word, and usual ones where some are needed."""
    needed = [one for one in LEAVES[path].params if one.required and one is not parameter]
    if parameter.param_type_name == "argument":
        before = [word for one in needed for word in _given(one, "x")]
        return [*path, *before, value]
    return [*path, *(word for one in needed for word in _given(one, "x")), f"{parameter.opts[0]}={value}"]


def _given(parameter: Any, value: str) -> list[str]:
    return [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]


def places() -> list[tuple[tuple[str, ...], Any]]:
    """Every option of every command that takes a value."""
    return [
        (path, one)
        for path, command in LEAVES.items()
        for one in command.params
        if not getattr(one, "is_flag", False) and one.name != "help"
    ]


def once() -> list[tuple[tuple[str, ...], Any]]:
    """Each option with the first command that has it."""
    found: dict[tuple[Any, ...], tuple[tuple[str, ...], Any]] = {}
    for path, one in places():
        found.setdefault((one.name, one.metavar, one.help if hasattr(one, "help") else ""), (path, one))
    return list(found.values())


def typed_flaws(
    typed: Callable[[list[str]], str], found: list[tuple[tuple[str, ...], Any]], values: tuple[str, ...]
) -> dict[str, str]:
    """What is wrong with each option and value."""
    tried = {
        f"{' '.join(path)} {one.opts[0]} {value[:40]!r}": typed(words_of(path, one, value))
        for path, one in found
        for value in values
    }
    return {what: flaw for what, flaw in tried.items() if flaw}


def test_every_option_that_is_typed(typed):
    """A few values go the whole way; the others only through the class of options, which sees typed words as they are.

    That the command's parser changes nothing is what the slow form shows.
    """
    assert len(once()) > 100
    assert typed_flaws(typed, once(), FEW) == {}


@pytest.mark.slow
def test_every_option_of_every_command_that_is_typed(typed):
    assert typed_flaws(typed, places(), TYPED) == {}


def test_every_option_in_python():
    found = [flaw for model, name in definitions(classes()) for flaw in flaws(model, name)]
    assert not found, found[:20]


@pytest.mark.slow
def test_every_option_of_every_class_in_python():
    found = [flaw for model in classes() for name in options_of(model) for flaw in flaws(model, name)]
    assert not found, found[:20]


FILED = (parts.Train, parts.Transfer, parts.Compare, parts.Paper)
SHORT = [value for value in TYPED if len(value) < 100 and "\udcff" not in value]
TURNS = 6
"""In the quick form each option gets every sixth value, and the next option the next ones."""


def filed_flaws(found: list[tuple[type[Options], str]], file: Path, turns: int) -> list[str]:
    """What is wrong with options from a file: refused in a sentence, or the same after they were written and read."""
    wrong = []
    for number, (model, name) in enumerate(found):
        needed = {one: "x" for one, what in options_of(model).items() if what.field.is_required()}
        needed |= {"mini": True} if model is parts.Paper else {}
        for value in SHORT[number % turns :: turns]:
            file.write_text(yaml.safe_dump({**needed, name: value}, allow_unicode=True))
            flaw = flaw_of(lambda model=model: read(model, {}, file)) or _back(model, file)
            wrong += [f"{model.__name__}.{name}: {value[:40]!r}: {flaw}"] if flaw else []
    return wrong


def test_every_option_in_a_file_and_back(tmp_path):
    found = filed_flaws(list(definitions(list(FILED))), tmp_path / FILE, TURNS)
    assert not found, found[:20]


@pytest.mark.slow
def test_every_option_of_every_file_and_back(tmp_path):
    found = filed_flaws([(model, name) for model in FILED for name in options_of(model)], tmp_path / FILE, 1)
    assert not found, found[:20]


def _back(model: type[Options], file: Path) -> str:
    """Whether options that were accepted are the same after they were written and read."""
    try:
        options = read(model, {}, file)
    except ConfigError:
        return ""
    file.write_text(as_yaml(options))
    content, problems = read_file(file, model)
    return "" if not problems and check(model, content) == options else f"comes back as {content}"


@pytest.mark.parametrize("name", list_methods())
def test_settings_of_methods(name):
    """Settings are checked by the method's own class, which is strict, too."""
    kind, wrong = get_method(name).Config, []
    for field in kind.model_fields:
        for value in (one for one in OBJECTS + TYPED if not isinstance(one, Path)):  # paths are refused when opened
            flaw = flaw_of(lambda field=field, value=value: kind(**{field: value}))
            wrong += [f"{field} = {_shown(value)}: {flaw}"] if flaw else []
    assert not wrong, wrong[:20]


class Careless(Options):
    """Options with the mistakes that the tests above look for."""

    model_config = ConfigDict(allow_inf_nan=True)
    rate: Annotated[float, Shown("RATE", "a number")] = 1.0
    """A number without limits."""
    count: Annotated[int, Field(ge=0), Shown("N", "a whole number")] = 1
    """A number that no tensor can hold."""
    place: Annotated[Path, Field(strict=False), Shown("FOLDER", "a folder")] = Path("x")
    """A path that may be empty."""


@pytest.mark.parametrize("name", ["rate", "count", "place"])
def test_a_careless_option_is_noticed(name):
    assert flaws(Careless, name)
