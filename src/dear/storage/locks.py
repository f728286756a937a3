"""Output folders: each has a marker that says what it is, and one process at a time writes in it.

Only folders with a marker are ever cleared. The lock is the operating system's. Its owner also writes its host, process
and a heartbeat into the lock file: on a shared disk, a process on another machine may not see the lock, but sees these.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from dear.errors import ConfigError, DearError, FolderBusyError, FolderError, OverwriteError, option
from dear.storage.documents import Document, OpenRecord
from dear.storage.files import MEGABYTE, is_being_written, is_running, read_regular, shown

Kind = Literal["run", "grid", "paper", "index", "discovery", "cache"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MARKER, LOCK, SHARES = "dear-folder.json", ".dear.lock", ".shares"
BEAT, STALE = 10.0, 60.0
"""Seconds between heartbeats, and after which an owner on another machine counts as gone."""
TRIES, PAUSE = 40, 0.05
"""Number of attempts, and seconds between them, for a lock whose owner has not signed."""
TEMPORARY = ".*.tmp"


class Marker(Document, OpenRecord):
    """The document that marks an output folder and says what it is."""

    format = "dear-folder"
    version = 1
    noun = "folder marker"
    error = ConfigError

    kind: Kind


def kind_of(folder: Path) -> Kind | None:
    """The kind of an output folder, by its marker; None for any other folder."""
    with suppress(OSError, ConfigError):
        return Marker.read(folder / MARKER).kind
    return None


def check_ours(folder: Path, kind: Kind, *, resume: bool, overwrite: bool) -> None:
    """Refuse an output folder that is not empty, unless it is of this kind and the caller resumes or overwrites it."""
    if resume and overwrite:
        raise ConfigError(
            f"{option(resume=True)} continues and {option(overwrite=True)} starts over: choose one of them."
        )
    if (url := _url(folder)) is not None:
        raise ConfigError(
            f"{shown(url)} is not a folder: write to one and copy it with 'dear sync FOLDER {shown(url)}'."
        )
    if folder.exists() and not folder.is_dir():
        raise OverwriteError(f"{folder} is a file: give a folder.")
    if not folder.is_dir() or not _content(folder):
        return
    found = kind_of(folder)
    if found == kind:
        if not resume and not overwrite:
            raise OverwriteError(
                f"{folder} already contains {_a(kind)}: add {option(resume=True)} to continue, or "
                f"{option(overwrite=True)} to start over."
            )
        return
    if found:
        raise OverwriteError(f"{folder} contains {_a(found)}, not {_a(kind)}: choose another folder.")
    raise OverwriteError(f"{folder} already contains other files: choose an empty folder.")


def _url(folder: Path) -> str | None:
    """The address that was passed as a path, such as s3://bucket/grid; None for a path, also of a drive such as C:."""
    first, *rest = folder.parts or ("",)
    return f"{first}//{'/'.join(rest)}" if first.endswith(":") and len(first) > 2 and not folder.exists() else None


def _a(kind: Kind) -> str:
    return f"{'an' if kind == 'index' else 'a'} {kind}"


def _content(folder: Path) -> list[Path]:
    """Everything in a folder except our marker, lock and leftovers."""
    ours = {MARKER, LOCK, SHARES}
    return [path for path in folder.iterdir() if path.name not in ours and not path.match(TEMPORARY)]


@contextmanager
def locked(folder: Path, kind: Kind) -> Iterator[None]:
    """Lock a folder against other processes; it is created and marked if it is new."""
    _make(folder)
    with _owned(folder, kind, folder / LOCK):
        for share in sorted((folder / SHARES).glob("*.lock")):
            _refuse_held(share, folder, kind)
        remove_folder(folder / SHARES)  # one that begins now sees our lock
        _mark(folder, kind)
        yield


@contextmanager
def locked_share(folder: Path, kind: Kind, which: int, count: int) -> Iterator[None]:
    """Lock one share of the work in a folder; other shares may be locked at the same time, the whole folder may not.

    Whoever locks a share or the whole folder first writes its own lock and then looks at those of the others, so that
    two that exclude each other never both begin.
    """
    _make(folder)
    _make(folder / SHARES)
    path = folder / SHARES / f"{which}-of-{count}.lock"
    with _owned(folder, kind, path):
        _refuse_held(folder / LOCK, folder, kind)
        for other in sorted((folder / SHARES).glob("*.lock")):
            if not other.name.endswith(f"-of-{count}.lock"):
                _refuse_held(other, folder, kind)
        _mark(folder, kind, leftovers=False)
        yield


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OverwriteError(f"The folder {folder} cannot be made ({error.strerror}).") from None


@contextmanager
def _owned(folder: Path, kind: Kind, path: Path) -> Iterator[None]:
    """Hold a lock file, signed and with a heartbeat."""
    if path.exists() and not path.is_file():
        raise OverwriteError(f"{path} is not a regular file: remove it.")
    lock = FileLock(path, timeout=0, is_singleton=False)
    _acquire(lock, folder, kind, path)
    stop = threading.Event()
    try:
        _refuse_other_machine(folder, kind, path)  # its signature stays
        try:
            with _writing(folder):
                _sign(path)
            threading.Thread(target=_beat, args=(path, stop), daemon=True).start()
            with _one_sentence(folder, kind):
                yield
            _refuse_lost(folder, kind, path)
        finally:
            stop.set()
            with suppress(OSError):
                if not _elsewhere(path):
                    path.write_text("")
    finally:
        lock.release()


