"""A grid of cells: done once, resumed in the middle, the same with several jobs."""

import json

import pytest
from PIL import Image

from dear.data.open import open_dataset
from dear.data.splits import few_shot
from dear.engine.workspace import Workspace
from dear.errors import OverwriteError
from dear.evaluation import cell_run
from dear.evaluation.cell_run import CELLS, RUNS
from dear.evaluation.cells import make_cells
from dear.evaluation.eta import longest_first
from dear.evaluation.grid import run_grid
from dear.evaluation.results import CellResult
from grid_cells import CLASSES, cells, comparable
from helpers import make_photos


def test_a_grid_writes_cells_runs_and_tables(photos, setting):
    told = []
    results = run_grid(cells(photos), setting(), on_cell=lambda done, result: told.append((done, result.method)))
    out = setting().out
    assert told == [(1, "zero_shot"), (2, "dear")]
    plain, adapted = results
    assert (plain.data, plain.variant, plain.steps) == ("photos", "", 0)
    assert (adapted.variant, adapted.steps, adapted.threads) == ("mask=all_mixed", 4, 1)
    assert [(s.half, s.images, len(s.per_class)) for s in adapted.scores] == [("base", 4, 2), ("novel", 4, 2)]
    assert adapted.adapter_sha256
    assert set(adapted.versions) >= {"dear", "torch", "python"}
    names = {path.stem for path in (out / CELLS).iterdir()}
    assert names == {path.name for path in (out / RUNS).iterdir()}
    for path in (out / CELLS).iterdir():
        assert CellResult.from_json(path.read_text()) in results
    header, *rows = (out / "table.csv").read_text().splitlines()
    assert header.startswith("protocol,method,variant,data,seed,shots,base,novel,hm,base_decoupled,novel_decoupled,")
    assert len(rows) == 2
    assert (out / "table.md").read_text().startswith("## Base-to-novel, 2 shots")
    assert not list((out / RUNS).rglob("checkpoint*"))


def test_repaired_test_images_are_tested_again(setting, tmp_path):
    mine = tmp_path / "mine"
    for split in ("train", "test"):
        make_photos(mine / split, CLASSES, 2)
    bad = mine / "test" / "dog" / "bad.png"
    bad.write_bytes(b"")
    (first,) = run_grid(cells(mine, methods=["zero_shot"]), setting())
    Image.new("RGB", (30, 30), "teal").save(bad)
    (second,) = run_grid(cells(mine, methods=["zero_shot"]), setting(resume=True))
    assert (first.unreadable, second.unreadable) == (1, 0)


