"""Attempts at a cell: each in a folder of its own, continued by the next, adopted once; the late one spoils nothing."""

import json
from functools import partial

import pytest

from dear.engine.workspace import Workspace
from dear.errors import DearError, TrainingError
from dear.evaluation.attempts import ATTEMPTS, MOST, attempt
from dear.evaluation.cell_run import CELLS, RUNS, run_cell
from dear.evaluation.cells import make_cells
from helpers import make_photos
from small_runs import small_grid


class Killed(Exception):
    pass


@pytest.fixture
def start(tmp_path, tiny_folders):
    """Runs one cell as a node of a cluster would; `at` is called with the number of every step."""
    photos = make_photos(tmp_path / "photos", ["ant", "bee", "cow", "dog"], 4)
    (cell,) = make_cells("few-shot", [str(photos)], methods=["coop"], seeds=[1], shots=[2])

    def start(at=lambda step: None, grid="g1", out="out", **changes):
        options = small_grid(tmp_path / out, tiny_folders, **{"workers": 1, "threads": 1, "epochs": 2, **changes})
        for part in (CELLS, RUNS):
            (options.out / part).mkdir(parents=True, exist_ok=True)
        place = partial(attempt, grid=grid)
        return run_cell(cell, options, Workspace(), lambda metrics: at(metrics["step"]), place=place)

    start.runs, start.cells, start.slug = tmp_path / "out" / RUNS, tmp_path / "out" / CELLS, cell.slug
    return start


def kill_after(number, steps):
    def at(step):
        steps.append(step)
        if step == number:
            raise Killed

    return at


def test_the_next_attempt_goes_on_from_the_checkpoint(start):
    steps, more = [], []
    with pytest.raises(Killed):
        start(kill_after(5, steps))
    assert len(list((start.runs / ATTEMPTS).iterdir())) == 1
    assert not (start.runs / start.slug).exists()
    found = start(more.append)
    assert (steps, more) == ([1, 2, 3, 4, 5], [5, 6, 7, 8])
    assert list((start.runs / ATTEMPTS).iterdir()) == []
    (start.cells / f"{start.slug}.json").unlink()
    assert start().adapter_sha256 == found.adapter_sha256  # the run is there, only its record is not
    whole = start(out="whole")
    assert found.adapter_sha256 == whole.adapter_sha256


def test_a_late_attempt_cannot_spoil_the_one_that_replaced_it(start):
    """The first node only lost its network: it takes further steps after the second one has ended the cell."""
    second, record = [], start.cells / f"{start.slug}.json"

    def at(step):
        if step == 5 and not second:
            second.append(start())
            second.append(record.read_bytes())

    with pytest.raises(DearError, match="cannot be written"):
        start(at)
    assert record.read_bytes() == second[1]
    assert list((start.runs / ATTEMPTS).iterdir()) == []
    assert (start.runs / start.slug / "adapter_model.safetensors").is_file()
    assert start() == second[0]


def test_the_first_whole_attempt_wins(start):
    found = start()
    folder = start.runs / start.slug
    run = (folder / "run.json").read_bytes()
    (folder / "mine").touch()
    with attempt(folder, json.loads(run)["fingerprint"], "g1") as work:
        (work / "run.json").write_bytes(run)
    assert (folder / "mine").exists()
    with attempt(folder, "another", "g1") as work:
        assert not list(work.iterdir())  # another training is not continued, but replaced
    assert not list(folder.iterdir())
    assert list((start.runs / ATTEMPTS).iterdir()) == []
    assert start().adapter_sha256 == found.adapter_sha256


def test_a_grid_that_was_started_again_revokes_attempts(start):
    folder = start.runs / start.slug
    start.runs.mkdir(parents=True)
    with pytest.raises(TrainingError, match="the grid was started again"), attempt(folder, "mark", "g1") as work:
        work.rmdir()
    assert not folder.exists()


def test_a_cell_that_kills_its_processes_is_given_up(start):
    for _ in range(MOST):
        with pytest.raises(Killed):
            start(kill_after(1, []))
    with pytest.raises(TrainingError, match=f"was begun {MOST} times and each time its process died"):
        start()
    assert start(grid="g2").steps == 8
