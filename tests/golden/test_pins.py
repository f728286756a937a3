"""The golden loss curve, made at commit 929d2f9 with the versions beside it: the numbers stay the same.

The golden curve was made on two processors, whose kernels differ in the last bits. It is compared bit for bit under
those versions on those processors, and to 1e-4 elsewhere.
"""

import json
import platform
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import dear
from dear.data.open import open_dataset
from dear.engine import run as runs
from dear.engine.job import make_job
from dear.engine.settings import TrainSettings
from dear.storage.files import sha256

HERE = Path(__file__).parent
CURVES = [json.loads(path.read_text()) for path in sorted(HERE.glob("loss_curve*.json"))]
CURVE = CURVES[0]
EXPECTED = json.loads((HERE / "v0_2" / "expected.json").read_text())
STEPS = 20
WEIGHTS = ("weight_cls", "weight_color", "weight_shape", "weight_texture", "weight_object", "weight_location")
RENAMED = {f"alpha_{place}": name for place, name in enumerate(WEIGHTS)}
"""Names in the pin that have changed since."""

pytestmark = pytest.mark.xdist_group("pins")


def same_versions(recorded: dict[str, str]) -> bool:
    """Whether what computes here is what computed then; dear itself is what is being tested."""
    here = {name: version(name) for name in recorded if name not in ("dear", "python")}
    return {**here, "python": platform.python_version()} == {k: v for k, v in recorded.items() if k != "dear"}


class EnoughSteps(Exception):
    """Ends a training from within."""


def golden_job() -> runs.Job:
    job = CURVE["job"]
    settings = TrainSettings(epochs=job["epochs"])
    data = open_dataset(job["data"])
    return make_job(data, shots=job["shots"], seed=job["seed"], half=job["half"], train=settings)


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
    found = dict(
        re.findall(r"^(vendor_id|cpu family|model)\s*: (.*)$", info.read_text() if info.exists() else "", re.M)
    )
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{found.get('vendor_id')} {found.get('cpu family')}/{found.get('model')} {capability}"


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
