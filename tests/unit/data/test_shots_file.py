"""Training images from a file: a run's shots.json, or a sample of CoOp, which is read without running its code."""

import json
import os
import pickle  # noqa: TID251 CoOp's files are pickled; the package reads them without it
import pickletools
import struct
import sys
from types import ModuleType

import pytest

import dear
from dear.data.coop_shots import CoopShot, read_coop_shots
from dear.data.dataset import Item
from dear.data.open import open_dataset
from dear.data.shots_file import listed_shots, read_shot_list
from dear.data.splits import few_shot, shots_to_json
from dear.engine.job import make_job
from dear.errors import DataError
from dear.evaluation.cells import make_cells
from dear.evaluation.grid import run_grid
from dear.evaluation.test_data import data_of_run
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import page
from helpers import make_photos
from small_runs import small_grid

CLASSES = ["ant", "bee", "cow", "dog"]
MODULE = "dassl.data.datasets.base_dataset"

pytestmark = pytest.mark.covers("T13")


class Datum:
    """As in Dassl, where a data set's images are instances of it."""

    def __init__(self, impath="", label=0, domain=0, classname=""):
        self._impath, self._label, self._domain, self._classname = impath, label, domain, classname


@pytest.fixture(autouse=True)
def dassl(monkeypatch):
    """Dassl's module, while a test writes files."""
    module = ModuleType(MODULE)
    module.Datum = Datum
    monkeypatch.setattr(Datum, "__module__", MODULE)
    for end in range(1, 5):
        monkeypatch.setitem(sys.modules, ".".join(MODULE.split(".")[:end]), module)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("data") / "photos", CLASSES, 6)


