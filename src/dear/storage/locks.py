"""Folders of ours: each bears a marker that says what it is, and one process at a time writes in it.

Only what is ours by the marker is ever removed. The lock is the operating system's; its holder also leaves its host,
process and a heartbeat in the lock file, so that a process on another machine, which may not see that lock on a shared
disk, is refused as well, and can say by whom.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from dear.errors import ConfigError, FolderBusyError, OverwriteError, option
from dear.storage.documents import Document, OpenRecord
from dear.storage.files import MEGABYTE, read_regular, shown

Kind = Literal["run", "grid", "paper", "index", "discovery", "cache"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MARKER, LOCK = "dear-folder.json", ".dear.lock"
BEAT, STALE = 10.0, 60.0
"""Seconds between heartbeats, and after which a holder on another machine counts as gone."""
TRIES, PAUSE = 40, 0.05
"""How often, and after how many seconds, a lock is tried again whose holder has not signed."""
TEMPORARY = ".*.tmp"


class Marker(Document, OpenRecord):
    """The document that marks a folder as ours and says what it is."""

    format = "dear-folder"
    version = 1
    noun = "folder marker"
    error = ConfigError

    kind: Kind


def kind_of(folder: Path) -> Kind | None:
    """What a folder of ours is, by its marker; None for any other folder."""
    with suppress(OSError, ConfigError):
        return Marker.read(folder / MARKER).kind
    return None


def check_ours(folder: Path, kind: Kind, *, resume: bool, overwrite: bool) -> None:
    """Refuse an output folder that holds something, unless it is of this kind and one says what to do with it."""
    if resume and overwrite:
        raise ConfigError(
            f"{option(resume=True)} continues and {option(overwrite=True)} starts over: choose one of them."
        )
    if folder.exists() and not folder.is_dir():
        raise OverwriteError(f"{folder} is a file: give a folder.")
    if not folder.is_dir() or not _content(folder):
        return
    found = kind_of(folder)
    if found == kind:
        if not resume and not overwrite:
            raise OverwriteError(
                f"{folder} holds a {kind}: add {option(resume=True)} to continue, or {option(overwrite=True)} to start "
                f"over."
            )
        return
    what = f"a {found}" if found else "files that are not ours"
    raise OverwriteError(f"{folder} holds {what} and no {kind}: choose another folder.")


def _content(folder: Path) -> list[Path]:
    """What a folder holds besides our marker, lock and leftovers."""
    ours = {MARKER, LOCK}
    return [path for path in folder.iterdir() if path.name not in ours and not path.match(TEMPORARY)]


@contextmanager
def held(folder: Path, kind: Kind) -> Iterator[None]:
    """Hold a folder: no other process writes in it meanwhile. It is made and marked if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OverwriteError(f"The folder {folder} cannot be made ({error.strerror}).") from None
    path = folder / LOCK
    if path.exists() and not path.is_file():
        raise OverwriteError(f"{path} is not a regular file: remove it.")
    lock = FileLock(path, timeout=0, is_singleton=False)
    _acquire(lock, folder, kind, path)
    stop = threading.Event()
    try:
        _refuse_other_machine(folder, kind, path)
        _mark(folder, kind, path)
        threading.Thread(target=_beat, args=(path, stop), daemon=True).start()
        yield
    finally:
        stop.set()
        with suppress(OSError):
            path.write_text("")
        lock.release()


def _mark(folder: Path, kind: Kind, lock: Path) -> None:
    """Sign the lock, remove what a killed process left, and mark the folder if it is new."""
    try:
        _sign(lock)
        remove_leftovers(folder)
        if kind_of(folder) is None:
            Marker(kind=kind).write(folder / MARKER)
    except OSError as error:
        raise OverwriteError(
            f"The folder {folder} cannot be written ({error.strerror}): make room or check its permissions, and resume "
            f"with {option(resume=True)}."
        ) from None


def mark(folder: Path, kind: Kind) -> None:
    """Make a folder that several processes may fill at once, and mark it if it is new; one with content stays as it is.

    For caches: whoever writes there appends to files of its own, so nobody has to hold the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists() and not _content(folder):
        Marker(kind=kind).write(folder / MARKER)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed process left; called by the holder only."""
    for path in folder.glob(TEMPORARY):
        if path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def remove_ours(folder: Path, names: Iterable[str]) -> None:
    """Remove named files and folders of a folder that bears our marker."""
    if kind_of(folder) is None:
        raise OverwriteError(f"{folder} is not a folder of ours, so nothing in it is removed.")
    for name in names:
        path = folder / name
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)
        elif path.is_dir():
            shutil.rmtree(path)


def _sign(path: Path) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}))


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        with suppress(OSError):
            os.utime(path)


def _acquire(lock: FileLock, folder: Path, kind: Kind, path: Path) -> None:
    """Take the lock, or say who has it; a holder that has not signed has just begun or is about to end."""
    for _ in range(TRIES):
        try:
            lock.acquire()
            return
        except Timeout:
            if holder := _holder(path):
                raise FolderBusyError(_busy(folder, kind, holder)) from None
        except (OSError, NotImplementedError) as error:
            raise OverwriteError(f"The folder {folder} cannot be written ({error}).") from None
        time.sleep(PAUSE)
    raise FolderBusyError(_busy(folder, kind, {}))


def _holder(path: Path) -> dict[str, Any]:
    """Who signed a lock; {} if nobody did, or a process of this machine that is no more."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(path, most=MEGABYTE))
        if isinstance(found, dict) and not _is_gone(found):
            return found
    return {}


def _is_gone(holder: dict[str, Any]) -> bool:
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or type(pid) is not int or pid < 1 or os.name != "posix":
        return False
    try:
        os.kill(pid, 0)  # asks whether it lives, and does nothing to it
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    return False


def _refuse_other_machine(folder: Path, kind: Kind, path: Path) -> None:
    """Refuse a lock that a living process of another machine holds, where locks do not reach across machines."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(path, most=MEGABYTE))
        elsewhere = isinstance(found, dict) and found.get("host") not in (None, socket.gethostname())
        if elsewhere and time.time() - path.stat().st_mtime < STALE:
            raise FolderBusyError(_busy(folder, kind, found))


def _busy(folder: Path, kind: Kind, holder: dict[str, Any]) -> str:
    known = {"host", "pid", "since"} <= holder.keys()
    told = {name: shown(value) for name, value in holder.items()}
    who = f"process {told['pid']} on {told['host']} since {told['since']}" if known else "another process"
    return f"The {kind} in {folder} is being written by {who}: wait for it, stop it, or choose another folder."
