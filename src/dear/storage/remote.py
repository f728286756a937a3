"""Copy the results of a grid to and from storage that fsspec knows, such as s3://, gs:// or another folder.

Finished cells and adapters are whole files that do not change, so both places get what the other one has. Runs in
progress, checkpoints and caches stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from dear.errors import ConfigError, DataError, MissingExtraError, OverwriteError, option
from dear.storage.files import MEGABYTE, read_regular, shown, write_atomic

LASTING = ("cells/*.json", "runs/*/adapter_model.safetensors", "runs/*/adapter_config.json", "runs/*/README.md")
"""Files of a grid that do not change once they are there."""
WRITTEN_AGAIN = ("*.csv", "*.md", "*.html", "compare.json")
"""Tables and pages, which are made from the cells: those of the folder replace the others."""
ADAPTER = ("adapter_model.safetensors", "adapter_config.json", "README.md")
LARGEST = 4096 * MEGABYTE


class Copied(NamedTuple):
    """Names of files that were copied."""

    sent: tuple[str, ...]
    fetched: tuple[str, ...]


def copy_both_ways(folder: Path, url: str, on_file: Callable[[int, int], None], *, overwrite: bool = False) -> Copied:
    """Copy cells and adapters that only one of both places has, and tables of the folder, to the other place.

    A cell or adapter that both have must be the same; with `overwrite`, that of the folder replaces the other.
    `on_file` is called with the number of files done and that of all.
    """
    system, root = _opened(url)
    here, there = set(_local(folder)), set(_remote(system, root))
    sent, fetched = [], []
    for done, name in enumerate(sorted(here | there), start=1):
        if name not in here:
            _fetch(system, f"{root}/{name}", folder / name)
            fetched.append(name)
        else:
            data = read_regular(folder / name, most=LARGEST)
            same = name in there and _read(system, f"{root}/{name}") == data
            if name in there and not same and not overwrite and not _matches(name, WRITTEN_AGAIN):
                raise OverwriteError(
                    f"{shown(name)} in {folder} and in {shown(url)} differ: choose another place, or replace the "
                    f"latter with {option(overwrite=True)}."
                )
            if not same:
                _send(system, f"{root}/{name}", data)
                sent.append(name)
        on_file(done, len(here | there))
    return Copied(tuple(sent), tuple(fetched))


def _opened(url: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    import fsspec

    if "://" not in url:
        raise ConfigError(f"{shown(url)} is not an address such as s3://bucket/grid or file:///shared/grid.")
    try:
        system, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtraError(f"{url.partition('://')[0]}:// needs another package: {_first(error)}.") from None
    except Exception as error:
        raise ConfigError(f"{shown(url)} cannot be opened: {_first(error)}.") from error
    return system, str(root).rstrip("/")


def _local(folder: Path) -> Iterator[str]:
    patterns = (*ADAPTER, *LASTING, *WRITTEN_AGAIN)
    found = (path for pattern in patterns for path in folder.glob(pattern))
    yield from (path.relative_to(folder).as_posix() for path in found if path.is_file() and path.name[0] != ".")


def _remote(system: Any, root: str) -> Iterator[str]:
    """Names of files there that belong to a grid; others, and names that lead elsewhere, are ignored."""
    try:
        listed = system.find(root) if system.exists(root) else []
    except Exception as error:
        raise DataError(f"{shown(root)} cannot be listed: {_first(error)}.") from error
    start = root.lstrip("/") + "/"
    for path in map(str, listed):
        name = path.lstrip("/").removeprefix(start)
        parts = PurePosixPath(name).parts
        is_below = path.lstrip("/").startswith(start) and not any(part[0] in "./" for part in parts)
        if is_below and _matches(name, (*ADAPTER, *LASTING, *WRITTEN_AGAIN)):
            yield name


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.count("/") == one.count("/") and fnmatchcase(name, one) for one in patterns)


def _read(system: Any, path: str) -> bytes:
    try:
        if (size := system.size(path)) is not None and size > LARGEST:
            raise DataError(f"{shown(path)} has {size:,} bytes, more than the {LARGEST:,} that fit.")
        return bytes(system.cat_file(path))
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{shown(path)} cannot be read: {_first(error)}.") from error


def _fetch(system: Any, path: str, target: Path) -> None:
    data = _read(system, path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, data)
    except OSError as error:
        raise OverwriteError(f"{target} cannot be written ({error.strerror}).") from None


def _send(system: Any, path: str, data: bytes) -> None:
    """Write a file; object stores show it when it is whole, and on other systems it is renamed into place."""
    try:
        system.makedirs(system._parent(path), exist_ok=True)
        if "file" in _protocols(system):
            write_atomic(Path(path), data)
        else:
            system.pipe_file(path, data)
    except Exception as error:
        raise OverwriteError(f"{shown(path)} cannot be written: {_first(error)}.") from error


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".") or type(error).__name__