def _elsewhere(path: Path) -> dict[str, Any]:
    """Who signed a lock on another machine; {} if nobody did."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(path, most=MEGABYTE))
        if isinstance(found, dict) and found.get("host") not in (None, socket.gethostname()):
            return found
    return {}


def _refuse_lost(folder: Path, kind: Kind, path: Path) -> None:
    """Refuse to end well if another machine has taken the lock over, because this process gave no sign of life."""
    if owner := _elsewhere(path):
        who = _who(owner)
        raise FolderBusyError(
            f"The {kind} in {folder} was taken over by {who}, because this process was stopped for more than "
            f"{STALE:.0f} seconds: what both have written may not fit together, so start over in another folder."
        )


def _refuse_held(path: Path, folder: Path, kind: Kind) -> None:
    """Refuse if someone else has signed a lock file and is alive; who has not signed yet will see our own signature."""
    owner = _owner(path)
    if not owner:
        return
    _refuse_other_machine(folder, kind, path)
    if owner.get("host") == socket.gethostname():
        lock = FileLock(path, timeout=0, is_singleton=False)
        _acquire(lock, folder, kind, path)  # the signature may be that of a killed process
        lock.release()


@contextmanager
def _one_sentence(folder: Path, kind: Kind) -> Iterator[None]:
    """Turn the disk's refusal of a file in the folder into one sentence; other files are not ours to explain."""
    try:
        yield
    except OSError as error:
        ours = isinstance(error.filename, str) and Path(error.filename).absolute().is_relative_to(folder.absolute())
        if isinstance(error, DearError) or not ours:
            raise
        raise FolderError(
            f"{error.filename} cannot be read or written ({error.strerror or error}), so the {kind} is not complete: "
            f"make room or check the permissions, and do the same again; what was saved so far is kept."
        ) from error


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OverwriteError(
            f"The folder {folder} cannot be written ({error.strerror}): make room or check its permissions, and resume "
            f"with {option(resume=True)}."
        ) from None


def _mark(folder: Path, kind: Kind, *, leftovers: bool = True) -> None:
    """Remove what a killed process left, and mark the folder if it is new."""
    with _writing(folder):
        if leftovers:
            remove_leftovers(folder)
        if kind_of(folder) is None:
            Marker(kind=kind).write(folder / MARKER)


def mark(folder: Path, kind: Kind) -> None:
    """Create a folder that several processes may fill at once, and mark it if it is empty.

    For caches: every process writes files of its own, so the folder is not locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists() and not _content(folder):
        Marker(kind=kind).write(folder / MARKER)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed process left; the folder is locked by the caller.

    Pages and cards are written without the lock, so those of running processes stay.
    """
    for path in folder.glob(TEMPORARY):
        if path.is_file() and not path.is_symlink() and not is_being_written(path):
            path.unlink(missing_ok=True)


def remove_ours(folder: Path, names: Iterable[str]) -> None:
    """Remove files and folders by name from a folder that has our marker."""
    if kind_of(folder) is None:
        raise OverwriteError(f"{folder} has no marker of DeAR, so nothing in it is removed.")
    for name in names:
        path = folder / name
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)
        elif path.is_dir():
            shutil.rmtree(path)


def remove_folder(folder: Path) -> None:
    """Remove a folder inside of one of ours, which is never a link; what cannot be removed stays."""
    if not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)


def _sign(path: Path) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}))


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        with suppress(OSError):
            if not _elsewhere(path):  # otherwise it is no longer ours
                os.utime(path)


def _acquire(lock: FileLock, folder: Path, kind: Kind, path: Path) -> None:
    """Acquire the lock, or report its owner; an owner that has not signed has just started or is about to end."""
    for _ in range(TRIES):
        try:
            lock.acquire()
            return
        except Timeout:
            if owner := _owner(path):
                raise FolderBusyError(_busy(folder, kind, owner)) from None
        except (OSError, NotImplementedError) as error:
            raise OverwriteError(f"The folder {folder} cannot be written ({error}).") from None
        time.sleep(PAUSE)
    raise FolderBusyError(_busy(folder, kind, {}))


def _owner(path: Path) -> dict[str, Any]:
    """Who signed a lock; {} if nobody did, or a process of this machine that has ended."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(path, most=MEGABYTE))
        if isinstance(found, dict) and not _is_gone(found):
            return found
    return {}


def _is_gone(owner: dict[str, Any]) -> bool:
    pid = owner.get("pid")
    if owner.get("host") != socket.gethostname() or not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
        return False
    return not is_running(pid)


def _refuse_other_machine(folder: Path, kind: Kind, path: Path) -> None:
    """Refuse a lock of a running process on another machine, where file locks do not reach across machines."""
    with suppress(OSError):
        if (owner := _elsewhere(path)) and _seconds_since(path) < STALE:
            raise FolderBusyError(_busy(folder, kind, owner))


def _seconds_since(path: Path) -> float:
    """Age of a file by the clock of its disk, as the clocks of two machines may differ."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".now.", suffix=".tmp") as now:
        now.write(b"now")
        now.flush()
        return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime


def _busy(folder: Path, kind: Kind, owner: dict[str, Any]) -> str:
    return f"The {kind} in {folder} is being written by {_who(owner)}: wait for it, stop it, or choose another folder."


def _who(owner: dict[str, Any]) -> str:
    known = {"host", "pid", "since"} <= owner.keys()
    facts = {name: shown(value) for name, value in owner.items()}
    return f"process {facts['pid']} on {facts['host']} since {facts['since']}" if known else "another process"
