"""A grid of cells: done once, resumed in the middle, the same with several jobs, refused before anything is trained."""

import json

import pytest
from PIL import Image

from dear.data.open import open_dataset
from dear.data.splits import few_shot
from dear.engine import feature_cache
from dear.engine.workspace import Workspace
from dear.errors import ConfigError, DataError, OverwriteError, RoleMapError, TrainingError
from dear.evaluation import cell_run, executors
from dear.evaluation.cell_run import CELLS, RUNS
from dear.evaluation.cells import make_cells
from dear.evaluation.eta import longest_first
from dear.evaluation.grid import run_grid
from dear.evaluation.results import CellResult
from dear.storage.columns import Segment
from helpers import make_photos
from small_runs import small_grid

CLASSES = ["ant", "bee", "cow", "dog"]
UNLIKE = ("seconds", "encoding_seconds", "training_seconds", "peak_memory_mb")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("data") / "photos", CLASSES, 4)


@pytest.fixture
def setting(tiny_folders, tmp_path):
    def setting(out="out", **changes):
        return small_grid(tmp_path / out, tiny_folders, **{"workers": 1, "threads": 1, "epochs": 2, **changes})

    return setting


def cells(photos, protocol="base-to-novel", **changes):
    chosen = {"methods": ["zero_shot", "dear"], "seeds": [1], "shots": [2], **changes}
    mask = {"mask": ["all_mixed"]} if "dear" in chosen["methods"] else {}
    return make_cells(protocol, [str(photos)], **{"choices": mask, **chosen})


@pytest.fixture
def trainings(monkeypatch):
    """Names of the runs that are trained or gone on with."""
    ran, train_model = [], cell_run.train_model

    def counted(job, model, folder, **more):
        ran.append((folder.name, more["if_exists"] == "resume"))
        return train_model(job, model, folder, **more)

    monkeypatch.setattr(cell_run, "train_model", counted)
    return ran


def comparable(results):
    return [{k: v for k, v in one.model_dump().items() if k not in UNLIKE} for one in results]


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


def test_a_folder_of_runs_is_not_taken_for_a_grid(photos, setting):
    mine = setting().out / RUNS / "mine" / "adapter_model.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(OverwriteError, match="already contains other files"):
        run_grid(cells(photos), setting(overwrite=True))
    assert mine.exists()


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


def test_an_error_in_a_job_is_ours(photos, setting, tmp_path):
    bad = make_photos(tmp_path / "bad", CLASSES, 2)
    for path in bad.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="None of the 2 training images could be read"):
        run_grid(cells(bad, methods=["dear"], shots=[1], seeds=[1, 2]), setting(jobs=2))


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


@pytest.mark.covers("T7")
@pytest.mark.parametrize("methods", [["zero_shot", "coop"], ["coop", "zero_shot"]])
def test_encoding_is_charged_to_no_method(methods, photos, setting, monkeypatch):
    """A clock that only encoding moves: whoever comes first, no method takes any time."""
    now, computer = [0.0], feature_cache._computer

    def slow(model, names):
        compute = computer(model, names)

        def computing(images):
            now[0] += 100
            return compute(images)

        return computing

    monkeypatch.setattr(feature_cache, "_computer", slow)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    first, second = run_grid(cells(photos, methods=methods), setting(cached_views=1, epochs=1))
    assert (first.seconds, second.seconds) == (0, 0)
    shared = second.encoding_seconds if methods[0] == "zero_shot" else 0  # training views, which plain CLIP never reads
    assert first.encoding_seconds >= 200
    assert first.encoding_seconds + shared == now[0]


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


def test_a_run_says_where_its_data_is(photos, setting):
    run_grid(cells(photos, methods=["zero_shot"]), setting())
    (run,) = (setting().out / RUNS).iterdir()
    assert json.loads((run / "run.json").read_text())["source"] == {"data": str(photos), "root": None}


def test_test_images_are_encoded_once_for_all_methods_with_the_same_results(photos, setting, monkeypatch):
    """One pass computes what both methods read; the rows and scores are those of a pass for each."""
    encoded, fill = [], feature_cache._fill

    def counted(stores, images, *others, **named):
        encoded.extend(images.names)
        return fill(stores, images, *others, **named)

    monkeypatch.setattr(feature_cache, "_fill", counted)
    both = run_grid(cells(photos), setting("both"))
    assert len(encoded) == len(set(encoded)) == 8
    apart = [run_grid(cells(photos, methods=[name]), setting(name))[0] for name in ("zero_shot", "dear")]
    assert len(encoded) == 8 + 16
    assert comparable(both) == comparable(apart)

    def rows(*outs):
        stores = [path for out in outs for path in (setting(out).out / "cache").glob("features-*")]
        segments = {store.name: [Segment(path) for path in store.glob("segment-*")] for store in stores}
        return {
            name: sorted((one.metadata["keys"], one.metadata["crc32"]) for one in segments[name]) for name in segments
        }

    assert rows("both") == rows("zero_shot", "dear")


def test_grids_of_one_paper_share_the_model_that_they_all_train(photos, setting, trainings, tmp_path):
    other = make_photos(tmp_path / "other", CLASSES, 4)
    few = cells(photos, "few-shot", methods=["dear"])
    far = make_cells(
        "cross-dataset",
        [str(other)],
        source=str(photos),
        methods=["dear"],
        seeds=[1],
        shots=[2],
        choices={"mask": ["all_mixed"]},
    )
    (alone,) = run_grid(far, setting("alone"))
    (first,) = run_grid(few, setting("grids/few-shot"))
    assert len(trainings) == 2
    (shared,) = run_grid(far, setting("grids/cross-dataset"))
    assert len(trainings) == 2
    assert (alone.shared, first.shared, shared.shared) == (False, False, True)
    assert comparable([shared.model_copy(update={"shared": False})]) == comparable([alone])
    assert shared.training_seconds == first.training_seconds
    assert shared.seconds >= shared.training_seconds
    runs = [setting(out).out / RUNS / far[0].slug for out in ("alone", "grids/cross-dataset")]
    assert {path.name for path in runs[0].iterdir()} == {path.name for path in runs[1].iterdir()}
    assert run_grid(far, setting("grids/cross-dataset", resume=True)) == [shared]


@pytest.mark.parametrize("change", ["adapter", "record", "versions", "epochs"])
def test_a_model_of_another_training_or_a_damaged_one_is_not_shared(photos, setting, trainings, change):
    (first,) = run_grid(cells(photos, "few-shot", methods=["dear"]), setting("grids/a"))
    cell = setting("grids/a").out / CELLS / f"{cells(photos, methods=['dear'])[0].slug}.json"
    run = setting("grids/a").out / RUNS / cell.stem
    if change == "adapter":
        path = run / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    elif change == "record":
        (run / "run.json").write_text("{}")
    elif change == "versions":
        cell.write_text(first.model_copy(update={"versions": {"dear": "0.0"}}).to_json())
    changed = {"epochs": 1} if change == "epochs" else {}
    (again,) = run_grid(cells(photos, "few-shot", methods=["dear"]), setting("grids/b", **changed))
    assert len(trainings) == 2
    assert not again.shared
    assert (again.adapter_sha256 == first.adapter_sha256) == (change != "epochs")