def test_no_views_are_stored_where_nothing_is_trained(photos, setting, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("views were computed")

    monkeypatch.setattr("dear.engine.run.cached_views", refuse)
    (plain,) = run_grid(cells(photos, methods=["zero_shot"]), setting(cached_views=2))
    assert plain.steps == 0


def test_what_is_done_is_not_done_again(photos, setting, trainings):
    first = run_grid(cells(photos), setting())
    assert len(trainings) == 2
    with pytest.raises(OverwriteError, match="already contains a grid: add resume=True to continue, or overwrite=True"):
        run_grid(cells(photos), setting())
    assert run_grid(cells(photos), setting(resume=True)) == first
    assert len(trainings) == 2
    more = run_grid(cells(photos, seeds=[1, 2]), setting(resume=True))
    assert len(trainings) == 4
    assert [one for one in more if one.seed == 1] == first
    run_grid(cells(photos, methods=["dear"]), setting(epochs=1, resume=True))
    assert len(trainings) == 5
    assert trainings[-1][1] is False
    run_grid(cells(photos, methods=["dear"]), setting(epochs=1, validate=True, resume=True))
    assert trainings[-1][1] is True
    run_grid(cells(photos), setting(overwrite=True))
    assert len(trainings) == 8


def test_changed_images_are_seen(photos, setting, trainings, tmp_path):
    mine = make_photos(tmp_path / "mine", CLASSES, 3)
    run_grid(cells(mine, methods=["dear"]), setting())
    for name in CLASSES:
        Image.new("RGB", (40, 40), "teal").save(mine / name / "new.png")
    (result,) = run_grid(cells(mine, methods=["dear"], shots=[3]), setting(resume=True, test_share=0))
    assert result.steps == 6
    assert result.images == 4


def test_a_damaged_cell_is_computed_again(photos, setting, trainings):
    first = run_grid(cells(photos, methods=["zero_shot"]), setting())
    (path,) = (setting().out / CELLS).iterdir()
    path.write_text(path.read_text()[:-20])
    assert comparable(run_grid(cells(photos, methods=["zero_shot"]), setting(resume=True))) == comparable(first)
    assert len(trainings) == 2


class Killed(Exception):
    pass


@pytest.mark.parametrize("how", [Killed, KeyboardInterrupt])
def test_a_killed_grid_goes_on_in_the_middle_of_a_cell(photos, setting, trainings, how):
    whole = run_grid(cells(photos, seeds=[1, 2]), setting("whole"))
    trainings.clear()
    steps = []

    def stop(metrics):
        steps.append(metrics["step"])
        if len(steps) == 4 + 3:
            raise how

    with pytest.raises(how):
        run_grid(cells(photos, seeds=[1, 2]), setting(), on_step=stop)
    assert len((setting().out / "table.csv").read_text().splitlines()) == 1 + 3
    assert len(trainings) == 4
    trainings.clear()
    steps.clear()
    again = run_grid(
        cells(photos, seeds=[1, 2]), setting(resume=True), on_step=lambda metrics: steps.append(metrics["step"])
    )
    assert [resumed for _, resumed in trainings] == [True]
    assert steps == [3, 4]
    assert comparable(again) == comparable(whole)


def test_several_jobs_give_the_same(photos, setting):
    one = run_grid(cells(photos, seeds=[1, 2]), setting("one"))
    told = []
    two = run_grid(cells(photos, seeds=[1, 2]), setting("two", jobs=2), on_cell=lambda done, _: told.append(done))
    assert comparable(one) == comparable(two)
    assert told == [1, 2, 3, 4]
    tables = [(setting(name).out / "table.md").read_text() for name in ("one", "two")]
    assert tables[0] == tables[1]


def test_the_longest_cells_are_first(photos, setting):
    """By their steps; what is known about a method's seconds per step counts, too."""
    planned = cells(photos, "few-shot", methods=["zero_shot", "coop", "maple"], shots=[1, 2])
    options, workspace = setting(), Workspace()
    order = [(planned[index].method, planned[index].shots) for index in longest_first(planned, options, workspace)]
    assert order == [("coop", 2), ("maple", 2), ("coop", 1), ("maple", 1), ("zero_shot", 1), ("zero_shot", 2)]
    (plain,) = run_grid(cells(photos, "few-shot", methods=["zero_shot"]), options)
    for method, seconds in (("coop", 4e4), ("maple", 4e5)):
        known = plain.model_copy(update={"method": method, "steps": 4, "seconds": seconds})
        (options.out / CELLS / f"{method}.json").write_text(known.to_json())
    order = [(planned[index].method, planned[index].shots) for index in longest_first(planned, options, workspace)]
    assert order[:4] == [("maple", 2), ("maple", 1), ("coop", 2), ("coop", 1)]


@pytest.mark.parametrize(
    ("protocol", "tests"),
    [("few-shot", ["photos"]), ("cross-dataset", ["photos", "other"]), ("domain", ["photos"] * 1)],
)
def test_other_protocols(photos, setting, tmp_path, protocol, tests):
    other = make_photos(tmp_path / "other", ["x", "y"], 3)
    transfers = protocol != "few-shot"
    data = [str(photos), *([str(other)] if "other" in tests else [])]
    source = {"source": str(photos)} if transfers else {}
    made = make_cells(protocol, data, methods=["dear"], seeds=[1], shots=[1], choices={"mask": ["all_mixed"]}, **source)
    (result,) = run_grid(made, setting(epochs=1))
    assert [one.data for one in result.scores] == tests
    assert all(one.half == "all" for one in result.scores)


def test_unreadable_test_images_are_named(setting, tmp_path):
    mine = tmp_path / "mine"
    for split in ("train", "test"):
        make_photos(mine / split, CLASSES, 2)
    data = open_dataset(mine)
    (made,) = cells(mine, methods=["zero_shot"])
    undrawn = cell_run.items_to_test(data, "novel", trained_items=few_shot(data.train, 2, 1))
    (mine / undrawn[0].id).write_bytes(b"")
    (result,) = run_grid([made], setting())
    assert result.score("novel").unreadable == 1
    assert result.score("novel").images == 4
    assert result.score("novel").problems == (
        f"{mine / undrawn[0].id} cannot be read: it is empty; replace or remove it.",
    )


def test_a_run_says_where_its_data_is(photos, setting):
    run_grid(cells(photos, methods=["zero_shot"]), setting())
    (run,) = (setting().out / RUNS).iterdir()
    assert json.loads((run / "run.json").read_text())["source"] == {"data": str(photos), "root": None}
