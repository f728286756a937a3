"""The user's cache folder: what caches contain, how large it is, when it was last used, and how to clear it.

Everything in a cache can be computed again. Only folders with our marker are ever cleared.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dear.errors import CacheError, ConfigError
from dear.storage.locks import kind_of

VARIABLE = "DEAR_CACHE"
ROLES, SEARCH = "roles", "search"
"""Folders of the cache with one entry per backbone, or per kind of feature of an index."""
APP = "app"
"""Folder of the cache with what `dear app` opens if no run is named."""
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def cache_home() -> Path:
    """The user's cache folder: $DEAR_CACHE, or the system's usual place."""
    if folder := os.environ.get(VARIABLE, "").strip():
        try:
            return Path(folder).expanduser()
        except RuntimeError:
            raise CacheError(f"{VARIABLE} is {folder!r}, but there is no such home folder: set another one.") from None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local") / "dear" / "cache"
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "dear"
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "dear"


def _home() -> Path:
    """The user's home; without one a folder that cannot exist, so that the cache is empty and cannot be written."""
    try:
        return Path.home()
    except RuntimeError:  # a user whom the system does not know, as in containers, and no HOME
        return Path(os.devnull)


@dataclass(frozen=True)
class CacheEntry:
    """One entry of a cache."""

    path: Path
    bytes: int
    used: float
    """When it was last written or read, in seconds since 1970."""

    def __repr__(self) -> str:
        """One line."""
        return f"CacheEntry({self.path.name}, {readable(self.bytes)})"


def list_cache(*folders: str | Path) -> list[CacheEntry]:
    """Entries of the user's cache, or of the caches in `folders`, the least recently used first.

    A folder is a cache, or the folder of a run or grid with a cache inside.
    """
    found: list[CacheEntry] = []
    for cache in _caches(folders):
        if cache.is_dir():
            found += [_entry(path) for path in sorted(_parts(cache))]
    return sorted(found, key=lambda one: (one.used, str(one.path)))


def clear_cache(*folders: str | Path, max_size: int | str = 0) -> list[CacheEntry]:
    """Remove the least recently used entries until at most `max_size` ("2GB", or bytes) is left; return the removed."""
    most, entries = size_of(max_size), list_cache(*folders)
    left, gone = sum(one.bytes for one in entries), []
    for one in entries:
        if left <= most:
            break
        _remove(one.path)
        left -= one.bytes
        gone.append(one)
    return gone


def size_of(text: int | str) -> int:
    """A number of bytes, from a number or a text such as "500MB" or "2 GB"."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*", str(text))
    if not match or match[2].upper() not in UNITS:
        raise ConfigError(f"{str(text)[:40]!r} is not a size: give one such as 500MB or 2GB.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def readable(count: int) -> str:
    """A number of bytes for people."""
    for unit in ("GB", "MB", "kB"):
        if count >= UNITS[unit.upper()]:
            return f"{count / UNITS[unit.upper()]:.1f} {unit}"
    return f"{count} B"


def _caches(folders: Sequence[str | Path]) -> list[Path]:
    """The cache folders; any other folder is refused."""
    if not folders:
        return [cache_home()]
    found = []
    for one in map(Path, folders):
        inside = one / "cache" if kind_of(one) not in (None, "cache") else one
        if not one.is_dir() or (inside.is_dir() and kind_of(inside) != "cache"):
            raise CacheError(f"{one} is not a cache of DeAR, nor the folder of a run that has one.")
        found.append(inside)
    return found


def _parts(cache: Path) -> list[Path]:
    """The entries of a cache: its folders, and those inside of `roles` and `search`."""
    if kind_of(cache) != "cache":
        return []
    parts = [path for path in cache.iterdir() if path.is_dir() and not path.is_symlink()]
    return [one for part in parts for one in (sorted(part.iterdir()) if part.name in (ROLES, SEARCH) else [part])]


def _entry(path: Path) -> CacheEntry:
    size, used = 0, 0.0
    for one in [path, *path.rglob("*")]:
        with suppress(OSError):
            facts = one.lstat()
            if not one.is_dir():
                size, used = size + facts.st_size, max(used, facts.st_mtime, facts.st_atime)
    return CacheEntry(path, size, used or time.time())


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    except OSError as error:
        raise CacheError(
            f"{path} cannot be removed ({error.strerror or error}); other entries were not changed."
        ) from None
