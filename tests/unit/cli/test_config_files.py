"""Config files: every shipped example loads, all errors come at once, and what a run writes repeats it."""

import inspect
import sys
from pathlib import Path

import pytest
import yaml

from dear.cli import config_files, main
from dear.cli.bench import _run as bench_run
from dear.cli.compare import compare
from dear.cli.config_files import FILE, options_of, read_config, write_config
from dear.cli.options import with_training
from dear.cli.paper import paper
from dear.cli.train import train
from dear.errors import ConfigError

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.yaml"))
COMMANDS = {"train": train, "bench": bench_run, "compare": compare, "paper": paper}


def options(command):
    signature = inspect.signature(with_training(COMMANDS[command]))
    return options_of(signature.parameters.values())


def test_there_is_an_example_of_every_kind():
    assert [path.stem for path in EXAMPLES] == [
        "bench-world",
        "compare-world",
        "paper-mini",
        "train-photos",
        "train-world",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads_and_survives_the_round_trip(path, tmp_path):
    known = options(path.stem.split("-")[0])
    values = read_config(path, known, "dear")
    assert values
    given = {one.name: values.get(one.name, one.default) for one in known.values()}
    write_config(tmp_path, known, given)
    assert read_config(tmp_path / FILE, known, "dear") == {
        name: value for name, value in values.items() if value != _default(known, name) or name in config_files.ALWAYS
    }


def _default(known, name):
    return next(one.default for one in known.values() if one.name == name)


def test_what_is_read_is_as_typed(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("data: [x, y]\nseeds: 3\nshots: [1, 2]\nset: {beta: [0.5, 0.9], mask: all_mixed}\nlr: 1e-3\n")
    assert read_config(path, options("bench"), "dear") == {
        "data": "x,y",
        "seeds": "3",
        "shots": "1,2",
        "setting": ["beta=0.5,0.9", "mask=all_mixed"],
        "lr": 0.001,
    }
    path.write_text("")
    assert read_config(path, options("bench"), "dear") == {}


def test_all_errors_at_once(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(
        "data: 5\nepochs: ten\nshot: 3\nhalf: bas\nbatch_size: 0\nset: [a]\nno_cache: 1\nresume: true\nlr: .nan\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_config(path, options("train"), "'dear train'")
    assert str(caught.value) == (
        f"{path} cannot be used. data is 5: give a text. epochs is 'ten': give a whole number from 1 on. "
        "'dear train' has no option 'shot' for a file. Did you mean 'shots'? "
        "half is 'bas': choose all, base or novel. Did you mean 'base'? "
        "batch_size is 0: give a whole number from 1 on. set is ['a']: give settings as 'name: value' below it. "
        "no_cache is 1: give true or false. 'dear train' has no option 'resume' for a file. "
        "lr is nan: give a number."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n- 2\n", "is not a config file: write one 'name: value' per line"),
        ("a: [1\n", "is not valid YAML at line"),
        ("shots: 1\nshots: 2\n", "'shots' stands there twice."),
        ("x: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
        ("a: \x00\n", "is not valid YAML"),
        ("? {a: 1}\n: 2\n", "is not valid YAML"),
    ],
)
def test_files_that_are_none(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(path, options("train"), "'dear train'")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.yaml", options("train"), "dear")


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["dear", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_the_command_line_overrides_the_file(monkeypatch, tmp_path, capsys):
    """And a file can hold what the command line otherwise has to name."""
    path = tmp_path / "run.yaml"
    path.write_text(f"data: world-none\nout: {tmp_path / 'out'}\nepochs: 3\n")
    assert run(monkeypatch, "train", "--config", path) == 2
    assert "There is no data set 'world-none'" in capsys.readouterr().err
    assert run(monkeypatch, "train", "world-other", "--config", path) == 2
    assert "There is no data set 'world-other'" in capsys.readouterr().err
    assert run(monkeypatch, "train", "world-blooms", "--config", path, "--half", "some") == 2
    assert "'some'" in capsys.readouterr().err


def test_a_run_writes_what_it_was_told_and_repeats_it(monkeypatch, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["world-textures", "--out", out, "--shots", 1, "--epochs", 1, "--half", "base", "--set", "beta=0.8"]
    assert run(monkeypatch, "train", *words, "--threads", 1) == 0
    text = (out / FILE).read_text()
    assert yaml.safe_load(text) == {
        "data": "world-textures",
        "out": str(out),
        "clip": "world",
        "method": "dear",
        "set": {"beta": 0.8},
        "shots": 1,
        "half": "base",
        "epochs": 1,
        "threads": 1,
    }
    assert run(monkeypatch, "train", "--config", out / FILE, "--out", tmp_path / "again") == 0
    same = [(folder / "adapter_model.safetensors").read_bytes() for folder in (out, tmp_path / "again")]
    assert same[0] == same[1]
    assert run(monkeypatch, "train", "--config", out / FILE, "--resume") == 0
    assert (out / FILE).read_text() == text
    capsys.readouterr()
