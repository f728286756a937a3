"""What a grid refuses before anything is trained, and errors of cells in one sentence."""

import pytest

from dear.errors import ConfigError, DataError, OverwriteError, RoleMapError, TrainingError
from dear.evaluation import executors
from dear.evaluation.cell_run import RUNS
from dear.evaluation.cells import make_cells
from dear.evaluation.grid import run_grid
from grid_cells import CLASSES, cells
from helpers import make_photos


def test_a_folder_of_runs_is_not_taken_for_a_grid(photos, setting):
    mine = setting().out / RUNS / "mine" / "adapter_model.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(OverwriteError, match="already contains other files"):
        run_grid(cells(photos), setting(overwrite=True))
    assert mine.exists()


def test_an_error_in_a_job_is_ours(photos, setting, tmp_path):
    bad = make_photos(tmp_path / "bad", CLASSES, 2)
    for path in bad.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="None of the 2 training images could be read"):
        run_grid(cells(bad, methods=["dear"], shots=[1], seeds=[1, 2]), setting(jobs=2))


def test_nothing_is_written_where_data_is_missing(photos, setting, tmp_path):
    made = make_cells("few-shot", [str(photos), "dtd", "worlds"], methods=["zero_shot"], seeds=[1], shots=[1])
    with pytest.raises(DataError) as error:
        run_grid(made, setting(data_root=tmp_path))
    first, *others = str(error.value).splitlines()
    assert first == "2 data sets cannot be used:"
    assert others[0].startswith(f"- DTD is not in {tmp_path}: put it in {tmp_path / 'dtd'}. Get dtd-r1.0.1")
    assert others[1].startswith("- There is no data set 'worlds'")
    assert not setting().out.exists()


def test_data_that_cannot_be_told_apart_or_learned(photos, setting, tmp_path):
    twin = make_photos(tmp_path / "photos", CLASSES, 2)
    with pytest.raises(DataError, match="would both be called photos: rename one of them"):
        run_grid(make_cells("few-shot", [str(photos), str(twin)], methods=["dear"], seeds=[1], shots=[1]), setting())
    folder = tmp_path / "imagenet-adversarial"
    make_photos(folder / "imagenet-a", ["n01", "n02"], 1)
    (folder / "classnames.txt").write_text("n01 cat\nn02 dog\n")
    with pytest.raises(DataError, match="imagenet_a has no training images: it can only be tested on"):
        run_grid(
            make_cells("few-shot", ["imagenet_a"], methods=["dear"], seeds=[1], shots=[1]), setting(data_root=tmp_path)
        )


@pytest.mark.covers("T12")
def test_what_cannot_run_is_known_before_the_first_cell(photos, setting, trainings):
    """No role map for the CLIP, and a teacher that is there for one seed only."""
    run_grid(cells(photos, methods=["promptsrc"]), setting("teachers"))
    trainings.clear()
    runs = setting("teachers").out / RUNS
    next(runs.iterdir()).rename(runs / "seed1")
    planned = make_cells(
        "base-to-novel",
        [str(photos)],
        methods=["zero_shot", "dear", "promptkd"],
        seeds=[1, 2],
        shots=[2],
        choices={"teacher": [f"{runs}/seed{{seed}}"]},
    )
    refused, known = {}, []
    results = run_grid(
        planned,
        setting(),
        refused=refused,
        on_checked=lambda count: known.append((count, len(trainings), sorted((c.method, c.seed) for c in refused))),
    )
    assert known == [(3, 0, [("dear", 1), ("dear", 2), ("promptkd", 2)])]
    assert len(results) == 3
    assert "There is no role map" in next(why for cell, why in refused.items() if cell.method == "dear")
    assert "seed2" in next(why for cell, why in refused.items() if cell.method == "promptkd")


def test_choices_that_cannot_work_are_refused_first(photos, setting):
    with pytest.raises(ConfigError, match="beta is 7"):
        run_grid(cells(photos, choices={"beta": [7], "mask": ["all_mixed"]}), setting())
    with pytest.raises(RoleMapError, match="There is no role map for"):
        run_grid(cells(photos, choices={}), setting())
    assert not setting().out.exists()


def test_no_images_left_to_test_on(photos, setting):
    with pytest.raises(DataError, match="no images left to test on, because all were used for training: train with"):
        run_grid(cells(photos, shots=[16], methods=["zero_shot"]), setting(test_share=0))
    assert not setting().out.exists()


def test_a_process_that_dies_is_one_sentence(photos, setting, monkeypatch):
    class Dead:
        def __init__(self, *_, **__):
            pass

        def submit(self, *_):
            from concurrent.futures import Future

            done = Future()
            done.set_exception(executors.BrokenProcessPool())
            return done

        def shutdown(self, **_):
            pass

    monkeypatch.setattr(executors, "ProcessPoolExecutor", Dead)
    with pytest.raises(TrainingError, match="resume with resume=True, and fewer cells at a time, such as jobs=1"):
        run_grid(cells(photos), setting(jobs=2))
