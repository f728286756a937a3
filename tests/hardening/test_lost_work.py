"""Nothing acknowledged is lost, nothing is mixed up, whoever else writes and whatever ends a process."""

import csv
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import dear
from cells import cell as made_up_cell
from dear.datasets import open_dataset
from dear.engine.checkpoint import CheckpointError
from dear.engine.job import make_job
from dear.engine.run import CHECKPOINT, run_job
from dear.engine.settings import TrainSettings
from dear.engine.states import row_key
from dear.errors import ConfigError, DataError, DearError, FolderBusyError, OverwriteError, TrainingError
from dear.evaluation.cells import make_cells
from dear.evaluation.evaluate import evaluate_items
from dear.evaluation.grid import Setting, run_grid
from dear.evaluation.tables import to_csv
from dear.evaluation.tested import data_of_run
from dear.folders import LOCK, held
from dear.retrieval.index import read_index, update_index
from helpers import heed_interrupts, make_photos
from toys import Toy, adapter_hash

FEW = TrainSettings(epochs=1, batch_size=2)


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos", ["ant", "bee", "cow", "dog"], 4)


def job_on(photos, seed=1, **more):
    return make_job(open_dataset(photos), shots=2, seed=seed, config={"mask": "all_mixed"}, train=FEW, **more)


def grid_on(photos, tiny_folders, out, **how):
    setting = Setting(out=out, clip=f"local-dir:{tiny_folders['shallow']}", pretrained="random", train=FEW, workers=1)
    cells = make_cells("few-shot", [str(photos)], methods=["zero_shot"], seeds=[1], shots=[1])
    return run_grid(cells, setting, **how)


@pytest.mark.covers("D1", "D4")
@pytest.mark.parametrize("how", [{"overwrite": True}, {"resume": True}])
def test_a_grid_leaves_folders_alone_that_are_not_its_own(photos, tiny_folders, tmp_path, how):
    out = tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    (out / "runs" / "mine.txt").write_text("mine")
    (out / "table.csv").write_text("mine")
    with pytest.raises(OverwriteError, match="holds files that are not ours and no grid"):
        grid_on(photos, tiny_folders, out, **how)
    assert (out / "runs" / "mine.txt").read_text() == (out / "table.csv").read_text() == "mine"


@pytest.mark.covers("D1")
def test_a_grid_is_replaced_only_by_a_whole_one(photos, tiny_folders, tmp_path, monkeypatch):
    out = tmp_path / "out"
    grid_on(photos, tiny_folders, out)
    before = (out / "table.csv").read_bytes()

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dear.evaluation.grid.run_cell", killed)
        with pytest.raises(KeyboardInterrupt):
            grid_on(photos, tiny_folders, out, overwrite=True)
    assert (out / ".old" / "table.csv").read_bytes() == before
    grid_on(photos, tiny_folders, out, resume=True)
    assert not (out / ".old").exists()


