"""A folder of its own for every attempt at a cell, so that two attempts at the same cell never write the same file.

A cluster starts a cell again if its node does not answer any more. That node may only have lost its network, and still
write to the shared folder. So every attempt works in `runs/.attempts/CELL~GRID~ATTEMPT`, begins with a copy of the last
checkpoint of an earlier one, and becomes `runs/CELL` by a rename when it is whole. The first one that is whole wins: it
removes the folders of the others, which then cannot write, nor be renamed. Randomness is a function of the seed and the
step, so all of them end with the same bytes.
"""

from __future__ import annotations

import errno
import glob
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dear.engine.run_folder import CHECKPOINT, METRICS, NEXT, RUN, SHOTS, read_run
from dear.errors import DearError, TrainingError, option
from dear.model.artefact import MANIFEST
from dear.storage.files import read_regular, sync_folder, write_atomic
from dear.storage.locks import MARKER

ATTEMPTS = ".attempts"
MOST = 4
"""Number of attempts at a cell by one grid before it is given up."""
BEGUN = (MARKER, SHOTS, METRICS, CHECKPOINT, RUN)
"""What the next attempt needs of an earlier one; the record comes last."""


@contextmanager
def attempt(folder: Path, mark: str, grid: str) -> Iterator[Path]:
    """Yield a new folder, with what an earlier attempt reached; when the block ends, it becomes `folder`.

    Args:
        folder: where the run belongs, RUNS/CELL.
        mark: fingerprint of the training; what has another one is not continued.
        grid: names the running grid; attempts of earlier ones do not count.
    """
    place = folder.parent / ATTEMPTS
    place.mkdir(exist_ok=True)
    earlier = _attempts(folder)
    if sum(one.name.startswith(f"{folder.name}~{grid}~") for one in earlier) >= MOST:
        raise TrainingError(
            f"{folder.name} was begun {MOST} times and each time its process died, perhaps for want of memory: resume "
            f"with {option(resume=True)} and more {option(threads='N')}, so that fewer cells share a node."
        )
    work = place / f"{folder.name}~{grid}~{secrets.token_hex(4)}"
    work.mkdir()
    _continue(work, [folder, folder / NEXT, *earlier], mark)
    yield work
    _adopt(work, folder, mark)
    for other in _attempts(folder):
        shutil.rmtree(other, ignore_errors=True)


def _attempts(folder: Path) -> list[Path]:
    return sorted((folder.parent / ATTEMPTS).glob(f"{glob.escape(folder.name)}~*"))


def _continue(work: Path, others: list[Path], mark: str) -> None:
    """Copy the newest checkpoint of the same training; whoever wrote it may still be at work, and is left alone."""
    begun = [one for one in others if (one / CHECKPOINT).is_file() and _mark_of(one) == mark]
    with suppress(OSError):  # it has just been removed: another attempt is whole
        for other in sorted(begun, key=lambda one: (one / CHECKPOINT).stat().st_mtime)[-1:]:
            for name in BEGUN:
                if (other / name).is_file():
                    write_atomic(work / name, read_regular(other / name, most=1 << 40))


def _adopt(work: Path, folder: Path, mark: str) -> None:
    """Put a whole run where it belongs, unless another attempt has done so; then its bytes are the same."""
    if _mark_of(folder) == mark and (folder / MANIFEST).is_file():
        shutil.rmtree(work, ignore_errors=True)
        return
    old = work.with_name(f"{work.name}~old")
    with suppress(FileNotFoundError):
        folder.rename(old)
    try:
        work.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
        if error.errno == errno.ENOENT:
            with suppress(OSError):
                old.rename(folder)
            raise TrainingError(f"{work} is gone: the grid was started again while this attempt ran.") from None
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(folder.parent)


def _mark_of(folder: Path) -> str | None:
    """Fingerprint of the training in a folder; None if there is none."""
    try:
        return str(read_run(folder)["fingerprint"])
    except (DearError, OSError):
        return None
