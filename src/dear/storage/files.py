"""Read and write files: regular files only, whole or not at all.

A file is read only if it is a regular file of a sensible size, so that a FIFO, a device or a sparse file of terabytes
cannot block or fill a machine. Writing replaces regular files only, follows links and keeps permissions. After a crash
there is the old file or the new one, never a part of one.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dear.errors import ConfigError, OverwriteError

MEGABYTE = 1 << 20
LARGEST_TEXT = 256 * MEGABYTE
"""Largest JSON, YAML, CSV or text file that is read."""

ABANDONED = 3600.0
"""Seconds after which a temporary file or folder counts as abandoned."""
RANDOM = "????????"
"""What `tempfile` adds to a name, as a pattern."""

_TEMPORARY = re.compile(r"\.(.*)\..{8}\.tmp", re.DOTALL)
"""A temporary file or folder, as NAME or NAME.PROCESS between the first point and what `tempfile` adds."""
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_UMASK = os.umask(0)
os.umask(_UMASK)


class NotRegularError(OSError):
    """A path is not a regular file, or the file is far too large."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; links are followed. Never waits, as a FIFO would."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # before fdopen, which refuses a folder and leaves it open
        os.close(handle)
        raise NotRegularError(0, "it is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_regular(path: Path, *, most: int = LARGEST_TEXT) -> bytes:
    """The content of a regular file of at most `most` bytes; links are followed. Never waits, as a FIFO would."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise NotRegularError(0, f"it has {size:,} bytes, more than the {most:,} that fit", str(path))
        return file.read(size)


def write_atomic(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write to a temporary file beside `path`, flush it to disk, and rename it into place; data can come in parts.

    A link is followed; anything but a regular file is refused; an existing file keeps its permissions.
    """
    target, temporary = path, ""
    try:
        if path.is_symlink():
            target = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a link to itself
        mode = 0o666 & ~_UMASK
        with suppress(FileNotFoundError):
            facts = target.stat()
            if not stat.S_ISREG(facts.st_mode):
                raise NotRegularError(0, "it exists and is not a regular file", str(path))
            mode = stat.S_IMODE(facts.st_mode)
        remove_abandoned(target.parent, target.name)
        prefix = f".{target.name}.{os.getpid()}."
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=prefix, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(target)
        temporary = ""
        sync_folder(target.parent)
    except BaseException as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # a full disk does not say what was being written
        raise


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder` that takes its place if the block ends well; what was there is removed then.

    After a crash there is the old folder or the new one. If it happened between the two renames, there is neither, and
    the next call puts the old one back first.
    """
    folder = Path(os.path.realpath(folder))  # a link stays a link
    folder.parent.mkdir(parents=True, exist_ok=True)
    _put_back(folder)
    remove_abandoned(folder.parent, folder.name)
    draft = _beside(folder)
    try:
        yield draft
        for path in draft.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        draft.chmod(0o777 & ~_UMASK)
        _exchange(draft, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _beside(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))


def _exchange(draft: Path, folder: Path) -> None:
    """Put a folder where another one may be, which is put back if that fails."""
    if not folder.exists():
        draft.rename(folder)
        return
    aside = _beside(folder)
    try:
        folder.rename(aside / folder.name)
        try:
            draft.rename(folder)
        except OSError:
            _put_back(folder)
            raise
    finally:
        if folder.exists():
            shutil.rmtree(aside, ignore_errors=True)


def _put_back(folder: Path) -> None:
    """If a folder is missing because a crash came between two renames, put it back."""
    for left in sorted(folder.parent.glob(f".{glob.escape(folder.name)}.{RANDOM}.tmp/{glob.escape(folder.name)}")):
        if not folder.exists() and left.is_dir():
            left.rename(folder)
            left.parent.rmdir()


def is_being_written(path: Path) -> bool:
    """Whether a temporary file is that of a running process; one that is too old is not, as numbers are used again."""
    named = re.search(r"\.(\d{1,9})\.\w{8}\.tmp$", path.name)
    with suppress(OSError):
        return bool(named and is_running(int(named[1])) and time.time() - path.lstat().st_mtime < ABANDONED)
    return False


def is_running(process: int) -> bool:
    """Whether this machine has such a process; True if the system does not say."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)  # only tests whether the process exists
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders that no living process can still need; with a name, only those of this one.

    Names are compared, as a pattern per name would stay in the caches of pathlib and re.
    """
    with suppress(OSError):
        for left in list(folder.iterdir()):
            named = _TEMPORARY.fullmatch(left.name)
            if named and (name is None or named[1] == name or named[1].startswith(f"{name}.")):
                with suppress(OSError):
                    facts = left.lstat()
                    if time.time() - facts.st_mtime > ABANDONED:
                        shutil.rmtree(left) if stat.S_ISDIR(facts.st_mode) else left.unlink()


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder survive a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def as_folder(path: str | Path) -> Path:
    """A path that can name a folder."""
    if not isinstance(path, str | Path) or not str(path).strip() or "\0" in str(path):
        raise ConfigError(f"{path!r} does not name a folder: give its path.")
    return Path(path)


def is_file(path: str | Path) -> bool:
    """Whether there is such a regular file; False for text that cannot be a path."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether there is such a folder; False for text that cannot be a path."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def write_result(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file a person asked for by name, with the folders above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OverwriteError(f"{path} cannot be written ({error.strerror}).") from None


def shown(name: object) -> str:
    """A file's name that is safe to print: without terminal escapes and broken characters."""
    return "".join(letter if _is_shown(letter) else "\N{REPLACEMENT CHARACTER}" for letter in str(name))


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


def visible(text: str) -> str:
    """Text for a page or a table: without control characters, halves of letters, and marks that turn what follows."""
    return _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def letters(name: str) -> bytes:
    """A name as bytes, for hashes and seeds; names of files need not be UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def sha256(data: bytes) -> str:
    """Hex digest of bytes."""
    return hashlib.sha256(data).hexdigest()
