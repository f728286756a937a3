"""Numbers and files of format 1, made at commit 929d2f9 with the versions beside them: they stay the same and readable.

The golden curve was made on two processors, whose kernels differ in the last bits. It is compared bit for bit under
those versions on those processors, and to 1e-4 elsewhere.
"""

import json
import platform
import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import dear
from dear.cli import main
from dear.data.images import open_image
from dear.data.open import open_dataset
from dear.engine import run as runs
from dear.engine.loop import TrainSettings
from dear.evaluation.results import CellResult
from dear.retrieval.index import read_index
from dear.retrieval.search import nearest
from dear.storage.files import sha256
from dear.workflows.train import make_job
from dear.world.datasets import World

HERE = Path(__file__).parent
FORMAT_1 = HERE / "format1"
CURVES = [json.loads(path.read_text()) for path in sorted(HERE.glob("loss_curve*.json"))]
CURVE = CURVES[0]
EXPECTED = json.loads((FORMAT_1 / "expected.json").read_text())
CELLS = sorted((FORMAT_1 / "cells").glob("*.json"))
STEPS = 20
WEIGHTS = ("weight_cls", "weight_color", "weight_shape", "weight_texture", "weight_object", "weight_location")
RENAMED = {f"alpha_{place}": name for place, name in enumerate(WEIGHTS)}
"""Names of the pin that have become others since."""

pytestmark = pytest.mark.xdist_group("pins")


def same_versions(recorded: dict[str, str]) -> bool:
    """Whether what computes here is what computed then; dear itself is what is being tested."""
    here = {name: version(name) for name in recorded if name not in ("dear", "python")}
    return {**here, "python": platform.python_version()} == {k: v for k, v in recorded.items() if k != "dear"}


# The golden loss curve.


class EnoughSteps(Exception):
    """Ends a training from within."""


def golden_job() -> runs.Job:
    told = CURVE["job"]
    settings = TrainSettings(epochs=told["epochs"])
    data = open_dataset(told["data"])
    return make_job(data, shots=told["shots"], seed=told["seed"], half=told["half"], train=settings)


@pytest.fixture(scope="module")
def curve() -> tuple[list[dict], dict[str, torch.Tensor]]:
    """The metrics of 20 steps on one thread, and the trained parameters after them."""
    rows: list[dict] = []
    models = []

    def on_step(metrics):
        rows.append(metrics)
        if metrics["step"] == STEPS:
            raise EnoughSteps

    train = runs.train

    def train_and_remember(model, *more, **others):
        models.append(model)
        return train(model, *more, **others)

    torch.set_num_threads(CURVE["threads"])  # as all tests have it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "train", train_and_remember)
        with pytest.raises(EnoughSteps):
            runs.run_job(golden_job(), dear.load_clip("world"), workers=0, on_step=on_step)
    return rows, {name: parameter.detach().clone() for name, parameter in models[0].trainable().items()}


def logged(row: dict, name: str) -> float | int:
    """A number of the log by its name then or now."""
    return row[name] if name in row else row[RENAMED[name]]


def processor() -> str:
    """What decides which kernels compute: maker, family and model of the processor, and its vector instructions."""
    info = Path("/proc/cpuinfo")
    told = dict(re.findall(r"^(vendor_id|cpu family|model)\s*: (.*)$", info.read_text() if info.exists() else "", re.M))
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{told.get('vendor_id')} {told.get('cpu family')}/{told.get('model')} {capability}"


def pinned_curve(rows: list[dict]) -> tuple[dict, bool]:
    """The curve to compare with, and whether bit for bit: the one of this processor, or the one that begins alike."""
    exact = same_versions(CURVE["versions"])
    for one in CURVES:
        begins_alike = float(logged(rows[0], "total")).hex() == one["rows"][0]["total"]
        if one.get("processor") == processor() or begins_alike:
            return one, exact
    return CURVE, False


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_golden_loss_curve(curve, step):
    pin, exact = pinned_curve(curve[0])
    row = curve[0][step - 1]
    for name, value in pin["rows"][step - 1].items():
        found = logged(row, name)
        if not isinstance(value, str):
            assert found == value, name
        elif exact:
            assert float(found).hex() == value, name
        else:
            assert found == pytest.approx(float.fromhex(value), rel=1e-4, abs=1e-6), name


