"""Whatever is resumed, moved or evaluated elsewhere gives what an undisturbed run gives, and never a trained image."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image

import dear
from dear.backbone.names import shipped
from dear.data.splits import folds
from dear.engine import loop
from dear.engine.job import describe, fingerprint, make_job
from dear.engine.run import train_model
from dear.engine.run_folder import CHECKPOINT, NEXT
from dear.evaluation.choice import read_choice
from dear.workflows import auto_search, calibrate
from helpers import make_photos


def plain(red, green, blue):
    return Image.new("RGB", (32, 32), (red, green, blue))


REDS = [(plain(i * 6, 0, 0), "star") for i in range(20)] + [(plain(0, i * 6, 0), "ring") for i in range(20)]
BLUES = [(plain(0, 0, 9 + i * 6), "star") for i in range(20)] + [(plain(9 + i, 9, 200), "ring") for i in range(20)]
SMALL = {"clip": "world", "workers": 0, "threads": 1}


def count_tested(run, data):
    return dear.evaluate(run, data, workers=0).scores.images


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos", ("cat", "dog", "ant", "bee"), 12)


@pytest.fixture
def in_memory(tmp_path):
    dear.fit(REDS, method="zero_shot", shots=16, test_share=0, out=tmp_path / "run", **SMALL)
    return tmp_path / "run"


def test_images_in_memory_are_known_by_content_not_by_position(in_memory):
    """Images in another order were tested although they had been trained on, and other images were left out."""
    assert count_tested(in_memory, REDS) == count_tested(in_memory, REDS[::-1]) == 8
    assert count_tested(in_memory, BLUES) == 40


def test_another_folder_of_the_same_name_is_tested_whole(tmp_path):
    for seed, place in enumerate(("here", "there")):
        make_photos(tmp_path / place / "photos", ("cat", "dog"), 8, seed)
    dear.fit(tmp_path / "here" / "photos", method="zero_shot", shots=4, out=tmp_path / "run", **SMALL)
    left = count_tested(tmp_path / "run", tmp_path / "here" / "photos")
    assert count_tested(tmp_path / "run", tmp_path / "there" / "photos") == 16
    shutil.move(tmp_path / "here", tmp_path / "moved")
    assert count_tested(tmp_path / "run", tmp_path / "moved" / "photos") == left == 8


def local_world(folder, **changes):
    """The world's CLIP as a folder, with another configuration."""
    shutil.copytree(shipped()["world"], folder)
    file = folder / "open_clip_config.json"
    content = json.loads(file.read_text())
    content["preprocess_cfg"] |= changes.pop("preprocess", {})
    content["model_cfg"] |= changes
    file.write_text(json.dumps(content))
    return f"local-dir:{folder}"


@pytest.mark.parametrize("changes", [{"preprocess": {"mean": [0.0, 0.0, 0.0]}}, {"quick_gelu": True}])
def test_a_clip_with_another_configuration_resumes_nothing(tmp_path, photos, changes):
    """Cells and runs of a corrected configuration were taken for those of the wrong one, as the weights are equal."""
    before, after = local_world(tmp_path / "before"), local_world(tmp_path / "after", **changes)
    options = {"method": "zero_shot", "shots": 1, "out": tmp_path / "run", "workers": 0}
    dear.fit(photos, clip=before, **options)
    with pytest.raises(dear.errors.ConfigError, match="config_sha256"):
        dear.fit(photos, clip=after, resume=True, **options)
    grid = {"methods": ["zero_shot"], "shots": [1], "seeds": [1], "out": tmp_path / "grid", "workers": 0}
    first = dear.bench("few-shot", photos, clip=before, **grid)[0]
    second = dear.bench("few-shot", photos, clip=after, resume=True, **grid)[0]
    assert first.fingerprint == second.fingerprint
    assert first.config_sha256 != second.config_sha256


