"""Methods and data sets of others, without a fork: installed, imported from a file, or declared in a catalogue."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import dear
import dear.methods.registry as registry
from dear.data import catalog
from dear.data import open as datasets
from dear.errors import ConfigError, DataError
from dear.methods import plugins as extensions
from dear.methods.check import VALUES, functions, misfits
from helpers import make_photos
from needs import needs

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "examples" / "method-plugin"
FEW = ("--epochs", "1", "--no-cache", "--workers", "1")
pytestmark = pytest.mark.covers("F10")


@pytest.fixture
def fresh(monkeypatch, tmp_path, tiny_folders):
    """A process that knows nothing of others yet, in a folder with photos."""
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    monkeypatch.setattr(extensions, "_IMPORTED", {})
    monkeypatch.setattr(catalog, "_ADDED", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    make_photos(tmp_path / "photos", ["ant", "bee", "cow"], 4)
    (tmp_path / "my_method.py").write_text((PLUGIN / "dear_scaled_classes.py").read_text())
    monkeypatch.chdir(tmp_path)
    yield ("--clip", f"local-dir:{tiny_folders['shallow']}", "--pretrained", "random")
    sys.modules.pop("my_method", None)


def test_a_package_in_an_environment_of_its_own(tmp_path, tiny_folders):
    """Installed as a stranger would, into a folder of its own; libraries are borrowed from here."""
    needs("setuptools")
    place = tmp_path / "installed"
    how = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", place)
    copy = tmp_path / "copy"  # building leaves files beside the source
    copy.mkdir()
    for name in ("pyproject.toml", "dear_scaled_classes.py"):
        (copy / name).write_text((PLUGIN / name).read_text())
    make_photos(tmp_path / "photos", ["ant", "bee", "cow"], 4)
    paths = os.pathsep.join(map(str, (place, Path(dear.__file__).parents[1], sysconfig.get_path("purelib"))))
    outside = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}

    def run(*words):
        done = subprocess.run(
            [*map(str, words)], capture_output=True, text=True, cwd=tmp_path, env=outside, check=False
        )
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout

    run(sys.executable, "-m", "pip", "install", *how, copy)
    clip = ("--clip", f"local-dir:{tiny_folders['shallow']}", "--pretrained", "random")
    script = f"""
import sys
from dear.cli import main
def dear(*words):
    sys.argv = ["dear", *words]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, words
dear("ls", "settings", "scaled_classes")
dear("train", "photos", *{clip}, "--method", "scaled_classes", "--set", "rank=2", "--shots", "2", "--out", "run",
     *{FEW})
dear("eval", "run")
dear("predict", "run", "photos/ant/0.png")
import dear as library
model = library.load("run")
assert model.name == "scaled_classes" and model.config.rank == 2, model
assert model.method.__class__.__module__ == "dear_scaled_classes"
dear("bench", "few-shot", *{clip}, "--data", "photos", "--methods", "zero_shot,scaled_classes", "--shots", "1",
     "--seeds", "1", "--out", "grid", *{FEW})
