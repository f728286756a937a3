"""Files written by version 0.2: they load and give the same answers.

`v0_2` contains runs of three methods, an interrupted run, a grid, two search indexes and four photos, with what
version 0.2 printed about them. An index records the absolute path of its photos: each test sets it in its own copy.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import dear
from dear.data.images import open_image
from dear.data.open import open_dataset
from dear.engine import run as runs
from dear.engine.job import make_job
from dear.engine.settings import TrainSettings
from dear.evaluation.results import CellResult
from dear.roles.rolemap import RoleMap
from dear.storage import documents
from dear.world.datasets import World

V0_2 = Path(__file__).parent / "v0_2"
EXPECTED = json.loads((V0_2 / "expected.json").read_text())
RUNS = ("run", "coop", "tip")
CELLS = sorted((V0_2 / "grid" / "cells").glob("*.json"))
TEMPLATE = "a photo of a {}."

pytestmark = pytest.mark.xdist_group("pins")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A copy of all files as the working directory."""
    copy = Path(shutil.copytree(V0_2, tmp_path / "v0_2"))
    monkeypatch.chdir(copy)
    for path in copy.glob("*/index.json"):
        manifest = json.loads(path.read_text()) | {"folder": str(copy / "photos")}
        path.write_text(documents.to_json(documents.sealed(manifest)))
    return copy


@pytest.fixture
def small_test_split(monkeypatch) -> None:
    """Three images per class in the world's test split."""
    count = World.count
    monkeypatch.setattr(World, "count", lambda world, split: 3 if split == "test" else count(world, split))


@pytest.fixture(scope="module")
def clip() -> dear.FrozenClip:
    return dear.load_clip("world")


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def stored_lines(name: str) -> list[dict]:
    return lines((V0_2 / name).read_text())


