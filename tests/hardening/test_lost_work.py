"""Nothing acknowledged is lost, nothing is mixed up, whoever else writes and whatever ends a process."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import dear
from dear.engine.checkpoint import CheckpointError
from dear.engine.run import run_job
from dear.engine.run_folder import CHECKPOINT
from dear.engine.settings import TrainSettings
from dear.errors import FolderBusyError, OverwriteError, TrainingError
from dear.retrieval.index import read_index
from dear.retrieval.update import update_index
from dear.storage.files import write_atomic
from dear.storage.locks import LOCK, locked
from helpers import heed_interrupts, make_photos
from small_runs import grid_on, job_on
from toys import adapter_hash


@pytest.mark.covers("D1", "D4")
@pytest.mark.parametrize("how", [{"overwrite": True}, {"resume": True}])
def test_a_grid_leaves_folders_alone_that_are_not_its_own(photos, tiny_folders, tmp_path, how):
    out = tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    (out / "runs" / "mine.txt").write_text("mine")
    (out / "table.csv").write_text("mine")
    with pytest.raises(OverwriteError, match="already contains other files"):
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
        patch.setattr("dear.evaluation.executors.run_cell", killed)
        with pytest.raises(KeyboardInterrupt):
            grid_on(photos, tiny_folders, out, overwrite=True)
    assert (out / ".old" / "table.csv").read_bytes() == before
    grid_on(photos, tiny_folders, out, resume=True)
    assert not (out / ".old").exists()


@pytest.mark.covers("D2")
def test_a_paper_leaves_tables_and_figures_alone_that_are_not_its_own(tmp_path):
    from dear.paper.run import make_paper
    from dear.paper.survey import PaperRequest

    for name in ("tables", "figures"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("mine")
    with pytest.raises(OverwriteError, match="already contains other files"):
        make_paper(PaperRequest(tmp_path), if_exists="overwrite")
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


@pytest.mark.covers("D1", "W3")
def test_a_discovery_is_marked_held_and_refuses_other_folders(clip, photos, tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OverwriteError, match="already contains other files"):
        dear.discover_roles(clip, photos, out=tmp_path, overwrite=True)
    monkeypatch.setattr("dear.workflows.discover.load_encoder", lambda name: None)
    busy = pytest.raises(FolderBusyError, match=f"is being written by process {os.getpid()} on")
    with locked(tmp_path / "roles", "discovery"), busy:
        dear.discover_roles(clip, photos, out=tmp_path / "roles")


@pytest.mark.covers("D6")
def test_the_old_adapter_works_until_the_new_one_is_whole(clip, photos, tmp_path):
    run_job(job_on(photos), clip, tmp_path / "run")
    before = adapter_hash(tmp_path / "run")
    wild = replace(job_on(photos, seed=2), train=TrainSettings(epochs=3, batch_size=2, lr=1e30, warmup_epochs=0))
    with pytest.raises(TrainingError, match=r"not finite|infinite"):
        run_job(wild, clip, tmp_path / "run", if_exists="overwrite")
    assert adapter_hash(tmp_path / "run") == before
    dear.load(tmp_path / "run", clip).predict([photos / "ant" / "0.png"])


@pytest.mark.covers("W3")
def test_a_checkpoint_belongs_to_its_run(clip, photos, tmp_path):
    for seed in (1, 2):
        run_job(job_on(photos, seed), clip, tmp_path / str(seed))
    shutil.copy(tmp_path / "2" / CHECKPOINT, tmp_path / "1" / CHECKPOINT)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        run_job(job_on(photos, 1), clip, tmp_path / "1", if_exists="resume")


def hold(folder, ready, done):
    with locked(Path(folder), "run"):
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
        locked(tmp_path / "run", "run"),
    ):
        pass
    done.set()
    first.join(20)
    with locked(tmp_path / "run", "run"):
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
    with locked(tmp_path / "run", "run"):
        pass


@pytest.mark.covers("W3", "W10")
@pytest.mark.parametrize(
    "signed", ["", '{"host": "HOST", "pid": 4194305, "since": "before"}'], ids=["not yet", "by the dead"]
)
def test_a_holder_that_has_not_signed_is_waited_for(tmp_path, signed, monkeypatch):
    monkeypatch.setattr("dear.storage.locks.TRIES", 3)
    with locked(tmp_path / "run", "run"):
        (tmp_path / "run" / LOCK).write_text(signed.replace("HOST", socket.gethostname()))
        with (
            pytest.raises(FolderBusyError, match="is being written by another process"),
            locked(tmp_path / "run", "run"),
        ):
            pass
    with locked(tmp_path / "run", "run"):
        pass


@pytest.mark.covers("W3")
def test_a_living_holder_on_another_machine_is_believed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    told = {"host": "elsewhere", "pid": 7, "since": "2026-11-17T00:00:00+00:00"}
    (folder / LOCK).write_text(json.dumps(told))
    with pytest.raises(FolderBusyError, match="process 7 on elsewhere since 2026-11-17"), locked(folder, "run"):
        pass
    (folder / LOCK).write_text(json.dumps(told))
    os.utime(folder / LOCK, (1, 1))  # no heartbeat for years
    with locked(folder, "run"):
        pass


@pytest.mark.covers("L2")
def test_what_a_kill_leaves_beside_any_output_is_removed_by_the_next_writer(tmp_path):
    left, fresh, mine = (tmp_path / name for name in (".a.html.abcdefgh.tmp", ".a.html.12345678.tmp", ".a.html.tmp"))
    for path in (left, fresh, mine):
        path.write_text("half")
    os.utime(left, (1, 1))
    write_atomic(tmp_path / "a.html", b"whole")
    assert [path.exists() for path in (left, fresh, mine)] == [False, True, True]


@pytest.mark.covers("L2")
def test_what_a_kill_leaves_is_removed_by_the_next_holder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".run.json.abc.tmp").write_text("half")
    (folder / ".mine").write_text("mine")
    with locked(folder, "run"):
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
    deadline = time.monotonic() + 300  # they load the library first
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


EARLY = """
import sys
from importlib.abc import MetaPathFinder

class Interrupt(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == during:
            raise KeyboardInterrupt

_, during = sys.argv
sys.argv[1:] = ["ls", "methods"]
sys.meta_path.insert(0, Interrupt())
from dear.entry import main
main()
"""


@pytest.mark.covers("U6")
@pytest.mark.parametrize("during", ["dear.cli", "typer", "dear.cli.data", "dear.methods.registry", "dear.errors"])
def test_an_interrupt_while_loading_is_one_line(during):
    """Raised at the moments that a person hits by chance: while the commands, and then what one needs, are loaded."""
    done = subprocess.run([sys.executable, "-c", EARLY, during], capture_output=True, text=True, timeout=120)
    assert done.returncode == 130
    assert done.stderr.strip().startswith("dear: stopped")
    assert len(done.stderr.strip().splitlines()) == 1
