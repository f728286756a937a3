"""Every command's help and its commonest error, word for word; `pytest --snapshot-update` after a change on purpose."""

import pytest
import typer.main

from dear.cli import app
from helpers import make_photos


def commands(command, path=()):
    if children := getattr(command, "commands", None):
        for name, child in children.items():
            if child.hidden:
                continue
            yield from commands(child, (*path, name))
    yield path, command


COMMANDS = dict(commands(typer.main.get_command(app)))
VERBS = {" ".join(path) for path, command in COMMANDS.items() if not hasattr(command, "commands")}


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    """The same terminal everywhere."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help(dear_, snapshot, path):
    code, stdout, stderr = dear_(*path, "--help")
    assert (code, stderr) == (0, "")
    assert "\n".join(line.rstrip() for line in stdout.splitlines()) == snapshot


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_names_every_option_and_says_what_it_is_for(dear_, monkeypatch, path):
    monkeypatch.setenv("COLUMNS", "200")
    code, stdout, stderr = dear_(*path, "--help")
    assert (code, stderr) == (0, "")
    for parameter in COMMANDS[path].params:
        assert parameter.help, f"{path}: {parameter.name}"
        for name in parameter.opts if parameter.param_type_name == "option" else ():
            assert name in stdout


ERRORS = {
    "train": "photoz --out run",
    "eval": "run",
    "predict": "run photos",
    "explain": "photos/ant/0.png",
    "report": "run",
    "quickstart": "--out photos",
    "paper": "--out paper",
    "compare": "--data photos --out photos",
    "bench base-to-novel": "--data photos --out photos",
    "bench few-shot": "--data photos --out grid",
    "bench cross-dataset": "--source imagenet --out grid",
    "bench domain": "--out grid --seeds one",
    "doctor": "--all",
    "cache list": "photos",
    "cache clear": "--max-size much",
    "data list": "--roots photos",
    "data check": "dtd --data-root photos",
    "ls methods": "all",
    "ls backbones": "all",
    "ls settings": "deer",
    "search index": "photos/ant/empty --clip world --out index",
    "search find": "index photos/ant/0.png",
    "roles discover": "--clip world --images photoz --out roles",
    "roles show": "roles.json",
    "roles compare": "vit-b-16 world",
    "roles ablate": "--clip world --roles vit-b-16 --images photos",
    "world pretrain": "--out photos --steps 0",
    "world preview": "--what colour --out sheet.png",
    "world score": "--data world-texture",
}


def test_every_verb_has_its_error_here():
    assert set(ERRORS) == VERBS


@pytest.mark.parametrize("verb", ERRORS)
def test_commonest_error(dear_, snapshot, monkeypatch, tmp_path, verb):
    make_photos(tmp_path / "photos", ["ant", "bee"], 2)
    (tmp_path / "photos" / "ant" / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, stdout, stderr = dear_(*verb.split(), *ERRORS[verb].split())
    assert (code, stdout) == (2, "")
    assert "Traceback" not in stderr
    assert "\n".join(line.rstrip() for line in stderr.splitlines()) == snapshot
    assert sorted(tmp_path.rglob("*")) == before