def close(found: torch.Tensor, expected: list) -> bool:
    return torch.allclose(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, except the lock file."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".dear.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# Adapters.


@pytest.mark.parametrize("name", RUNS)
def test_an_adapter_gives_the_same_logits(clip, name):
    expected = EXPECTED["logits"][name]
    model = dear.load(V0_2 / name, clip)
    images = torch.stack([clip.preprocess_eval(open_image(V0_2 / "photos" / f"{i}.png")) for i in (0, 1)])
    other = model.for_classes(EXPECTED["other"], TEMPLATE)
    with torch.no_grad():
        out = model(images)
        found = {"own": out.logits, "other": other(images).logits}
        with model.disabled():
            found |= {"own_plain": model(images).logits, "other_plain": other(images).logits}
    if "own_decoupled" in expected:
        found["own_decoupled"] = out.readouts["decoupled"]
    found["weights"] = torch.stack(list(out.weights.values())) if out.weights else torch.zeros(0)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert close(found[key], value), key


def test_the_role_map_of_a_run_loads(clip):
    roles = RoleMap.load(V0_2 / "run" / "roles.json")
    assert len(roles.heads) == 32
    assert roles.to_json().encode() == (V0_2 / "run" / "roles.json").read_bytes()


# Runs, by command.


@pytest.mark.parametrize(("name", "stored"), [("run", ""), ("coop", "_coop"), ("tip", "_tip")])
def test_predict_gives_the_same_predictions(folder, dear_, name, stored):
    code, out, err = dear_("predict", name, "photos", "--json", "--top-k", 3)
    assert code in (0, None), err
    for found, expected in zip(lines(out), stored_lines(f"predictions{stored}.jsonl"), strict=True):
        assert (found["image"], found["label"]) == (expected["image"], expected["label"])
        assert [label for label, _ in found["top"]] == [label for label, _ in expected["top"]]
        assert [score for _, score in found["top"]] == pytest.approx([score for _, score in expected["top"]], abs=1e-5)


def test_eval_gives_the_same_numbers(folder, small_test_split, dear_):
    code, out, err = dear_("eval", "run", "--json", "--workers", 0)
    assert code in (0, None), err
    found, expected = json.loads(out), json.loads((V0_2 / "eval.json").read_text())
    assert found["adapted"] == expected["adapted"]
    assert found["plain"] == expected["plain"]
    numbers = [{key: value for key, value in one["verdict"].items() if key != "sentence"} for one in (found, expected)]
    assert numbers[0] == pytest.approx(numbers[1])


def test_report_reads_the_run(folder, small_test_split, dear_):
    code, _, err = dear_("report", "run", "--workers", 0)
    assert code in (0, None), err
    assert "<svg" in (folder / "run" / "report.html").read_text()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_recognised_by_its_config_file(folder, dear_, name):
    """`config.yaml` reads back as the same job; another job would be refused."""
    before = content(folder / name)
    code, _, err = dear_("train", "--config", f"{name}/config.yaml", "--resume")
    assert code in (0, None), err
    after = content(folder / name)
    for part in ("run.json", "shots.json"):
        assert after[part] == before[part], part
    written, again = (yaml.safe_load(one["config.yaml"]) for one in (before, after))
    assert again == written  # the order of the keys may differ


def test_an_interrupted_run_is_resumed_to_the_same_adapter(folder, clip):
    job = make_job(open_dataset("world-textures"), shots=2, seed=3, half="base", train=TrainSettings(epochs=2))
    model, progress = runs.run_job(job, clip, folder / "half_run", if_exists="resume", workers=0)
    expected = dear.load(V0_2 / "run", clip).state_dict()
    assert progress.step == 2
    for name, tensor in expected.items():
        assert torch.allclose(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6), name
    dear.load(folder / "half_run", clip)


# The grid.


@pytest.mark.parametrize("path", CELLS, ids=lambda path: path.stem)
def test_a_cell_loads(path):
    cell, stored = CellResult.from_json(path.read_text(), where=path.name), json.loads(path.read_text())
    for name in ("method", "data", "seed", "shots", "fingerprint"):
        assert getattr(cell, name) == stored[name]
    assert len(CELLS) == 2


def test_finished_cells_are_recognised_by_the_config_file(folder, dear_):
    """Their fingerprints are those of today: no cell is computed again, and the tables keep their numbers."""
    before = content(folder / "grid")
    assert yaml.safe_load((folder / "grid" / "config.yaml").read_text())["methods"] == ["zero_shot", "dear"]
    code, _, err = dear_("bench", "few-shot", "--config", "grid/config.yaml", "--resume")
    assert code in (0, None), err
    after = content(folder / "grid")
    for name in before.keys() - {"config.yaml", "table.md"}:  # notes in the table may be worded differently
        assert after[name] == before[name], name
    tables = [one["table.md"].decode().split("\n\n")[1] for one in (before, after)]
    assert tables[0] == tables[1]


# Search indexes.


MADE_BY = {"index": ("--run", "run"), "plain_index": ("--clip", "world", "--kinds", "color,shape")}


def update(dear_, index: str) -> None:
    code, _, err = dear_("search", "index", "photos", "--out", index, *MADE_BY[index])
    assert code in (0, None), err


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("hits_cls", ("index", "photos/0.png", "--by", "cls")),
        ("hits_color", ("index", "photos/0.png", "--by", "color")),
        ("hits_text", ("index", "a striped star")),
        ("hits_plain_color", ("plain_index", "photos/0.png", "--by", "color")),
    ],
)
@pytest.mark.parametrize("updated", [False, True])
def test_an_index_gives_the_same_hits(folder, dear_, stored, words, updated):
    """As it was written, and after an update that finds a new photo and one that finds it gone."""
    if updated:
        shutil.copy(V0_2 / "photos" / "0.png", folder / "photos" / "new.png")
        update(dear_, words[0])
        (folder / "photos" / "new.png").unlink()
        update(dear_, words[0])
    code, out, err = dear_("search", "find", *words, "--json")
    assert code in (0, None), err
    for found, expected in zip(lines(out), stored_lines(f"{stored}.jsonl"), strict=True):
        assert (Path(found["image"]).name, found["by"]) == (Path(expected["image"]).name, expected["by"])
        assert found["score"] == pytest.approx(expected["score"], abs=2e-3)
