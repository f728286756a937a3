"""Options are defined once: command line, config file and Python accept the same, refuse the same, and say why."""

import sys
from pathlib import Path

import pytest
import yaml

import dear
from dear.cli import main
from dear.errors import ConfigError
from dear.options import write_keywords
from dear.options.parts import Bench, Compare, FewShot, Fit, Paper, Train, Training, Transfer
from dear.options.reading import FILE, as_yaml, check, options_of, read, write_config

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
V0_2 = sorted((ROOT / "tests" / "golden" / "v0_2").rglob(FILE))
CLASSES = {"train": Train, "bench": Bench, "compare": Compare, "paper": Paper}


def test_there_is_an_example_of_every_kind():
    names = ["bench-world", "compare-world", "paper-mini", "train-photos", "train-world"]
    assert [path.stem for path in EXAMPLES] == names


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads_and_survives_the_round_trip(path, tmp_path):
    model = CLASSES[path.stem.split("-")[0]]
    options = read(model, {}, path)
    write_config(tmp_path, options)
    assert read(model, {}, tmp_path / FILE) == options


@pytest.mark.parametrize("path", V0_2, ids=lambda path: path.parent.name)
def test_config_files_of_version_0_2_are_read(path):
    model = FewShot if "methods" in yaml.safe_load(path.read_text()) else Train
    options = read(model, {}, path)
    before, now = yaml.safe_load(path.read_text()), yaml.safe_load(as_yaml(options))
    assert {name: str(now[name]) for name in before} == {name: str(value) for name, value in before.items()}


def test_version_0_2_left_config_files():
    assert V0_2


def test_files_and_typed_words_mean_the_same(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "out: x\ndata: [x, y]\nseeds: 3\nshots: [1, 2]\nset: {beta: [0.5, 0.9], mask: all_mixed}\nlr: 1e-3\n"
    )
    typed = {"out": "x", "data": "x,y", "seeds": "3", "shots": "1,2", "lr": "1e-3"}
    typed["set"] = ["beta=0.5,0.9", "mask=all_mixed"]
    assert read(Bench, {}, path) == read(Bench, typed)
    assert read(Bench, typed).set == {"beta": (0.5, 0.9), "mask": ("all_mixed",)}


