"""Every command's options and its commonest error, word for word; `pytest --snapshot-update` after a change on purpose.

The tables are read from the command objects, so they do not depend on how a version of typer or rich sets a page.
"""

import inspect
import re
import textwrap
from typing import Annotated

import pytest
import typer.main

from commands import ROOT_COMMAND, tree
from helpers import make_photos

COMMANDS = dict(tree(ROOT_COMMAND, hidden=False))
VERBS = {" ".join(path) for path, command in COMMANDS.items() if not hasattr(command, "commands")}


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    """The same terminal everywhere."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)


def visible(command):
    return [one for one in command.params if not getattr(one, "hidden", False)]


def row(parameter):
    """One parameter as help shows it: names, value, range, default, help, panel. Nothing depends on the typesetting."""
    is_option = parameter.param_type_name == "option"
    names = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else ""
    value = "" if getattr(parameter, "is_flag", False) else parameter.metavar or "VALUE"
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    limits = "" if low is high is None else f"{'' if low is None else low}..{'' if high is None else high}"
    default = "required" if parameter.required else parameter.default
    shown = "" if default in (None, False) or (not is_option and parameter.required) else f"[{default}]"
    panel = getattr(parameter, "rich_help_panel", None)
    words = [names, value, limits, shown, f"({panel})" if panel else ""]
    return f"{' '.join(word for word in words if word)}: {parameter.help}"


def name_of(parameter):
    """How the list of a command calls a parameter."""
    return parameter.opts[0] if parameter.param_type_name == "option" else parameter.get_usage_pieces(None)[0]


def test_commands(snapshot):
    """Every command: its help text, then its arguments and options in their order."""
    lines = []
    for path, command in COMMANDS.items():
        names = [*(name_of(one) for one in visible(command)), *getattr(command, "commands", ())]
        text = " ".join((command.help or "").split())
        lines += [
            f"{' '.join(('dear', *path))}: {text}",
            *(f"    {line}" for line in textwrap.wrap(" ".join(names), 100)),
        ]
    assert "\n".join(lines) == snapshot


def test_options(snapshot):
    """Every option once; where commands describe a name differently, each description says for which commands."""
    users = {}
    for path, command in COMMANDS.items():
        for one in visible(command):
            users.setdefault(name_of(one), {}).setdefault(row(one), []).append(" ".join(path) or "dear")
    lines = []
    for rows in map(users.get, sorted(users)):
        lines += [text if len(rows) == 1 else f"{text} <{', '.join(rows[text])}>" for text in sorted(rows)]
    assert "\n".join(lines) == snapshot


def test_a_changed_option_changes_its_row():
    """The table would notice another name, value, range, default, help text and panel."""

    def made(name="--shots", default=16, **how):
        app = typer.Typer()
        how = {"metavar": "N", "min": 1, "help": "Images.", **how}
        app.command()(lambda shots: None)
        parameter = inspect.Parameter("shots", inspect.Parameter.KEYWORD_ONLY, default=default)
        annotation = Annotated[int, typer.Option(name, **how)]
        app.registered_commands[0].callback.__signature__ = inspect.Signature(
            [parameter.replace(annotation=annotation)]
        )
        (option,) = (one for one in typer.main.get_command(app).params if one.name == "shots")
        return row(option)

    assert made() == "--shots N 1.. [16]: Images."
    others = [made("--shot"), made(default=8), made(metavar="K"), made(min=2), made(help="Photos.")]
    others += [made(rich_help_panel="Extending"), made(max=9), made(default=inspect.Parameter.empty)]
    assert len({made(), *others}) == 9


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_a_terminal(dear_, monkeypatch, path):
    """A real page at 80 columns: nothing is wider, and no name of an option is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    code, stdout, stderr = dear_(*path, "--help")
    assert (code, stderr) == (0, "")
    assert max(map(len, stdout.splitlines())) <= 80
    assert stdout.count("[") == stdout.count("]")
    for parameter in visible(COMMANDS[path]):
        if parameter.param_type_name == "option":
            assert re.search(rf"{parameter.opts[0]}(?![\w-])", stdout), parameter.opts


def test_every_option_says_what_it_is_for():
    for path, command in COMMANDS.items():
        for parameter in command.params:
            assert parameter.help, f"{path}: {parameter.name}"


ERRORS = {
    "train": "photoz --out run",
    "eval": "run",
    "calibrate": "run",
    "predict": "run photos",
    "explain": "photos/ant/0.png",
    "app": "run --no-browser",
    "report": "run",
    "quickstart": "--out photos",
    "paper": "--out paper",
    "compare": "--data photos --out photos",
    "bench base-to-novel": "--data photos --out photos",
    "bench few-shot": "--data photos --out grid",
    "bench cross-dataset": "--source imagenet --out grid",
    "bench domain": "--out grid --seeds one",
    "sync": "photos nowhere",
    "convert": "photos/ant/0.png converted",
    "export": "run",
    "push": "run me/pets",
    "cache list": "photos",
    "cache clear": "--max-size much",
    "data check": "dtd --data-root photos",
    "ls methods": "all",
    "ls settings": "deer",
    "search index": "photos/ant/empty --clip world --out index",
    "search find": "index photos/ant/0.png",
    "search build": "photos",
    "search export": "photos --out features.parquet",
    "roles discover": "--clip world --images photoz --out roles",
    "ls backbones": "ViT-B-61",
    "roles show": "roles.json",
    "roles compare": "vit-b-16 world",
    "roles ablate": "--clip world --roles vit-b-16 --images photos",
    "world pretrain": "--out photos --steps 0",
    "world preview": "--what colour --out sheet.png",
    "world score": "--data world-texture",
}


MISTYPED = {"doctor": "--all", "data list": "--roots photos"}
"""Commands that refuse nothing but a word they do not know."""


def test_every_verb_has_its_error_here():
    assert {*ERRORS, *MISTYPED} == VERBS


@pytest.mark.parametrize("verb", MISTYPED)
def test_an_unknown_word_is_named(dear_, verb):
    code, stdout, stderr = dear_(*verb.split(), *MISTYPED[verb].split())
    assert (code, stdout) == (2, "")
    assert MISTYPED[verb].split()[0] in stderr
    assert stderr.startswith(f"dear: 'dear {verb}' ")
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ERRORS)
def test_commonest_error(dear_, snapshot, monkeypatch, tmp_path, verb):
    make_photos(tmp_path / "photos", ["ant", "bee"], 2)
    (tmp_path / "photos" / "ant" / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, stdout, stderr = dear_(*verb.split(), *ERRORS[verb].split())
    assert (code, stdout) == (2, "")
    assert "Traceback" not in stderr
    assert stderr.strip() == snapshot
    assert sorted(tmp_path.rglob("*")) == before