def coop_file(path, items, names=CLASSES, protocol=5, root="/home/someone/data/photos"):
    """A sample as CoOp's data sets save it; one train and one val list."""
    train = [Datum(f"{root}/{item.id}", item.label, 0, names[item.label]) for item in items]
    path.write_bytes(pickle.dumps({"train": train, "val": train[:2]}, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_sample_of_coop_is_read(photos, tmp_path, protocol):
    data = open_dataset(photos)
    items = few_shot(data.train, 2, 7)
    path = coop_file(tmp_path / "shot_2-seed_7.pkl", items, protocol=protocol)
    found = read_coop_shots(path.read_bytes(), where="it")
    assert found[0] == CoopShot(f"/home/someone/data/photos/{items[0].id}", 0, "ant")
    assert len(found) == 8
    assert listed_shots(data, path, shots=2) == items
    windows = coop_file(tmp_path / "shot_2-seed_8.pkl", items, root=r"D:\data\photos".replace("/", "\\"))
    assert listed_shots(data, windows, shots=2) == items


class Runs:
    """What a stranger would like to have run."""

    def __init__(self, call, *arguments):
        self.what = call, arguments

    def __reduce__(self):
        return self.what


HARMLESS = Runs(exec, "import sys; sys.ran = True")


def hostile():
    """Files that are no samples: code, other classes, odd instructions, wrong sizes, endless ones."""
    good = pickle.dumps({"train": [Datum("a/1.jpg", 0, 0, "ant")], "val": []})
    other = pickle.dumps({"train": [dict], "val": []})
    system = Runs(os.system, "touch /tmp/dear-was-here")
    yield "code", pickle.dumps({"train": [HARMLESS]}), "it names 'builtins', 'exec'"
    yield "command", pickle.dumps({"train": [system]}), "it names 'posix', 'system'"
    yield "command in old words", pickle.dumps({"train": [system]}, protocol=0), "instruction"
    yield "class", other, "it names 'builtins', 'dict'"
    yield "reduce", b"\x80\x02cdassl.x\nDatum\n(tR.", "instruction TUPLE"
    yield "inst", b"(S'touch x'\nios\nsystem\n.", "instruction STRING"
    yield "extension", b"\x80\x02\x82\x01.", "instruction EXT1"
    yield "persistent", b"Pevil\n.", "instruction PERSID"
    yield "float", b"\x80\x02G" + b"\0" * 8 + b".", "instruction BINFLOAT"
    yield "long text", b"\x80\x04X\xff\xff\xff\xff" + b"a" * 9, "is damaged"
    yield "longer text", b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"a", "is damaged"
    yield "no end", good[:-1], "is damaged"
    yield "half", good[: len(good) // 2], "is damaged"
    yield "empty", b"", "is damaged"
    yield "text", b"hello, world", "is damaged|instruction"
    yield "not a dictionary", pickle.dumps([1]), "is damaged"
    yield "no list", pickle.dumps({"train": 3}), "is damaged"
    yield "no images", pickle.dumps({"train": ["a/1.jpg"]}), "is damaged"
    yield "no train", pickle.dumps({"test": []}), "is damaged"
    yield "text as label", pickle.dumps({"train": [Datum("a", "0", 0, "b")]}), "is damaged"
    yield "empty stack", b"\x80\x04a.", "is damaged"
    yield "no mark", b"\x80\x04]e.", "is damaged"
    yield "no memo", b"\x80\x04h\x05.", "is damaged"
    yield "odd items", b"\x80\x04}(X\x01\0\0\0au.", "is damaged"
    yield "list as key", b"\x80\x04}(]K\x01u.", "is damaged"
    yield "build on a dictionary", b"\x80\x04}}b.", "is damaged"
    yield "endless", b"\x80\x04]" + b"\x94" * 1_000_001 + b".", "more than 1,000,000 instructions"
    many = b"".join(b"K\x01" if i % 2 else b"X\x02\0\0\0" + f"{i:02}".encode() for i in range(40))
    yield "many attributes", b"\x80\x04cdassl\nDatum\n)\x81}(" + many + b"ub.", "is damaged"
    nested = b"\x80\x04" + b"]" * 100_000 + b"]" + b"a" * 100_000 + b"\x94\x93."
    yield "deep", nested, "is damaged"


def test_hostile_files_run_nothing_and_are_one_sentence():
    for name, content, message in hostile():
        with pytest.raises(DataError, match=message) as caught:
            read_coop_shots(content, where="shots.pkl")
        assert "\n" not in str(caught.value), name
        assert not hasattr(sys, "ran"), name
    pickle.loads(pickle.dumps(HARMLESS))  # noqa: S301 Python's own reader does run it
    assert sys.ran
    del sys.ran


def test_every_truncation_and_many_mutations_are_one_sentence():
    good = pickle.dumps({"train": [Datum("a/1.jpg", 0, 0, "ant"), Datum("b/1.jpg", 300, 0, "bee")], "val": []})
    assert len(read_coop_shots(good, where="it")) == 2
    assert sum(1 for _ in pickletools.genops(good)) > 20
    for end in range(len(good)):
        with pytest.raises(DataError):
            read_coop_shots(good[:end], where="it")
    for place in range(len(good)):
        for value in (0, 0x28, 0x52, 0x63, 0x81, 0xFF):
            try:
                found = read_coop_shots(good[:place] + bytes([value]) + good[place + 1 :], where="it")
            except DataError:
                continue
            assert all(type(one) is CoopShot for one in found)


def test_images_are_found_by_the_end_of_their_path(photos, tmp_path):
    """The shots of a folder, in a list of the same photos that lies elsewhere."""
    data = open_dataset(photos)
    items = few_shot(data.train, 2, 1)
    (tmp_path / "shots.json").write_text(shots_to_json(data, items, shots=2, seed=1))
    rows = [f"photos/{item.id},{data.class_names[item.label]}" for item in data.train]
    (photos.parent / "list.csv").write_text("\n".join(["path,label", *rows]))
    listed = open_dataset(photos.parent / "list.csv")
    assert {item.id for item in few_shot(listed.train, 2, 1)} != {f"photos/{item.id}" for item in items}
    found = listed_shots(listed, tmp_path / "shots.json", shots=2)
    assert found == tuple(Item(f"photos/{item.id}", item.label) for item in items)


def test_what_does_not_fit_is_one_sentence(photos, tmp_path):
    data = open_dataset(photos)
    items = few_shot(data.train, 2, 1)
    stored = tmp_path / "shots.json"

    def refused(file, shots=2, **more):
        with pytest.raises(DataError) as caught:
            listed_shots(data, file, shots=shots, **more)
        return str(caught.value)

    path = coop_file(tmp_path / "shot_2-seed_1.pkl", items)
    assert refused(path, shots=16) == f"{path} was sampled with 2 shots: add shots=2."
    assert "shots_of_mine.pkl was sampled with 2 shots" in refused(path.rename(tmp_path / "shots_of_mine.pkl"), 3)
    other = coop_file(tmp_path / "shot_2-seed_2.pkl", [*items, Item("eel/1.jpg", 3)])
    assert "lists 1 image(s) that are not training images of photos, such as /home/someone" in refused(other)
    swapped = coop_file(tmp_path / "shot_2-seed_3.pkl", items, names=CLASSES[::-1])
    assert listed_shots(data, swapped, shots=2) == items  # labels are equal, names may have been replaced
    moved = coop_file(tmp_path / "shot_2-seed_4.pkl", [Item(item.id, (item.label + 1) % 4) for item in items])
    assert "as 'bee', but in photos it is of class 'ant'" in refused(moved)
    stored.write_text(shots_to_json(data, items[:4], shots=2, seed=1))
    assert "lists no image of 2 class(es) of photos, such as 'cow'" in refused(stored)
    assert listed_shots(data, stored, shots=2, half="base") == items[:4]
    content = json.loads(stored.read_text())
    stored.write_text(json.dumps({**content, "seed": 3}))
    assert "was changed since it was written" in refused(stored)
    assert "cannot be read (No such file or directory)" in refused(tmp_path / "none.json")
    assert "lists no images" in refused(coop_file(tmp_path / "shot_2-seed_5.pkl", []))
    changed = open_dataset(make_photos(tmp_path / "photos", CLASSES, 6, seed=9))
    stored.write_text(shots_to_json(data, items, shots=2, seed=1))
    with pytest.raises(DataError, match=r"ant/\d.png is not the image that .*shots.json lists: its content differs"):
        listed_shots(changed, stored, shots=2)


def test_a_file_of_the_sample_gives_the_same_run(photos, clip, tmp_path, tiny_folders):
    """The same items are the same run, by fingerprint; other items are another, tested on all other images."""
    call = {"clip": clip, "method": "tip_adapter", "shots": 2, "workers": 1}
    dear.fit(photos, out=tmp_path / "sampled", **call)
    dear.fit(photos, out=tmp_path / "listed", shots_file=tmp_path / "sampled" / "shots.json", seed=1, **call)
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("sampled", "listed")]
    assert records[0]["fingerprint"] == records[1]["fingerprint"]
    assert read_shot_list(tmp_path / "listed" / "shots.json") == read_shot_list(tmp_path / "sampled" / "shots.json")

    data = open_dataset(photos)
    items = few_shot(data.train, 2, 99)
    file = coop_file(tmp_path / "shot_2-seed_1.pkl", items)
    dear.fit(photos, out=tmp_path / "half", shots_file=file, half="base", **call)
    trained = {item.id for item in items}
    assert {item.id for item in data_of_run(tmp_path / "half").items()} == {one.id for one in data.train} - trained


def test_a_grid_fills_in_the_places(photos, tmp_path, tiny_folders):
    data = open_dataset(photos)
    (tmp_path / "photos").mkdir()
    for seed in (1, 2):
        coop_file(tmp_path / "photos" / f"shot_2-seed_{seed}.pkl", few_shot(data.train, 2, seed + 50))
    file = tmp_path / "{data}" / "shot_{shots}-seed_{seed}.pkl"
    grid = small_grid(tmp_path / "grid", tiny_folders, workers=1, shots_file=file)

    def cells(*seeds):
        return make_cells("base-to-novel", [str(photos)], methods=["tip_adapter"], seeds=seeds, shots=[2])

    results = run_grid(cells(1, 2), grid)
    assert [one.images for one in results] == [16, 16]
    note = "Training images from shot_{shots}-seed_{seed}.pkl."
    assert (tmp_path / "grid" / "table.md").read_text().count(f"- {note}\n") == 1
    assert note in page(make_comparison(results, {}))
    for seed in (1, 2):
        (run,) = (tmp_path / "grid" / "runs").glob(f"*seed{seed}*")
        listed = few_shot(data.train, 2, seed + 50)
        job = make_job(data, shots=2, seed=seed, half="base", method="tip_adapter", listed=listed)
        assert {one.path for one in read_shot_list(run / "shots.json").images} == {item.id for item in job.items}
        assert {item.id for item in data_of_run(run).items()} == {one.id for one in data.train} - {i.id for i in listed}
    with pytest.raises(DataError, match=r"The list of shots .*shot_2-seed_3.pkl cannot be read"):
        run_grid(cells(1, 3), grid.model_copy(update={"out": tmp_path / "other"}))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("file", "changed", "expected"),
    [
        ("shots.json", {"seeds": (1, 2)}, "2 seeds: put {seed} into its name, or give one seed."),
        ("{seed}.json", {"shots": (1, 2)}, "2 numbers of shots: put {shots} into its name, or give one number of"),
        ("{seed}.json", {"data": ("photos", "other")}, "2 data sets: put {data} into its name, or give one data set."),
    ],
)
def test_one_sample_does_not_count_as_several(file, changed, expected, tmp_path, tiny_folders):
    """A table would count the same training images as independent samples."""
    grid = small_grid(tmp_path / "grid", tiny_folders, workers=1, shots_file=tmp_path / file)
    asked = {"data": ("photos",), "seeds": (1,), "shots": (2,)} | changed
    cells = make_cells("base-to-novel", asked.pop("data"), methods=["tip_adapter"], **asked)
    with pytest.raises(DataError) as caught:
        run_grid(cells, grid)
    assert f"{file}' is one sample, but there are {expected}" in str(caught.value)
    assert not (tmp_path / "grid").exists()
