"""A run's folder: stop at any moment and resume, and the result is the same bytes; nothing written is ever lost."""

import errno
import json
import os
from pathlib import Path

import pytest

import dear
from dear.engine import checkpoint as checkpoints
from dear.engine import run as runs
from dear.engine.loop import train
from dear.engine.run import run_job
from dear.engine.run_folder import CHECKPOINT, METRICS, RUN, SHOTS, read_run
from dear.engine.settings import TrainSettings
from dear.errors import ConfigError, DearError, OverwriteError, TrainingError
from dear.model.artefact import MANIFEST
from dear.workflows.train import fit
from needs import needs
from toys import KilledError, Toy, adapter_hash, at_step, log_lines


@pytest.fixture
def toy():
    return Toy()


@pytest.fixture(autouse=True)
def _checkpoint_every_second_step(monkeypatch):
    monkeypatch.setattr(runs, "train", lambda *args, **kwargs: train(*args, **kwargs, checkpoint_every=2))


@pytest.fixture
def whole(toy, clip, tmp_path):
    """The folder of a run that nothing has stopped."""
    folder = tmp_path / "whole"
    run_job(toy.job(), clip, folder)
    return folder


def check_same(folder, whole):
    assert adapter_hash(folder) == adapter_hash(whole)
    assert [json.loads(line)["step"] for line in log_lines(folder)] == [1, 2, 3, 4, 5, 6]
    untimed = [[{**json.loads(line), "images_per_second": 0} for line in log_lines(one)] for one in (folder, whole)]
    assert untimed[0] == untimed[1]
    left, right = ({path.name for path in one.iterdir()} - {"notes.txt"} for one in (folder, whole))
    assert left == right


def test_what_a_run_leaves(whole):
    names = {RUN, SHOTS, METRICS, CHECKPOINT, MANIFEST, "adapter_model.safetensors", "roles.json", "README.md"}
    assert {path.name for path in whole.iterdir()} == names | {".dear.lock", "dear-folder.json"}
    assert json.loads((whole / RUN).read_text())["description"]["train"]["epochs"] == 2


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
def test_stopped_after_any_step_and_resumed_is_the_same(toy, clip, whole, tmp_path, step):
    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        run_job(toy.job(), clip, folder, on_step=at_step(step))
    run_job(toy.job(), clip, folder, if_exists="resume")
    check_same(folder, whole)


def test_stopped_at_every_step_in_turn(toy, clip, whole, tmp_path):
    folder = tmp_path / "run"
    for step in (1, 2, 3, 3, 4, 5, 6):
        with pytest.raises(KilledError):
            run_job(toy.job(), clip, folder, if_exists="resume", on_step=at_step(step))
    run_job(toy.job(), clip, folder, if_exists="resume")
    check_same(folder, whole)


def test_stopped_at_any_write_and_resumed_is_the_same(toy, clip, whole, tmp_path, monkeypatch):
    """The power goes off before or after any file is renamed into its place."""
    replace = Path.replace
    for after in (False, True):
        for number in range(1, 30):
            folder, left = tmp_path / f"run{after}{number}", [number]

            def stopping(self, target, left=left, after=after):
                left[0] -= 1
                if left[0] == 0 and not after:
                    raise KilledError
                replace(self, target)
                if left[0] == 0:
                    raise KilledError

            monkeypatch.setattr(Path, "replace", stopping)
            monkeypatch.setattr(Path, "unlink", lambda *args, **kwargs: None)  # the temporary file stays behind
            monkeypatch.setattr(os, "getpid", lambda: 2**22 - 1)  # a process that is gone when it is resumed
            try:
                run_job(toy.job(), clip, folder, workers=0)
            except KilledError:
                monkeypatch.undo()
                monkeypatch.setattr(runs, "train", lambda *a, **k: train(*a, **k, checkpoint_every=2))
                run_job(toy.job(), clip, folder, if_exists="resume", workers=0)
                check_same(folder, whole)
            else:
                monkeypatch.undo()
                break
        assert number > 8