"""
    out = run(sys.executable, "-c", script)
    assert "Rank of the change to the class features." in out
    assert len(list((tmp_path / "grid" / "cells").glob("scaled_classes-*.json"))) == 1


def test_a_file_is_imported_for_every_command_and_every_process(fresh, dear_, tmp_path):
    code, _, err = dear_("train", "photos", *fresh, "--method", "scaled_classes", "--out", "run", *FEW)
    assert code == 2
    assert "No method is called 'scaled_classes'" in err
    assert "--import FILE.py" in err
    mine = ("--import", "my_method.py")
    assert (
        dear_("train", "photos", *fresh, *mine, "--method", "scaled_classes", "--shots", 2, "--out", "run", *FEW)[0]
        == 0
    )
    assert "import" not in (tmp_path / "run" / "config.yaml").read_text()  # no config file executes code
    assert dear_("eval", "run", *mine)[0] == 0
    assert dear_("predict", "run", "photos/ant", *mine)[0] == 0
    assert "scaled_classes" in dear_("ls", "methods", *mine)[1]
    words = (
        "bench",
        "few-shot",
        *fresh,
        "--data",
        "photos",
        "--methods",
        "scaled_classes",
        "--shots",
        1,
        "--seeds",
        "1,2",
    )
    code, _, err = dear_(*words, *mine, "--jobs", 2, "--out", "grid", *FEW)
    assert code == 0, err
    assert len(list((tmp_path / "grid" / "cells").iterdir())) == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import dear\n\n1 / 0\n", r"cannot be imported: ZeroDivisionError in line 3: division by zero"),
        ("def f(:\n", r"cannot be imported: SyntaxError"),
        ("import dear\n", r"defines no method: write a subclass of dear\.Method with a 'name' in it"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_sentence(fresh, dear_, tmp_path, text, sentence):
    (tmp_path / "broken.py").write_text(text)
    code, out, err = dear_("ls", "methods", "--import", "broken.py")
    sys.modules.pop("broken", None)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(sentence, err)
    assert "give a Python file" in dear_("ls", "methods", "--import", "none.py")[2]


def test_everything_wrong_with_a_class_is_listed(fresh):
    class Wrong(dear.Method):
        Config = dict
        recipe = "sgd"
        needs = None
        readouts = {"novel": "logits"}  # noqa: RUF012
        sized_by_data = ["weight"]  # noqa: RUF012

        def __init__(self, clip):
            super().__init__(clip, None)

        def forward(self, images):
            return images

        def loss(self):
            return {}

    with pytest.raises(ConfigError) as error:
        dear.register(Wrong)
    told = str(error.value)
    assert told.startswith("Wrong cannot be registered as a method: ")
    for member in ("name", "Config", "recipe", "needs", "readouts", "sized_by_data", "__init__", "forward", "loss"):
        assert f"'{member}" in told, member
    assert "'forward' cannot be called as forward(self, clip, image, text, batch=None)" in told

    class Duck:
        name = "duck"

    with pytest.raises(
        ConfigError, match=r"Duck cannot .* not a subclass of dear\.Method; it lacks Config, .* forward, loss"
    ):
        dear.register(Duck)

    class Needy(dear.Method):
        name = "needy"
        Config = type("C", (dear.DearConfig,), {"__annotations__": {"must": int}})

    with pytest.raises(ConfigError, match="has settings without a default"):
        dear.register(Needy)


def test_our_own_methods_pass_the_same_check():
    for name in registry.OWN:
        assert misfits(dear.get_method(name)) == [], name


def test_the_check_knows_every_member_of_a_method():
    members = {name for name in vars(dear.Method) if not name.startswith("_")}
    others = {"overrides", "trained", "needs_whole_batch"}  # not meant to be overridden
    assert members - others == {*VALUES, *functions(), "name", "Config", "readouts"} - {"__init__"}
    assert {"readings", "encode_text", "prepare", "before_update", "__init__"} <= functions().keys()


def test_data_sets_of_a_catalogue(fresh, dear_, tmp_path):
    make_photos(tmp_path / "mine" / "pictures", ["n01", "n02"], 4)
    rows = [{"name": "pets", "folder": "pictures", "layout": "class folders", "rename": {"n01": "cat", "n02": "dog"}}]
    (tmp_path / "mine" / "my.json").write_text(json.dumps(rows))
    mine = ("--catalog", "mine/my.json")
    assert "See 'dear data list'" in dear_("data", "check", "pets")[2]
    assert "pets" in dear_("data", "list", *mine)[1]
    assert "pets is in order: 2 classes, 8 train" in dear_("data", "check", "pets", *mine)[1]
    code, _, err = dear_("train", "pets", *fresh, *mine, "--method", "zero_shot", "--shots", 2, "--out", "run", *FEW)
    assert code == 0, err
    assert dear.load("run").classes.names == ("cat", "dog")
    assert dear_("eval", "run", *mine)[0] == 0


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("{", "is not a catalogue of data sets: it is not valid JSON"),
        ("{}", "it must be a list of objects"),
        ('[{"name": "x"}]', "Entry 1 .* folder: Field required. layout: Field required."),
        ('[{"name": "x", "folder": "a", "layout": "heap"}]', "layout is 'heap': input should be 'split file'"),
        ('[{"name": "x", "folder": "../a", "layout": "list"}]', "it must be below the data folder"),
        ('[{"name": "imagenet", "folder": "a", "layout": "list"}]', "The data set name 'imagenet' .* is taken"),
    ],
)
def test_a_catalogue_that_cannot_be_used_is_one_sentence(fresh, tmp_path, rows, sentence):
    (tmp_path / "my.json").write_text(rows)
    with pytest.raises(DataError, match=sentence):
        catalog.add_catalog(tmp_path / "my.json")


def test_data_sets_of_other_packages(fresh, tmp_path, monkeypatch):
    pets = "def pets(root):\n    return dear.open_dataset(root or 'photos')\n"
    (tmp_path / "others_data.py").write_text(f"import dear\n\n{pets}\ndef wrong(root):\n    return 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint(name, f"others_data:{name}", datasets.GROUP) for name in ("pets", "wrong", "gone")]
    monkeypatch.setattr(
        datasets, "entry_points", lambda group, name=None: [p for p in points if name in (None, p.name)]
    )
    found = dear.open_dataset("pets", template="a {}.")
    assert (found.name, found.source, found.template, found.class_names) == (
        "pets",
        "pets",
        "a {}.",
        ("ant", "bee", "cow"),
    )
    with pytest.raises(DataError, match=r"others_data:wrong must return a dear\.data\.dataset\.Dataset"):
        dear.open_dataset("wrong")
    with pytest.raises(DataError, match="The data set 'gone' cannot be opened by others_data:gone"):
        dear.open_dataset("gone")


def test_data_sets_of_other_packages_are_listed(fresh, dear_, tmp_path, monkeypatch):
    """The page of such a data set was "No data set is called 'pets'. Did you mean 'pets'?", and the list lacked it."""
    installed = tmp_path / "pets_data-1.2.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: pets-data\nVersion: 1.2\n")
    (installed / "entry_points.txt").write_text("[dear.datasets]\npets = pets_data:pets\ndtd = pets_data:pets\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = dear_("data", "list", "pets")
    assert (code, err) == (0, "")
    assert "pets" in out
    assert "from an installed package, pets-data 1.2" in out
    assert "pets_data:pets" in out
    assert "DTD: 47 classes" in dear_("data", "list", "dtd")[1]
    lines = dear_("data", "list")[1].splitlines()
    assert "pets  ?  ? classes  from an installed package, pets-data 1.2" in [
        "  ".join(re.split(r"\s{2,}", line)) for line in lines
    ]
    assert sum(line.startswith("dtd ") for line in lines) == 1
    assert {one.name: one.present for one in dear.list_datasets()}["pets"] is None
