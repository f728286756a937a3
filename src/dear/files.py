"""Writing files so that a crash leaves the old one or the new one, never half of one."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dear.errors import ConfigError, OverwriteError


def write_atomic(path: Path, data: bytes) -> None:
    """Write to a temporary file beside `path`, flush it to disk, and rename it into place."""
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # a full disk does not say what was being written
        raise


def as_folder(path: str | Path) -> Path:
    """A path that can name a folder."""
    if not isinstance(path, str | Path) or not str(path).strip() or "\0" in str(path):
        raise ConfigError(f"{path!r} does not name a folder: give its path.")
    return Path(path)


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse an output folder that already holds something, unless one says what to do with it."""
    if resume and overwrite:
        raise ConfigError("--resume goes on and --overwrite starts again: choose one of them.")
    if folder.exists() and not folder.is_dir():
        raise OverwriteError(f"{folder} is a file: give a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not resume and not overwrite:
        raise OverwriteError(f"{folder} is not empty: add --resume to go on, or --overwrite to start again.")


def prepare_folder(folder: Path, ours: Iterable[str], *, resume: bool, overwrite: bool) -> None:
    """Make an output folder; one that already holds something is refused unless one says what to do with it.

    Overwriting removes `ours`, the files that are written there, and never anything else.
    """
    check_folder(folder, resume=resume, overwrite=overwrite)
    for name in ours if overwrite else ():
        (folder / name).unlink(missing_ok=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OverwriteError(f"The folder {folder} cannot be made ({error.strerror}).") from None


def write_result(path: Path, text: str) -> None:
    """Write a text file a person asked for by name, with the folders above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise OverwriteError(f"{path} cannot be written ({error.strerror}).") from None


def sha256(data: bytes) -> str:
    """Hex digest of bytes."""
    return hashlib.sha256(data).hexdigest()