@pytest.mark.parametrize("torn", [b'{"step": 6, "st', b"\xff\x00", b'{"step": 9}\n'])
def test_torn_lines_of_the_log_go(toy, clip, whole, tmp_path, torn):
    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        run_job(toy.job(), clip, folder, on_step=at_step(5))
    with (folder / METRICS).open("ab") as file:
        file.write(torn)
    run_job(toy.job(), clip, folder, if_exists="resume")
    check_same(folder, whole)


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_workers_change_nothing(toy, clip, whole, tmp_path, workers):
    run_job(toy.job(), clip, tmp_path / "run", workers=workers)
    check_same(tmp_path / "run", whole)


def test_resuming_a_finished_run_computes_nothing(toy, clip, whole):
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    toy.opened.clear()
    run_job(toy.job(), clip, whole, if_exists="resume")
    assert not toy.opened
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before


def test_a_folder_that_holds_something_is_refused(toy, clip, whole, tmp_path):
    before = adapter_hash(whole)
    with pytest.raises(OverwriteError, match="already contains a run: add resume=True to continue, or overwrite=True"):
        run_job(toy.job(seed=2), clip, whole)
    with pytest.raises(ConfigError, match="choose one of them"):
        fit(toy.dataset, clip, out=whole, resume=True, overwrite=True)
    assert adapter_hash(whole) == before
    (tmp_path / "file").touch()
    with pytest.raises(OverwriteError, match="is a file"):
        run_job(toy.job(), clip, tmp_path / "file")


def test_a_folder_that_is_no_run_cannot_be_resumed(toy, clip, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"precious")
    for how in ({"if_exists": "resume"}, {"if_exists": "overwrite"}, {}):
        with pytest.raises(OverwriteError, match="already contains other files: choose an empty folder"):
            run_job(toy.job(), clip, tmp_path, **how)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 0.5}, r"\(train.lr\)"),
        ({"seed": 2, "epochs": 3}, r"\(seed, settings.seed, train.epochs\)"),
        ({"cached_views": 2}, r"\(cached_views\)"),
        ({"method": "zero_shot"}, r"method, settings"),
    ],
)
def test_resuming_with_other_settings_names_them(toy, clip, whole, tmp_path, changes, named):
    with pytest.raises(ConfigError, match=f"was begun with other settings .*{named}"):
        run_job(toy.job(**changes), clip, whole, if_exists="resume", cache=tmp_path / "cache")


def test_the_old_run_stays_whole_until_its_successor_is(toy, clip, whole, tmp_path):
    (whole / "notes.txt").write_text("mine")
    before = adapter_hash(whole)
    with pytest.raises(KilledError):
        run_job(toy.job(seed=2), clip, whole, if_exists="overwrite", on_step=at_step(1))
    assert adapter_hash(whole) == before
    dear.load(whole, clip=clip)
    run_job(toy.job(seed=2), clip, whole, if_exists="resume")
    run_job(toy.job(seed=2), clip, tmp_path / "other")
    check_same(whole, tmp_path / "other")
    assert (whole / "notes.txt").read_text() == "mine"
    assert not (whole / ".next").exists()


@pytest.mark.parametrize("moves", [0, 1, 3, 5])
def test_killed_while_replacing_a_run_never_mixes_two(toy, clip, whole, tmp_path, monkeypatch, moves):
    run_job(toy.job(seed=2), clip, tmp_path / "other")
    replace, moved = Path.replace, []

    def stopping(self, target):
        if self.parent.name == ".next" and not self.name.endswith(".tmp"):
            if len(moved) == moves:
                raise KilledError
            moved.append(self.name)
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopping)
        with pytest.raises(KilledError):
            run_job(toy.job(seed=2), clip, whole, if_exists="overwrite")
    assert MANIFEST not in moved
    run_job(toy.job(seed=2), clip, whole, if_exists="resume")
    check_same(whole, tmp_path / "other")
    assert not (whole / ".next").exists()


def full(monkeypatch, when):
    """Let the disk be full for some files."""
    fsync = os.fsync

    def no_space(handle):
        if when(Path(f"/proc/self/fd/{handle}").readlink().name):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", no_space)


