"""Names of options: one meaning each, former spellings with a note, help that shows values only where there are any."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from commands import LEAVES
from dear import cli, entry
from dear.cli import app

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.covers("F25")
def test_help_completion_and_alone(dear_):
    code, alone, err = dear_()
    assert (code, err) == (0, "")
    assert dear_("-h") == (0, alone, "")
    assert "--install-completion" in alone
    command = typer.main.get_command(app)
    env = {**os.environ, "_DEAR_COMPLETE": "complete_bash", "COMP_WORDS": "dear ls se", "COMP_CWORD": "2"}
    code = "from dear.entry import main; import sys; sys.argv = ['dear']; main()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["settings"]
    assert done.stderr == ""
    assert command.name == "dear"


@pytest.mark.covers("F12")
@pytest.mark.parametrize("path", [path for path in sorted(LEAVES) if not LEAVES[path].hidden], ids=" ".join)
def test_help_shows_values_only_where_there_are_any(dear_, monkeypatch, path):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    text = dear_(*path, "-h")[1]
    assert not re.search(r"<\w+>|\{[A-Za-z.]+\}", text.replace("{}", "")), text
    for parameter in LEAVES[path].params:
        if getattr(parameter, "is_flag", False):
            assert re.search(rf"{parameter.opts[0]}\s{{2,}}[A-Z]", text), parameter.opts
        elif parameter.param_type_name == "argument":
            assert re.search(rf"Usage: .*{re.escape(parameter.metavar)}", text)
            assert parameter.metavar.strip(".").isupper()


@pytest.mark.covers("F13")
def test_one_word_has_one_meaning():
    named: dict[str, set[str]] = {}
    for command in LEAVES.values():
        for one in command.params:
            for name in () if getattr(one, "hidden", False) else one.opts:
                named.setdefault(name, set()).add(one.metavar or "")
    assert named["--classes"] == {"NAME,NAME"}
    assert named["--half"] == {"all|base|novel"}
    assert not named.keys() & {"--batch", "--root", "--most-images", "--top", "--count", "--attribute", "--strategy"}
    assert {"--batch-size", "--top-k", "-k", "--max-images", "--data-root", "--threads"} <= named.keys()


DISCOVER = ["roles", "discover", "--clip", "world", "--images", "no", "--out", "x"]


@pytest.mark.covers("F13")
@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        (["train", "nowhere", "--out", "run", "--batch", "4"], "--batch", "--batch-size"),
        (["eval", "run", "--batch=4"], "--batch", "--batch-size"),
        (["search", "find", "index", "a star", "--attribute", "color"], "--attribute", "--by"),
        (["explain", "run", "image.png", "--strategy", "fusion"], "--strategy", "--readout"),
        (["predict", "run", "image.png", "--top", "2"], "--top", "--top-k"),
        (["data", "list", "nowhere", "--root", "."], "--root", "--data-root"),
        ([*DISCOVER, "--most-images", "9"], "--most-images", "--max-images"),
    ],
)
def test_former_spellings_work_with_a_hint(dear_, monkeypatch, tmp_path, words, old, new):
    monkeypatch.chdir(tmp_path)
    code, _, err = dear_(*words)
    assert code == 2
    note, sentence = err.strip().split("\n", 1)
    assert note == f"note: {old} is now called {new}."
    assert sentence.startswith("dear: ")  # it came as far as what is wrong with the rest
    assert "No such option" not in err


def test_class_names_are_no_former_spelling(dear_, tmp_path):
    assert "note" not in dear_("predict", tmp_path, "a.png", "--classes", "cat,dog")[2]
    assert "note" not in dear_("train", "--", "--batch")[2]


@pytest.mark.covers("F4")
def test_waiting_threads_leave_the_cores_to_others(monkeypatch):
    assert entry.waiting("linux") == {"GOMP_SPINCOUNT": "10000"}
    assert entry.waiting("darwin") == {"OMP_WAIT_POLICY": "PASSIVE"}
    monkeypatch.setattr(cli, "main", lambda words: None)
    monkeypatch.setattr(os, "environ", {})
    entry.main()
    assert os.environ == entry.waiting(sys.platform)
    for chosen in ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}):
        monkeypatch.setattr(os, "environ", dict(chosen))
        entry.main()
        assert os.environ == chosen
    heavy = {"torch", "open_clip", "rich", "typer"}
    assert not heavy & set(re.findall(r"^(?:import|from) (\w+)", inspect.getsource(entry), re.MULTILINE))


@pytest.mark.covers("F4")
def test_threads_can_be_told_wherever_is_computed():
    light = {
        ("data",),
        ("ls",),
        ("roles", "show"),
        ("roles", "compare"),
        ("world", "preview"),
        ("convert",),
        ("sync",),
        ("push",),
        ("doctor",),
        ("cache",),
        ("search", "export"),
    }
    for path, command in LEAVES.items():
        if path[:1] in light or path in light:
            continue
        assert any("--threads" in one.opts for one in command.params), path


@pytest.mark.covers("F20")
def test_settings_can_be_looked_up_and_recipes_changed(dear_):
    out = dear_("ls", "settings", "dear")[1]
    for name in ("mask", "threshold", "roles", "beta", "attributes"):
        assert re.search(rf"^{name} +\S+ +\S", out, re.MULTILINE)
    options = {name for one in LEAVES["train",].params for name in one.opts}
    assert {"--decay", "--warmup-epochs", "--config"} <= options
    _, _, err = dear_("bench", "few-shot", "--out", "nowhere", "--data", "world-blooms", "--set", "maskk=1")
    assert "Did you mean 'mask'" in err