def test_runs_of_earlier_versions_record_no_configuration(tmp_path, photos):
    options = {"method": "zero_shot", "shots": 1, "out": tmp_path / "run", **SMALL}
    dear.fit(photos, **options)
    file = tmp_path / "run" / "run.json"
    content = json.loads(file.read_text())
    del content["description"]["backbone"]["config_sha256"]
    file.write_text(json.dumps(content))
    dear.fit(photos, resume=True, **options)


def test_the_configuration_changes_no_fingerprint():
    clip = dear.load_clip("world")
    job = make_job(dear.open_dataset("world-blooms"), shots=1, seed=1, method="zero_shot")
    description = describe(job, job.build(clip))
    other = {**description, "backbone": {**description["backbone"], "config_sha256": "0" * 64}}
    assert fingerprint(description) == fingerprint(other)


def test_a_method_chooses_nothing_on_photos_that_calibrate(tmp_path, monkeypatch):
    """Of a named data set without validation images, settings were chosen on the photos of the fold."""
    monkeypatch.setattr("dear.data.catalog._ADDED", {})
    for split in ("train", "test"):
        make_photos(tmp_path / "pets" / split, ("ant", "bee"), 20)
    (tmp_path / "my.json").write_text('[{"name": "pets", "folder": "pets", "layout": "class folders"}]')
    dear.add_catalog(tmp_path / "my.json")
    asked = []

    def watched(job, *others, **more):
        asked.append(job)
        return train_model(job, *others, **more)

    monkeypatch.setattr(calibrate, "train_model", watched)
    dear.fit("pets", method="linear_probe", shots=16, out=tmp_path / "run", set={"steps": 1}, **SMALL)
    dear.calibrate(tmp_path / "run", workers=0)
    rest_and_held = folds(make_job(dear.open_dataset("pets"), shots=16, seed=1).items, 4, 1)
    assert asked
    for job, (_, held) in zip(asked, rest_and_held, strict=False):
        assert not set(job.held()[1]) & set(held)


def test_classes_and_names_are_added_to_data_in_memory(tmp_path):
    """They were ignored without a word."""
    make_photos(tmp_path / "red_panda", ("",), 4)
    make_photos(tmp_path / "photos", ("n01", "n02"), 4)
    options = {"method": "zero_shot", "shots": 2, "add_class": tmp_path / "red_panda", **SMALL}
    names = {"n01": "tench", "n02": "goldfish"}
    opened = dear.fit(dear.open_dataset(tmp_path / "photos"), names=names, **options)
    assert opened.classes.names == ("tench", "goldfish", "red panda")
    assert dear.fit(REDS, **options).classes.names == ("ring", "star", "red panda")


def test_a_finished_run_that_is_resumed_stays_calibrated(tmp_path, photos):
    run, options = tmp_path / "run", {"shots": 8, "epochs": 1, **SMALL}
    for method in ("tip_adapter", "clip_adapter"):
        dear.fit(photos, method=method, out=run / method, **options)
        dear.calibrate(run / method, workers=0)
        before = dear.load(run / method).calibration
        dear.fit(photos, method=method, out=run / method, resume=True, **options)
        assert dear.load(run / method).calibration == before
        assert before is not None


def test_a_run_can_be_calibrated_from_another_folder(tmp_path, photos, monkeypatch):
    """`config.yaml` has the path of the data as it was typed."""
    monkeypatch.chdir(tmp_path)
    dear.fit("photos", method="tip_adapter", shots=8, out="run", **SMALL)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert dear.calibrate(tmp_path / "run", workers=0) == dear.load(tmp_path / "run").calibration


def test_a_cache_is_never_made_inside_the_photos(tmp_path, photos):
    dear.fit(photos, method="zero_shot", shots=2, out=tmp_path / "run", **SMALL)
    with pytest.raises(dear.errors.ConfigError, match="would become a class"):
        dear.evaluate(tmp_path / "run", cache=photos / "cache", workers=0)
    assert not (photos / "cache").exists()