@pytest.mark.parametrize("name", [SHOTS, RUN, METRICS, CHECKPOINT, "adapter_model", MANIFEST, "README.md"])
def test_full_disk_is_one_sentence_and_loses_nothing(toy, clip, whole, tmp_path, monkeypatch, name):
    needs("/proc/self/fd")
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        full(patch, lambda file: name in file)
        with pytest.raises(DearError, match=r"No space left on device.*resume with resume=True") as error:
            run_job(toy.job(), clip, folder)
    assert "\n" not in str(error.value)
    assert str(folder if name in ("adapter_model", MANIFEST, "README.md") else folder / name) in str(error.value)
    run_job(toy.job(), clip, folder, if_exists="resume")
    check_same(folder, whole)


def test_full_disk_in_the_middle_of_the_log(toy, clip, whole, tmp_path, monkeypatch):
    needs("/dev/full")
    folder = tmp_path / "run"

    def full_after_four(metrics):
        if metrics["step"] == 4:
            (folder / METRICS).rename(folder / "kept")
            (folder / METRICS).symlink_to("/dev/full")

    with pytest.raises(TrainingError, match=r"metrics.jsonl cannot be written \(No space left on device\)"):
        run_job(toy.job(), clip, folder, on_step=full_after_four)
    (folder / METRICS).unlink()
    (folder / "kept").rename(folder / METRICS)
    run_job(toy.job(), clip, folder, if_exists="resume")
    check_same(folder, whole)


def test_a_folder_that_vanishes_is_one_sentence(toy, clip, tmp_path):
    folder = tmp_path / "run"

    def vanish(metrics):
        if metrics["step"] == 1:
            folder.rename(tmp_path / "elsewhere")

    with pytest.raises(DearError, match="cannot be written"):
        run_job(toy.job(), clip, folder, on_step=vanish)


def test_a_folder_that_may_not_be_written_is_one_sentence(toy, clip, tmp_path, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("dear.storage.files.tempfile.mkstemp", denied)
    with pytest.raises(DearError, match=r"run cannot be written \(Permission denied\)"):
        run_job(toy.job(), clip, tmp_path / "run")
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(DearError, match=r"run cannot be written \(Permission denied\)"):
        run_job(toy.job(), clip, tmp_path / "run", if_exists="resume")


def test_a_damaged_checkpoint_is_one_sentence(toy, clip, whole):
    (whole / CHECKPOINT).write_bytes(b"damaged")
    with pytest.raises(checkpoints.CheckpointError, match="is damaged or not a checkpoint of this method"):
        run_job(toy.job(), clip, whole, if_exists="resume")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a run record: it is not valid JSON"),
        ("{}", "is not a run record: its 'format' is not 'dear-run'"),
        ("[]", "is not a run record: its 'format' is not 'dear-run'"),
        ('{"format": "dear-run", "format_version": 9}', "has format 9, this version reads up to 2: upgrade dear-vlm"),
        ('{"format": "dear-run", "format_version": 2}', "is not a valid run record. description: Field required"),
        (
            '{"format": "dear-run", "format_version": 2, "description": {}}',
            "is not a valid run record. description.data: Field required",
        ),
    ],
)
def test_a_damaged_run_json_is_one_sentence(toy, clip, whole, text, sentence):
    (whole / RUN).write_text(text)
    with pytest.raises(DearError, match=rf"run.json {sentence}"):
        run_job(toy.job(), clip, whole, if_exists="resume")


def test_fit_is_a_run_in_one_call(toy, clip, tmp_path):
    options = {"shots": 2, "seed": 3, "train": TrainSettings(epochs=1, batch_size=3), "mask": "all_mixed"}
    model = fit(toy.dataset, clip, out=tmp_path / "run", cached_views=2, cache=tmp_path / "cache", **options)
    description = read_run(tmp_path / "run")["description"]
    assert (description["shots"], description["seed"], description["cached_views"]) == (2, 3, 2)
    assert model.classes.names == toy.dataset.class_names
    assert len(log_lines(tmp_path / "run")) == 2
    with pytest.raises(OverwriteError):
        fit(toy.dataset, clip, out=tmp_path / "run", **options)
    assert fit(toy.dataset, clip, **options).classes == model.classes