def parameter_of(parameters: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """A parameter by its own name, whatever module it lives in."""
    (found,) = (tensor for full, tensor in parameters.items() if full.split(".")[-1] == name)
    return found


def test_golden_parameters(curve):
    pin, exact = pinned_curve(curve[0])
    pinned, parameters = pin["parameters_sha256"], curve[1]
    assert len(parameters) == len(pinned)
    for name, value in pinned.items():
        found = parameter_of(parameters, name)
        assert bool(found.isfinite().all())
        if exact:
            assert sha256(found.contiguous().numpy().tobytes()) == value, name


def test_the_pins_are_of_the_tested_versions():
    """Else they would be compared loosely in CI too."""
    tested = dict(line.split("==") for line in (HERE.parents[1] / "constraints.txt").read_text().split())
    for recorded in (*(one["versions"] for one in CURVES), EXPECTED["versions"]):
        assert {name: tested[name] for name in recorded if name not in ("dear", "python")}.items() <= recorded.items()


# The adapter: its logits on two photos, for its own classes, for others, and switched off.


@pytest.fixture(scope="module")
def adapter():
    return dear.load(FORMAT_1 / "run")


@pytest.fixture(scope="module")
def photos(adapter) -> torch.Tensor:
    return torch.stack([adapter.clip.preprocess_eval(open_image(FORMAT_1 / "photos" / f"{i}.png")) for i in (0, 1)])


def answers(model, images, classes) -> dict[str, torch.Tensor]:
    """What a model says among its own classes, or among others in the default template, by the names of the pin."""
    view = model if list(model.classes.names) == classes else model.for_classes(classes, "a photo of a {}.")
    with torch.no_grad():
        out = view(images)
        with model.disabled():
            plain = view(images).logits
    alpha = torch.stack(list(out.weights.values()))
    return {"logits": out.logits, "cls_logits": out.readouts["decoupled"], "alpha": alpha, "plain": plain}


def close(found: torch.Tensor, pinned: list) -> bool:
    return torch.allclose(found, torch.tensor(pinned), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("which", ["own", "other"])
def test_adapter_gives_the_stored_logits(adapter, photos, which):
    pinned = EXPECTED[which]
    found = answers(adapter, photos, pinned["classes"])
    for name in pinned.keys() - {"classes"}:
        assert close(found[name], pinned[name]), name


def test_adapter_switched_off_gives_the_stored_logits(adapter, photos):
    assert close(answers(adapter, photos, EXPECTED["other"]["classes"])["plain"], EXPECTED["plain"])


def test_adapter_comes_with_its_own_classes(adapter):
    assert list(adapter.classes.names) == EXPECTED["own"]["classes"]


# The run, through the command line.


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A copy of the run, as a command may write into it, and two test images of each class."""
    count = World.count
    monkeypatch.setattr(World, "count", lambda world, split: 2 if split == "test" else count(world, split))
    return Path(shutil.copytree(FORMAT_1 / "run", tmp_path / "run"))


def said(monkeypatch, capsys, *words) -> str:
    """What a command prints; it has to end well."""
    monkeypatch.setattr(sys, "argv", ["dear", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    assert stop.value.code in (0, None), captured.err
    return captured.out


def test_eval_reads_the_run(monkeypatch, capsys, run):
    scores = json.loads(said(monkeypatch, capsys, "eval", run, "--json", "--workers", 0))
    assert set(scores) >= {"adapted", "plain"}


def test_predict_reads_the_run(monkeypatch, capsys, run):
    photo = FORMAT_1 / "photos" / "0.png"
    found = json.loads(said(monkeypatch, capsys, "predict", run, photo, "--json"))
    logits = torch.tensor(EXPECTED["own"]["logits"][0])
    assert EXPECTED["own"]["classes"][int(logits.argmax())] in json.dumps(found)


def test_report_reads_the_run(monkeypatch, capsys, run):
    said(monkeypatch, capsys, "report", run, "--workers", 0)
    assert "<svg" in (run / "report.html").read_text()


def test_a_run_that_was_stopped_is_resumed(tmp_path, adapter):
    """From its checkpoint of format 1, to the adapter that was stored then."""
    folder = Path(shutil.copytree(FORMAT_1 / "half_run", tmp_path / "run"))
    told = TrainSettings(epochs=2)
    job = make_job(open_dataset("world-textures"), shots=2, seed=3, half="base", train=told, config={})
    model, progress = runs.run_job(job, adapter.clip, folder, resume=True, workers=0)
    assert progress.step == 2
    for name, tensor in adapter.state_dict().items():
        assert torch.allclose(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6), name
    dear.load(folder, adapter.clip)


# The search index.


@pytest.mark.parametrize("kind", EXPECTED["hits"])
def test_index_gives_the_stored_hits(kind):
    index = read_index(FORMAT_1 / "index")
    features = index.features(kind)
    found = nearest(features[0], features, len(EXPECTED["hits"][kind]))
    assert [index.images[row].path for row, _ in found] == [path for path, _ in EXPECTED["hits"][kind]]
    assert [score for _, score in found] == pytest.approx([score for _, score in EXPECTED["hits"][kind]], abs=2e-3)


# Cells.


@pytest.mark.parametrize("path", CELLS, ids=lambda path: path.stem)
def test_cells_load(path):
    cell, stored = CellResult.from_json(path.read_text(), where=path.name), json.loads(path.read_text())
    assert (cell.method, cell.data, cell.seed, cell.shots) == tuple(
        stored[name] for name in ("method", "data", "seed", "shots")
    )
    assert len(CELLS) == 2