def stop_in_epoch_2(metrics):
    if metrics["epoch"] == 2:
        raise KeyboardInterrupt


def test_a_killed_overwrite_forgets_the_choice_when_it_is_resumed(tmp_path, photos):
    options = {"out": tmp_path / "run", "shots": 4, **SMALL}
    dear.fit(photos, method="auto", candidates="tip_adapter", budget="1h", **options)
    assert read_choice(tmp_path / "run") is not None
    again = {"method": "clip_adapter", "epochs": 2, **options}
    with pytest.raises(KeyboardInterrupt):
        dear.fit(photos, overwrite=True, on_step=stop_in_epoch_2, **again)
    dear.fit(photos, resume=True, **again)
    assert read_choice(tmp_path / "run") is None


def test_a_candidate_whose_answers_are_stored_fits_into_any_budget(tmp_path, photos, monkeypatch):
    """Trials that plain CLIP answers were counted as missing, and views were charged although nothing read them."""
    real = auto_search.answer

    def killed(job, *others):
        if job.method == "textrefiner":
            raise SystemExit
        return real(job, *others)

    monkeypatch.setattr(auto_search, "answer", killed)
    options = {
        "method": "auto", "candidates": "linear_probe,clip_adapter,textrefiner", "cached_views": 2, "epochs": 1,
        "shots": 4, "out": tmp_path / "run", **SMALL,
    }  # fmt: skip
    with pytest.raises(SystemExit):
        dear.fit(photos, budget="1h", **options)
    monkeypatch.setattr(auto_search, "answer", real)
    dear.fit(photos, budget="1s", resume=True, **options)
    choice = read_choice(tmp_path / "run")
    states = {one.method: one.state for one in choice.candidates}
    assert states == {
        "zero_shot": "tried",
        "linear_probe": "tried",
        "clip_adapter": "tried",
        "textrefiner": "not tried",
    }


def test_a_killed_cell_that_replaces_another_goes_on_from_its_checkpoint(tmp_path, photos):
    options = {"methods": ["coop"], "seeds": [1], "shots": [1], "out": tmp_path / "grid", "clip": "world", "workers": 0}
    dear.bench("few-shot", photos, epochs=1, **options)

    with pytest.raises(KeyboardInterrupt):
        dear.bench("few-shot", photos, epochs=3, resume=True, on_step=stop_in_epoch_2, **options)
    assert list((tmp_path / "grid" / "runs").glob(f"*/{NEXT}/{CHECKPOINT}"))
    steps = []
    dear.bench("few-shot", photos, epochs=3, resume=True, on_step=lambda m: steps.append(m["step"]), **options)
    assert 1 < steps[0] == min(steps)


@pytest.mark.parametrize(("method", "settings"), [("tip_adapter", {"templates": ["a {}."]}), ("mmrl", {"layers": [3]})])
def test_the_config_file_repeats_a_run_whose_setting_is_a_list_of_one(tmp_path, photos, method, settings):
    options = {"method": method, "shots": 1, "epochs": 1, **SMALL}
    dear.fit(photos, out=tmp_path / "run", **options, **settings)
    content = dear.options.reading.read_file(tmp_path / "run" / "config.yaml", dear.options.parts.Fit)[0]
    assert {name: list(content["set"][name]) for name in settings} == settings


def test_a_run_can_be_continued_in_a_precision_that_scales_gradients(tmp_path, photos, monkeypatch):
    """`precision=auto` means fp16 on some devices, and the device that began had stored no scale."""
    options = {"method": "clip_adapter", "epochs": 3, "shots": 2, "out": tmp_path / "run", **SMALL}
    with pytest.raises(KeyboardInterrupt):
        dear.fit(photos, on_step=stop_in_epoch_2, **options)
    real = torch.amp.GradScaler
    monkeypatch.setattr(loop.torch.amp, "GradScaler", lambda device, scale, enabled: real(device, scale, enabled=True))
    assert replace(dear.fit(photos, resume=True, **options).classes, dataset=None)