@pytest.mark.covers("D2")
def test_a_paper_leaves_tables_and_figures_alone_that_are_not_its_own(tmp_path):
    from dear.paper.run import Order, run_paper

    for name in ("tables", "figures"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("mine")
    with pytest.raises(OverwriteError, match="holds files that are not ours and no paper"):
        run_paper(Order(tmp_path), resume=False, overwrite=True)
    assert (tmp_path / "tables" / "mine.txt").exists()
    assert (tmp_path / "figures" / "mine.txt").exists()


@pytest.mark.covers("D5")
def test_the_index_of_another_folder_is_not_replaced(model, photos, tmp_path):
    other = make_photos(tmp_path / "other", ["x"], 2)
    update_index(model, photos, tmp_path / "index")
    with pytest.raises(OverwriteError, match=r"is the index of .*photos"):
        update_index(model, other, tmp_path / "index")
    assert len(read_index(tmp_path / "index").images) == 16
    assert len(update_index(model, other, tmp_path / "index", overwrite=True)[0].images) == 2


@pytest.mark.covers("D6")
def test_the_old_adapter_works_until_the_new_one_is_whole(clip, photos, tmp_path):
    run_job(job_on(photos), clip, tmp_path / "run")
    before = adapter_hash(tmp_path / "run")
    wild = replace(job_on(photos, seed=2), train=TrainSettings(epochs=3, batch_size=2, lr=1e30, warmup_epochs=0))
    with pytest.raises(TrainingError, match=r"not finite|infinite"):
        run_job(wild, clip, tmp_path / "run", overwrite=True)
    assert adapter_hash(tmp_path / "run") == before
    dear.load(tmp_path / "run", clip).predict([photos / "ant" / "0.png"])


@pytest.mark.covers("W4")
def test_nothing_infinite_is_trained(clip, photos, tmp_path):
    wild = replace(job_on(photos), train=TrainSettings(epochs=3, batch_size=2, lr=1e30, warmup_epochs=0))
    with pytest.raises(TrainingError, match=r"not finite|infinite"):
        run_job(wild, clip, tmp_path / "run")
    assert not (tmp_path / "run" / "adapter_config.json").exists()


@pytest.mark.covers("W1")
def test_two_folders_of_one_name_share_no_rows(tmp_path):
    places = [make_photos(tmp_path / part / "photos", ["a", "b"], 1) for part in ("one", "two")]
    Image.new("RGB", (36, 40), "red").save(places[1] / "a" / "0.png")
    for name in ("a/0.png", "b/0.png"):
        os.utime(places[0] / name, (1, 1))
        shutil.copy(places[0] / name, places[1] / name)
        os.utime(places[1] / name, (1, 1))
    one, two = map(open_dataset, places)
    assert one.name == two.name
    assert row_key(one, one.train[0]) != row_key(two, two.train[0])


@pytest.mark.covers("W2")
def test_a_run_is_not_resumed_on_replaced_images(clip, photos, tmp_path):
    run_job(job_on(photos), clip, tmp_path / "run")
    item = job_on(photos).items[0]
    before = (photos / item.id).stat()
    Image.new("RGB", (36, 40), "white").save(photos / item.id)
    os.utime(photos / item.id, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ConfigError, match="other training images under the same names"):
        run_job(job_on(photos), clip, tmp_path / "run", resume=True)


@pytest.mark.covers("W2")
def test_copied_images_are_the_same_images(clip, photos, tmp_path):
    run_job(job_on(photos), clip, tmp_path / "run")
    for path in photos.rglob("*.png"):
        os.utime(path)
    run_job(job_on(photos), clip, tmp_path / "run", resume=True)


@pytest.mark.covers("W3")
def test_a_checkpoint_belongs_to_its_run(clip, photos, tmp_path):
    for seed in (1, 2):
        run_job(job_on(photos, seed), clip, tmp_path / str(seed))
    shutil.copy(tmp_path / "2" / CHECKPOINT, tmp_path / "1" / CHECKPOINT)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        run_job(job_on(photos, 1), clip, tmp_path / "1", resume=True)


def hold(folder, ready, done):
    with held(Path(folder), "run"):
        ready.set()
        done.wait(20)


@pytest.mark.covers("W3", "W10")
def test_a_second_writer_is_told_who_the_first_is(tmp_path):
    fork = multiprocessing.get_context("fork")
    ready, done = fork.Event(), fork.Event()
    first = fork.Process(target=hold, args=(str(tmp_path / "run"), ready, done))
    first.start()
    assert ready.wait(20)
    with (
        pytest.raises(FolderBusyError, match=rf"process {first.pid} on \S+ since \d{{4}}-"),
        held(tmp_path / "run", "run"),
    ):
        pass
    done.set()
    first.join(20)
    with held(tmp_path / "run", "run"):
        pass


@pytest.mark.covers("W3")
def test_a_killed_holder_leaves_no_lock(tmp_path):
    fork = multiprocessing.get_context("fork")
    ready, done = fork.Event(), fork.Event()
    first = fork.Process(target=hold, args=(str(tmp_path / "run"), ready, done))
    first.start()
    assert ready.wait(20)
    first.kill()
    first.join(20)
    with held(tmp_path / "run", "run"):
        pass


@pytest.mark.covers("W3")
def test_a_living_holder_on_another_machine_is_believed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    told = {"host": "elsewhere", "pid": 7, "since": "2026-11-17T00:00:00+00:00"}
    (folder / LOCK).write_text(json.dumps(told))
    with pytest.raises(FolderBusyError, match="process 7 on elsewhere since 2026-11-17"), held(folder, "run"):
        pass
    (folder / LOCK).write_text(json.dumps(told))
    os.utime(folder / LOCK, (1, 1))  # no heartbeat for years
    with held(folder, "run"):
        pass


@pytest.mark.covers("W6")
def test_learned_images_are_not_tested_under_another_name(clip, photos, tmp_path):
    job = job_on(photos)
    run_job(job, clip, tmp_path / "run")
    elsewhere = shutil.copytree(photos, tmp_path / "elsewhere" / "copy")
    for path in sorted(elsewhere.rglob("*.png")):
        path.rename(path.with_name(f"renamed-{path.name}"))
    data = data_of_run(tmp_path / "run", str(elsewhere))
    assert len(data.items()) == 16 - len(job.items)


@pytest.mark.covers("W8")
def test_data_that_vanishes_stops_the_training(clip, tmp_path):
    toy = Toy()

    def vanish(metrics):
        if metrics["step"] == 3:
            toy.bad = {item.id for item in toy.dataset.train}

    with pytest.raises(DataError, match="None of the 9 training images could be read in epoch 2"):
        run_job(toy.job(), clip, tmp_path / "run", on_step=vanish, workers=0)
    assert not (tmp_path / "run" / "adapter_config.json").exists()


@pytest.mark.covers("W9")
def test_flipped_bytes_of_an_index_are_seen(model, photos, tmp_path):
    update_index(model, photos, tmp_path / "index")
    for path in ((tmp_path / "index" / "index.json"), *(tmp_path / "index").glob("features-*")):
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[-20] ^= 1
        path.write_bytes(bytes(flipped))
        with pytest.raises(DataError):
            read_index(tmp_path / "index")
        path.write_bytes(whole)
    read_index(tmp_path / "index")


@pytest.mark.covers("W9")
def test_flipped_bytes_of_moments_are_seen(clip, photos, tmp_path):
    from dear.data.images import folder_images
    from dear.roles.moments import collect_moments

    collect_moments(clip, folder_images(photos), first_layer=5, checkpoint=tmp_path)
    path = tmp_path / "moments.safetensors"
    flipped = bytearray(path.read_bytes())
    flipped[-20] ^= 1
    path.write_bytes(bytes(flipped))
    with pytest.raises(DearError, match="is damaged"):
        collect_moments(clip, folder_images(photos), first_layer=5, checkpoint=tmp_path)


@pytest.mark.covers("W11")
def test_classes_in_another_order_are_not_scored(model, photos):
    dataset = open_dataset(photos)
    wrong = model.for_classes(dataset.class_names[::-1])
    with pytest.raises(ConfigError, match="are not the all classes of photos in their order"):
        evaluate_items(wrong, dataset, dataset.train)


@pytest.mark.covers("W11")
@pytest.mark.parametrize("name", ["a <END_OF_TEXT> b", "<start_of_text>"])
def test_special_tokens_are_no_class_names(model, name):
    with pytest.raises(DearError, match="must be words"):
        model.for_classes(["cat", name])


@pytest.mark.covers("W11", "C3")
@pytest.mark.parametrize("value", [True, [1], {"a": 1}, "x"])
def test_settings_of_odd_types_are_refused_in_one_sentence(clip, value):
    with pytest.raises(ConfigError, match="threshold"):
        dear.DeAR(clip, mask="all_mixed", threshold=value)


@pytest.mark.covers("C3")
def test_a_grid_takes_settings_of_any_type_to_the_check(photos):
    cells = make_cells(
        "few-shot", [str(photos)], methods=["dear"], seeds=[1], shots=[1], choices={"beta": [[1], [1], {"a": 2}]}
    )
    assert [cell.variant for cell in cells] == ["beta=[1]", 'beta={"a": 2}']


@pytest.mark.covers("C6")
def test_absurd_amounts_are_refused(clip):
    for changes in ({"text_tokens": 10**9}, {"tokens_per_attribute": 10**9}, {"projection_rank": 10**9}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            dear.DeAR(clip, mask="all_mixed", **changes)
    with pytest.raises(DearError, match="cannot be used on this machine"):
        dear.load_clip("world", device="meta")


@pytest.mark.covers("U3")
def test_a_name_is_no_formula():
    rows = list(csv.DictReader(io.StringIO(to_csv([made_up_cell(data="=cmd|' /C calc'!A0")]))))
    assert rows[0]["data"].startswith("'=cmd")
    assert float(rows[0]["base"]) == 80.0


@pytest.mark.covers("U4")
def test_a_run_inside_the_data_folder_is_refused(clip, photos):
    with pytest.raises(ConfigError, match=r"lies inside the data folder .* and would become a class"):
        run_job(job_on(photos), clip, photos / "run")
    assert not (photos / "run").exists()


@pytest.mark.covers("U5")
def test_a_novel_class_that_is_no_prompt_is_found_before_training(clip, photos, tmp_path):
    (photos / "dog").rename(photos / ("z " * 120).strip())
    with pytest.raises(DearError, match="do not fit the text tower"):
        run_job(job_on(photos, half="base"), clip, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.covers("L2")
def test_what_a_kill_leaves_is_removed_by_the_next_holder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".run.json.abc.tmp").write_text("half")
    (folder / ".mine").write_text("mine")
    with held(folder, "run"):
        pass
    assert not (folder / ".run.json.abc.tmp").exists()
    assert (folder / ".mine").exists()


ENDLESS = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import os
from dear.evaluation.processes import begin_process

def work(path):
    open(path, "w").write(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    begin = {"initializer": begin_process, "initargs": (1, os.getpid())}
    pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"), **begin)
    for name in sys.argv[1:]:
        pool.submit(work, name)
    time.sleep(600)
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.covers("L1")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_children_end_with_their_parent(tmp_path, how):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    marks = [tmp_path / name for name in ("1", "2")]
    parent = subprocess.Popen([sys.executable, str(script), *map(str, marks)], preexec_fn=heed_interrupts)
    deadline = time.monotonic() + 60
    while not all(mark.exists() and mark.read_text() for mark in marks):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = [int(mark.read_text()) for mark in marks]
    parent.send_signal(how)
    parent.wait(20)
    deadline = time.monotonic() + 5
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, children))


@pytest.mark.covers("W5")
def test_other_threads_do_not_see_this_one_s_switch(model, clip):
    from concurrent.futures import ThreadPoolExecutor

    images = torch.randn(1, 3, clip.geometry.image_size, clip.geometry.image_size)
    with torch.inference_mode():
        mine = model(images).logits
    with model.disabled(), ThreadPoolExecutor(1) as pool:

        def elsewhere():
            with torch.inference_mode():
                return model(images).logits

        assert torch.equal(pool.submit(elsewhere).result(), mine)
