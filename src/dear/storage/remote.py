"""Copy the results of a grid to and from storage that fsspec knows, such as s3://, gs:// or another folder.

Finished cells and adapters are whole files that do not change, so both places get what the other one has. Runs in
progress, checkpoints and caches stay where they are. A folder's marker is copied first and manifests last: what was
interrupted can be continued, and an adapter that has a manifest is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from dear.errors import ConfigError, DataError, MissingExtraError, OverwriteError, option
from dear.storage.files import LARGEST_TEXT, MEGABYTE, read_regular, shown, write_atomic
from dear.storage.locks import LOCK, MARKER, SHARES, TEMPORARY, Kind, Marker, kind_of

MANIFEST, TENSORS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER = (MANIFEST, TENSORS, "README.md")
LASTING = ("cells/*.json", *(f"runs/*/{name}" for name in ADAPTER))
"""Files of a grid that do not change once they are there."""
WRITTEN_AGAIN = ("*.csv", "*.md", "*.html", "compare.json")
"""Tables and pages, which are made from the cells: those of the folder replace the others."""
KNOWN = (MARKER, *ADAPTER, *LASTING, *WRITTEN_AGAIN)
FILE_NAME = r"[a-z0-9_][a-z0-9_-]*\.(json|safetensors|txt)"
"""Names of further files that are accepted from a manifest; those that adapters are saved with."""
COPIED: tuple[Kind, ...] = ("run", "grid")
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
    check_copied(folder)
    here, there = _names(folder, system, root)
    sent, fetched = [], []
    for done, name in enumerate(sorted(here | there, key=_place_in_order), start=1):
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
    return Copied(tuple(sorted(sent)), tuple(sorted(fetched)))


def check_copied(folder: Path) -> None:
    """Refuse a folder that is neither new or empty, nor of a grid, a run or an adapter."""
    kind = kind_of(folder)
    if kind == "paper":
        raise DataError(f"{folder} is of a paper, which has several grids: copy each of the folders in {folder}/grids.")
    if kind in COPIED or not folder.is_dir() or not _has_content(folder):
        return
    if kind is None and ((folder / TENSORS).is_file() or _has_cells(folder)):
        return
    raise DataError(
        f"{folder} is neither a grid nor a run, so nothing in it is copied: give the folder of a grid or a run, or a "
        f"new folder."
    )


def _has_content(folder: Path) -> bool:
    ours = (LOCK, SHARES)
    return any(path.name not in ours and not path.match(TEMPORARY) for path in folder.iterdir())


def _has_cells(folder: Path) -> bool:
    """Whether a folder without a marker has cells: version 0.3 fetched grids without their marker."""
    with suppress(OSError):
        return any(_entry(read_regular(path), "format") == "dear-cell" for path in folder.glob("cells/*.json"))
    return False


def _names(folder: Path, system: Any, root: str) -> tuple[set[str], set[str]]:
    """Names of the files to copy that are in the folder, and in the storage."""
    listed = set(_remote(system, root))
    here, there = set(_local(folder)), {name for name in listed if _matches(name, KNOWN)}
    if MARKER in there and MARKER not in here:
        _check_marker(_read(system, f"{root}/{MARKER}", LARGEST_TEXT), root)
    if MARKER not in here | there and any(name.startswith("cells/") for name in here | there):
        _make_marker(folder)
        here.add(MARKER)
    for manifest in [name for name in here | there if PurePosixPath(name).name == MANIFEST]:
        data = (
            read_regular(folder / manifest) if manifest in here else _read(system, f"{root}/{manifest}", LARGEST_TEXT)
        )
        further = {str(PurePosixPath(manifest).with_name(name)) for name in (MARKER, *_files_of(data))}
        here |= {name for name in further if (folder / name).is_file()}
        there |= further & listed
    return here, there


def _files_of(manifest: bytes) -> Iterable[str]:
    """Names of the files that a manifest lists, except those that an adapter cannot have."""
    files = _entry(manifest, "files")
    return [name for name in files if re.fullmatch(FILE_NAME, name)] if isinstance(files, dict) else []


def _entry(text: bytes, name: str) -> Any:
    """An entry of a JSON object; None if it has none. What is damaged is reported by those who read all of it."""
    with suppress(ValueError, RecursionError):
        content = json.loads(text)
        return content.get(name) if isinstance(content, dict) else None
    return None


def _check_marker(data: bytes, root: str) -> None:
    if (kind := Marker.from_json(data, where=f"{shown(root)}/{MARKER}").kind) not in COPIED:
        raise DataError(f"{shown(root)} contains a folder of the kind {kind!r}, not a grid or a run.")


def _make_marker(folder: Path) -> None:
    """Mark a folder whose cells come from a storage that version 0.3 filled, without a marker."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        Marker(kind="grid").write(folder / MARKER)
    except OSError as error:
        raise OverwriteError(f"{folder} cannot be written ({error.strerror}).") from None


def _place_in_order(name: str) -> tuple[int, str]:
    """Markers and tensors say what a folder is, and manifests that it is whole."""
    return {MARKER: 0, TENSORS: 1, MANIFEST: 3}.get(PurePosixPath(name).name, 2), name


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
    found = (path for pattern in KNOWN for path in folder.glob(pattern))
    yield from (path.relative_to(folder).as_posix() for path in found if path.is_file() and path.name[0] != ".")


def _remote(system: Any, root: str) -> Iterator[str]:
    """Names of all files there, except those that are hidden or lead elsewhere."""
    try:
        listed = system.find(root) if system.exists(root) else []
    except Exception as error:
        raise DataError(f"{shown(root)} cannot be listed: {_first(error)}.") from error
    start = root.lstrip("/") + "/"
    for path in map(str, listed):
        name = path.lstrip("/").removeprefix(start)
        parts = PurePosixPath(name).parts
        if path.lstrip("/").startswith(start) and not any(part[0] in "./" for part in parts):
            yield name


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.count("/") == one.count("/") and fnmatchcase(name, one) for one in patterns)


def _read(system: Any, path: str, most: int = LARGEST) -> bytes:
    try:
        if (size := system.size(path)) is not None and size > most:
            raise DataError(f"{shown(path)} has {size:,} bytes, more than the {most:,} that fit.")
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
