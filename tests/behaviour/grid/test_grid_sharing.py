"""What cells share: encoded images, and the model that several grids of a paper train."""

import pytest

from dear.engine import feature_cache
from dear.evaluation.cell_run import CELLS, RUNS
from dear.evaluation.cells import make_cells
from dear.evaluation.grid import run_grid
from dear.storage.columns import Segment
from grid_cells import CLASSES, cells, comparable
from helpers import make_photos


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
