"""`--log`: every step of a training, or of each cell of a grid, in TensorBoard or Weights & Biases."""

import sys
import types

import pytest

from dear import fit
from dear.engine.step_logs import step_log
from dear.errors import ConfigError, MissingExtraError
from helpers import make_photos
from needs import needs
from toys import Toy

SHORT = {"shots": 2, "epochs": 2, "batch_size": 3, "mask": "all_mixed"}


@pytest.fixture
def toy():
    return Toy()


def steps_in(folder):
    """The steps of one tag that TensorBoard reads from a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return [event.step for event in read.Scalars("total")]


def test_tensorboard_reads_every_step_of_a_run_and_of_the_one_that_replaces_it(toy, clip, tmp_path):
    needs("tensorboard")
    fit(toy.dataset, clip, out=tmp_path / "run", log="tensorboard", **SHORT)
    steps = steps_in(tmp_path / "run" / "tensorboard")
    assert steps == list(range(1, len(steps) + 1))
    fit(toy.dataset, clip, out=tmp_path / "run", log="tensorboard", overwrite=True, **{**SHORT, "epochs": 1})
    assert steps_in(tmp_path / "run" / "tensorboard") == steps[: len(steps) // 2]


def test_no_step_no_log(tmp_path):
    with step_log("tensorboard", tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for Weights & Biases that records what it is asked for."""
    asked = []

    class Error(Exception):
        pass

    run = types.SimpleNamespace(
        log=lambda numbers, step: asked.append((step, numbers)), finish=lambda: asked.append("finished")
    )
    fake = types.ModuleType("wandb")
    fake.__spec__ = types.SimpleNamespace()
    fake.errors, fake.asked, fake.refuses = types.SimpleNamespace(Error=Error), asked, False

    def init(**named):
        if fake.refuses:
            raise Error("api_key not configured (no-tty)\nsecond line")
        asked.append(named)
        return run

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_gets_numbers_by_step_and_the_end(toy, clip, wandb, tmp_path):
    fit(toy.dataset, clip, out=tmp_path / "pets", log="wandb", **SHORT)
    first, *steps, last = wandb.asked
    assert first == {"project": "dear", "name": "pets", "dir": str(tmp_path / "pets")}
    assert [step for step, _ in steps] == list(range(1, len(steps) + 1))
    assert all({"total", "lr"} <= set(numbers) and "problems" not in numbers for _, numbers in steps)
    assert last == "finished"


def test_what_is_refused_before_anything_is_trained(toy, clip, wandb, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match=r"log='tensorboard' needs a folder: give out='FOLDER'\."):
        fit(toy.dataset, clip, log="tensorboard", **SHORT)
    wandb.refuses = True
    with pytest.raises(
        ConfigError, match=r"\(api_key not configured \(no-tty\)\): run 'wandb login', or set WANDB_MODE"
    ):
        fit(toy.dataset, clip, out=tmp_path / "run", log="wandb", **SHORT)
    monkeypatch.delitem(sys.modules, "wandb")
    monkeypatch.setattr("dear.engine.step_logs.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "dear-vlm\[wandb\]"'):
        fit(toy.dataset, clip, out=tmp_path / "other", log="wandb", **SHORT)
    assert not (tmp_path / "other").exists()


def test_each_cell_of_a_grid_has_its_own_log(dear_, one_clip, tmp_path):
    needs("tensorboard")
    make_photos(tmp_path / "photos", ["ant", "bee"], 6)
    words = (
        f"--data {tmp_path / 'photos'} --clip tiny --methods coop --seeds 1,2 --shots 2 --epochs 1 --log tensorboard"
    )
    code, _, stderr = dear_("bench", "few-shot", *words.split(), "--out", tmp_path / "grid")
    assert code == 0, stderr
    assert len(list((tmp_path / "grid" / "runs").glob("*/tensorboard/*"))) == 2