def test_all_problems_of_a_file_at_once(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(
        "data: 5\nepochs: ten\nshot: 3\nhalf: bas\nbatch_size: 0\nset: [a]\nno_cache: 1\nresume: true\nlr: .nan\n"
        "seed: 1\nseed: 2\n"
    )
    with pytest.raises(ConfigError) as caught:
        read(Train, {"out": "x"}, path)
    assert str(caught.value) == (
        f"'seed' appears twice in {path}. 'resume' says what to do now, so a file cannot contain it. "
        f"'data' in {path} is 5: give a folder, a list or a data set's name. "
        f"'set' in {path} is ['a']: give NAME=VALUE once per name, as in beta=0.8. "
        f"'half' in {path} is 'bas': give all, base or novel. Did you mean 'base'? "
        f"'epochs' in {path} is 'ten': give a whole number from 1 to 100000. "
        f"'batch_size' in {path} is 0: give a whole number from 1 on. "
        f"'lr' in {path} is nan: give a number above 0. "
        f"'no_cache' in {path} is 1: give true or false. "
        f"There is no option 'shot' in {path}. Did you mean 'shots'?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n- 2\n", "is not a config file: write one 'name: value' per line"),
        ("a: [1\n", "is not valid YAML at line"),
        ("shots: 1\nshots: 2\n", "'shots' appears twice in"),
        ("x: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
        ("a: \x00\n", "is not valid YAML"),
        ("? {a: 1}\n: 2\n", "is not valid YAML"),
    ],
)
def test_files_that_cannot_be_read_as_options(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(Train, {"data": "d", "out": "o"}, path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read(Train, {}, tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": 900}, "workers is 900: give a whole number from 0 to 256."),
        ({"threads": 0}, "threads is 0: give a whole number from 1 to 1024."),
        ({"cached_views": 10_001}, "cached_views is 10001: give a whole number from 0 to 10000."),
        ({"lr": 0.0}, "lr is 0.0: give a number above 0."),
        ({"shots": True}, "shots is True: give a whole number from 1 on."),
        ({"resume": True, "overwrite": True}, "resume=True continues and overwrite=True starts over"),
        ({"cache": "x", "no_cache": True}, "cache='x' names a folder and no_cache=True wants none"),
    ],
)
def test_limits_hold_in_python(values, message):
    with pytest.raises(ConfigError) as caught:
        check(Fit, {"data": "photos", **values})
    assert str(caught.value).startswith(message)


@pytest.mark.covers("N12")
def test_fit_refuses_unknown_keywords_before_anything_is_opened():
    with pytest.raises(ConfigError, match=r"no option or setting 'shot' of dear\. Did you mean 'shots'"):
        dear.fit("no such folder", shot=3)
    with pytest.raises(ConfigError, match=r"no option or setting 'betta' of dear\. Did you mean 'beta'"):
        dear.fit("no such folder", betta=0.9)
    with pytest.raises(ConfigError, match="no option or setting 'beta' of coop"):
        dear.fit("no such folder", method="coop", set={"beta": 0.9})


def test_bench_and_compare_take_the_same_options():
    assert options_of(Compare).keys() - options_of(Bench).keys() == {"protocol"}
    assert options_of(Bench).keys() <= options_of(Compare).keys()


@pytest.mark.parametrize("model", [Train, Bench, FewShot, Transfer, Compare, Paper])
def test_every_option_says_what_it_is(model):
    for option in options_of(model).values():
        assert option.text.endswith("."), option.name
        assert option.metavar or option.kind is bool, option.name
        assert option.panel, option.name


def test_the_types_for_editors_are_those_of_the_classes():
    """`make options` writes the file."""
    assert _without_spaces(write_keywords.TARGET.read_text()) == _without_spaces(write_keywords.source())


def _without_spaces(text):
    return "".join(text.split())


def test_a_fingerprint_sees_the_training_and_nothing_of_the_machine():
    options = Fit(data="d", epochs=3, workers=7, threads=1, shots=2, precision="fp32")
    training = options.part(Training)
    assert training.changes() == {"epochs": 3, "steps_per_shot": None}
    assert training.machine() == {"micro_batch": None, "class_chunk": None, "precision": "fp32"}
    assert set(type(training).model_fields).isdisjoint({"workers", "threads", "device", "cache"})


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["dear", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_the_command_line_overrides_the_file(monkeypatch, tmp_path, capsys):
    """And a file can contain what the command line otherwise has to name."""
    path = tmp_path / "run.yaml"
    path.write_text(f"data: world-none\nout: {tmp_path / 'out'}\nepochs: 3\n")
    assert run(monkeypatch, "train", "--config", path) == 2
    assert "There is no data set 'world-none'" in capsys.readouterr().err
    assert run(monkeypatch, "train", "world-other", "--config", path) == 2
    assert "There is no data set 'world-other'" in capsys.readouterr().err
    assert run(monkeypatch, "train", "world-blooms", "--config", path, "--half", "some") == 2
    assert "--half is 'some': give all, base or novel." in capsys.readouterr().err


def test_a_run_writes_its_options_and_repeats_them(monkeypatch, tmp_path, capsys):
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


def test_fit_writes_its_options_if_a_file_can_contain_them(tmp_path, monkeypatch, capsys):
    few = {"shots": 1, "half": "base", "epochs": 1, "threads": 1, "workers": 0}
    dear.fit("world-textures", out=tmp_path / "run", beta=0.8, **few)
    assert yaml.safe_load((tmp_path / "run" / FILE).read_text())["set"] == {"beta": 0.8}
    assert run(monkeypatch, "train", "--config", tmp_path / "run" / FILE, "--resume") == 0
    dear.fit("world-textures", dear.load_clip("world"), out=tmp_path / "object", **few)
    assert not (tmp_path / "object" / FILE).exists()
    capsys.readouterr()
