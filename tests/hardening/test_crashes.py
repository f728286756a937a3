"""Crashes and full disks at every change of a folder: it is continued to the same content, and nothing is left behind.

The quick tests are about the parts that write; the slow ones about every kind of folder. `benchmarks/every_write.py`
prints how many faults there were, and `benchmarks/kill_storm.py` kills real commands.
"""

import gc
import os
import re
import socket
import time
import warnings
from pathlib import Path

import pytest
import torch

import dear
from dear.engine.feature_store import FeatureStore
from dear.errors import CacheError, ConfigError, FolderBusyError
from dear.options.parts import Quickstart
from dear.storage import locks
from dear.storage.files import whole_folder, write_atomic
from dear.storage.locks import LOCK, locked
from dear.workflows import quickstart
from faults import age, crashing, filling, names_below
from folder_kinds import Kinds
from helpers import make_photos
from needs import needs


def write_folder(folder: Path, content: str) -> None:
    with whole_folder(folder) as draft:
        for name in ("a", "b"):
            write_atomic(draft / name, content.encode())


def content_of(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("before", [False, True], ids=["new", "in place of another"])
@pytest.mark.parametrize("what", ["before", "after", "full"])
def test_a_folder_is_whole_after_every_fault(tmp_path, before, what):
    """Export, converted weights and search lists are written this way; a kill left temporary folders for ever."""
    needs("/proc/self/fd")
    number, ended = 0, None
    while ended is None or ended.how != "done" or ended.changes >= number:
        number += 1
        place = tmp_path / str(number)
        place.mkdir()
        if before:
            write_folder(place / "out", "old")
        if what == "full":
            ended = filling(lambda place=place: write_folder(place / "out", "new"), place, number)
        else:
            ended = crashing(
                lambda place=place: write_folder(place / "out", "new"), place, number, after=what == "after"
            )
        assert ended.how in ("done", "crashed", "failed"), ended
        if (place / "out").exists():
            assert content_of(place / "out") in ({"old"} if before else set(), {"new"})
        age(place)
        write_folder(place / "out", "again")
        assert content_of(place / "out") == {"again"}
        assert names_below(place) == {"out", "out/a", "out/b"}
        assert number < 60
    assert number > 8


def test_a_folder_behind_a_link_is_filled(tmp_path):
    """The link was replaced by a folder, and the disk that it leads to stayed empty."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    write_folder(tmp_path / "out", "new")
    assert (tmp_path / "out").is_symlink()
    assert content_of(tmp_path / "disk") == {"new"}


def test_the_old_folder_comes_back_if_the_new_one_cannot_be_put_there(tmp_path, monkeypatch):
    """An export that was replaced was lost if the second rename failed."""
    write_folder(tmp_path / "out", "old")
    real = os.rename

    def refused(source, target, **more):
        if Path(target) == tmp_path / "out" and Path(source).parent == tmp_path:
            raise OSError(28, "No space left on device")
        real(source, target, **more)

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(OSError, match="No space"):
        write_folder(tmp_path / "out", "new")
    assert content_of(tmp_path / "out") == {"old"}
    assert names_below(tmp_path) == {"out", "out/a", "out/b"}


def test_an_old_folder_that_a_crash_has_set_aside_is_put_back(tmp_path):
    write_folder(tmp_path / "out", "old")
    aside = tmp_path / ".out.abcd1234.tmp"
    aside.mkdir()
    (tmp_path / "out").rename(aside / "out")

    def stopped():
        with whole_folder(tmp_path / "out"):
            assert content_of(tmp_path / "out") == {"old"}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert content_of(tmp_path / "out") == {"old"}
    assert names_below(tmp_path) == {"out", "out/a", "out/b"}


def test_a_cache_removes_what_killed_processes_left_in_it(tmp_path):
    """Segments have random names, so the next one that was written did not find what was left of others."""
    store = FeatureStore.open(tmp_path, {"of": "rows"}, (2,))
    left, fresh, mine = (
        store.folder / name
        for name in (".segment-1.safetensors.abcdefgh.tmp", ".segment-2.safetensors.12345678.tmp", ".mine")
    )
    for path in (left, fresh, mine):
        path.write_text("half")
    os.utime(left, (1, 1))
    FeatureStore.open(tmp_path, {"of": "rows"}, (2,)).put(["one"], torch.zeros(1, 2))
    assert [path.exists() for path in (left, fresh, mine)] == [False, True, True]


def test_writing_files_of_many_names_keeps_nothing_in_memory(tmp_path):
    """A pattern per name stayed in caches of Python: an index that is updated all day grew by megabytes."""

    def patterns():
        gc.collect()
        return sum(type(one) is re.Pattern for one in gc.get_objects())

    write_atomic(tmp_path / "first", b"")
    before = patterns()
    for number in range(40):
        write_atomic(tmp_path / f"segment-{number}.safetensors", b"")
    assert patterns() == before


def test_search_lists_leave_nothing_behind_and_refuse_in_a_sentence(model, tmp_path, monkeypatch):
    needs("faiss")
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    dear.index_images(make_photos(tmp_path / "photos", ["ant"], 3), tmp_path / "index", clip=model.clip, kinds=["cls"])
    left = tmp_path / "cache" / "search" / ".0123.abcdefgh.tmp"
    left.mkdir(parents=True)
    (left / "lists.faiss").write_text("half")
    os.utime(left, (1, 1))
    full = OSError(28, "full")
    monkeypatch.setattr("dear.retrieval.build_lists.ListsRecord.write", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(CacheError, match=r"cannot be written \(full\): make room, or set DEAR_CACHE"):
        dear.build_search(tmp_path / "index", kinds=["cls"])
    assert not list((tmp_path / "cache" / "search").iterdir())


def test_the_next_holder_does_not_remove_what_a_running_process_writes(tmp_path):
    """The page of a comparison is written without the lock; whoever resumed at that moment removed it half written."""
    folder, names = tmp_path / "grid", []

    def content():
        names.extend(path.name for path in folder.glob(".compare.html.*.tmp"))
        with locked(folder, "grid"):
            yield b"whole"

    folder.mkdir()
    write_atomic(folder / "compare.html", content())
    assert len(names) == 1
    assert (folder / "compare.html").read_bytes() == b"whole"
    dead, old = folder / ".compare.html.999999998.abcdefgh.tmp", folder / f".compare.html.{os.getpid()}.abcdefgh.tmp"
    for path in (dead, old):
        path.write_text("half")
    os.utime(old, (1, 1))
    with locked(folder, "grid"):
        pass
    assert not dead.exists()
    assert not old.exists()


OTHER = '{"host": "elsewhere", "pid": 7, "since": "2026-11-17T00:00:00+00:00"}'


def test_a_clock_that_is_ahead_does_not_end_the_lock_of_another_machine(tmp_path, monkeypatch):
    """The age of a heartbeat was the difference of two machines' clocks: one a minute ahead took living locks over."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK).write_text(OTHER)
    now = time.time()
    for jump in (-86400, 0, 86400):
        monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
        with pytest.raises(FolderBusyError, match="process 7 on elsewhere"), locked(folder, "run"):
            pass
    assert (folder / LOCK).read_text() == OTHER
    assert names_below(folder) == {LOCK}


class After:
    """An event that is set after some heartbeats."""

    def __init__(self, beats):
        self.beats = beats

    def wait(self, _):
        self.beats -= 1
        return self.beats < 0


def test_who_comes_back_from_the_dead_does_not_end_the_lock_of_its_successor(tmp_path):
    """A process that was stopped for minutes went on, and at its end removed the signature of its successor."""
    lock = tmp_path / "run" / LOCK

    def comes_back():
        with locked(tmp_path / "run", "run"):
            os.utime(lock, (1, 1))
            locks._beat(lock, After(1))
            assert lock.stat().st_mtime > 1
            lock.write_text(OTHER)  # another machine has taken it over meanwhile
            os.utime(lock, (1, 1))
            locks._beat(lock, After(1))
            assert lock.stat().st_mtime == 1  # no heartbeat for somebody else

    with pytest.raises(FolderBusyError, match="was taken over by process 7 on elsewhere"):
        comes_back()
    assert lock.read_text() == OTHER
    assert socket.gethostname() not in lock.read_text()


def test_a_quickstart_that_was_killed_at_once_can_be_repeated(tmp_path, monkeypatch):
    """It said that its own folder contains something else; `dear app` then could not be opened any more."""
    out = tmp_path / "quickstart"
    with locked(out, "run"):
        (out / ".run.json.abcdefgh.tmp").write_text("half")
    monkeypatch.setattr(quickstart, "train_run", lambda options, **_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        quickstart.run_quickstart(Quickstart(out=out))
    (out / "run.json").write_text("{}")
    with pytest.raises((ConfigError, dear.DearError)):
        quickstart.run_quickstart(Quickstart(out=out))
    with locked(tmp_path / "grid", "grid"):
        pass
    with pytest.raises(ConfigError, match="contains something else"):
        quickstart.run_quickstart(Quickstart(out=tmp_path / "grid"))


KINDS = ("run", "grid", "comparison", "auto", "index", "discovery", "export", "converted", "table", "sync", "cache")
KINDS += ("lists", "calibrated")


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_folder_survives_every_fault(tmp_path_factory, monkeypatch, name):
    needs("/proc/self/fd"), needs("faiss"), needs("onnx")
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
    from every_write import measure

    place = tmp_path_factory.mktemp(name)
    kinds = Kinds(place / "shared")
    with kinds.ready(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mode in [mode for mode in ("new", "overwrite") if mode in kinds.every()[name].modes]:
            assert measure(name, kinds.every()[name], place / mode, mode)["flaws"] == {}
