"""On-disk cache of what the frozen layers of CLIP compute from each image, in fp16, so that it is computed only once.

A store is a folder with `store.json`, which says what its rows are, and segments: `segment-*.f16` holds rows of raw
little-endian fp16 values, `segment-*.jsonl` one line for each with its key and a checksum of key and values. A process
only ever appends to a segment of its own, a row before its line, so there is nothing to lock. A line that is not whole,
a row that is not whole and a row whose checksum fails do not count: whatever happens to a process or a disk, a row is
right or it is not there.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dear.backbone.augment import AUGMENTATION_VERSION
from dear.backbone.clip import FrozenClip
from dear.errors import CacheError
from dear.storage import documents
from dear.storage.files import MEGABYTE, letters, read_regular, sha256, write_atomic
from dear.storage.locks import mark

FORMAT, FORMAT_VERSION = "dear-prefix-store", 1
RECORD = "store.json"
LARGEST_INDEX = 4096 * MEGABYTE
LARGEST = 65504.0
"""The largest number that fp16 can hold."""

Row = npt.NDArray[np.float16]


class _Place(NamedTuple):
    """Where a row is, and the checksum it must have."""

    segment: Path
    number: int
    checksum: int


def prefix_key(clip: FrozenClip, what: str, transform: str) -> dict[str, Any]:
    """Everything that decides a prefix but the image itself, as the description of a store.

    Args:
        clip: the frozen backbone.
        what: what a row is, such as "vision state before layer 9" or "image features".
        transform: how images became input, such as "evaluation" or "training view 3".
    """
    return {
        "weights_sha256": clip.weights_sha256,
        "precision": clip.precision,
        "image_size": clip.geometry.image_size,
        "geometry": clip.geometry.as_dict(),
        "preprocessing": dict(clip.model.visual.preprocess_cfg),
        "prefix": what,
        "transform": transform,
        "augmentation_version": AUGMENTATION_VERSION,
    }


class PrefixStore:
    """Rows of one shape by key. Made by `PrefixStore.open`; to be used from one thread at a time."""

    def __init__(self, folder: Path, row_shape: tuple[int, ...]) -> None:
        self.folder = folder
        self.row_shape = row_shape
        self._row_bytes = 2 * int(np.prod(row_shape))
        self._places: dict[str, list[_Place]] = {}
        self._mapped: dict[Path, Row] = {}
        self._own: tuple[Path, BinaryIO, BinaryIO] | None = None
        self._own_rows = self._own_process = 0

    @classmethod
    def open(cls, cache: Path, description: Mapping[str, Any], row_shape: tuple[int, ...]) -> PrefixStore:
        """Open the store of all rows with this description below the folder `cache`, or begin it."""
        described = json.loads(json.dumps(dict(description)))
        folder = Path(cache) / f"prefix-{sha256(json.dumps(described, sort_keys=True).encode())[:16]}"
        record = {"format": FORMAT, "version": FORMAT_VERSION, "row_shape": list(row_shape), "description": described}
        store = cls(folder, tuple(row_shape))
        try:
            mark(Path(cache), "cache")
            folder.mkdir(exist_ok=True)
            if not (folder / RECORD).exists():
                write_atomic(folder / RECORD, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
            _check_record(folder / RECORD, record)
            for index in sorted(folder.glob("segment-*.jsonl")):
                store._read_index(index)
        except CacheError:
            raise
        except OSError as error:
            raise _unusable(folder, error) from None
        return store

    def __contains__(self, key: object) -> bool:
        """Whether there is a row; that it is undamaged shows when it is read."""
        return key in self._places

    def __len__(self) -> int:
        """How many keys have a row."""
        return len(self._places)

    def get(self, keys: Sequence[str]) -> Tensor:
        """Rows in fp32, (len(keys), *row_shape). A damaged row is forgotten and missing from then on."""
        rows = {key: row for key in keys if (row := self._read(key)) is not None}
        if missing := [key for key in keys if key not in rows]:
            raise CacheError(
                f"{len(missing)} of {len(keys)} rows, the first {missing[0]!r}, are not in the cache {self.folder}, "
                "or were damaged there: compute them and put them in again."
            )
        gathered = np.empty((len(keys), *self.row_shape), np.float16)
        for position, key in enumerate(keys):
            gathered[position] = rows[key]
        return torch.from_numpy(gathered).float()

    def put(self, keys: Sequence[str], rows: Tensor) -> None:
        """Add rows (len(keys), *row_shape), readable right away; keys that have a row keep it."""
        if tuple(rows.shape) != (len(keys), *self.row_shape):
            raise CacheError(f"{len(keys)} rows of shape {self.row_shape} were due, but got {tuple(rows.shape)}.")
        if rows.numel() and not float(rows.detach().abs().max()) <= LARGEST:  # also where there is NaN
            raise CacheError(
                f"A prefix holds numbers that fp16 cannot (above {LARGEST:.0f}, or not finite), so it cannot be kept "
                f"in {self.folder}: run without the cache."
            )
        values = rows.detach().to("cpu", torch.float16).contiguous().numpy().astype("<f2", copy=False)
        new = {key: row for key, row in zip(keys, values, strict=True) if key not in self._places}
        if new:
            self._append(new)

    def fetch(self, keys: Sequence[str], compute: Callable[[list[int]], Tensor]) -> Tensor:
        """Rows in fp32, those that are missing or damaged computed and added first.

        `compute` gets positions in `keys` and returns their rows. All rows come back as they are stored, rounded to
        fp16, so the run that fills a store and the runs that use it see the same numbers.
        """
        if missing := [position for position, key in enumerate(keys) if self._read(key) is None]:
            self.put([keys[position] for position in missing], compute(missing))
        return self.get(keys)

    def close(self) -> None:
        """End this process's segment. The store stays readable, and a later `put` begins another segment."""
        own, self._own, self._own_rows = self._own, None, 0
        for file in own[1:] if own else ():
            with suppress(OSError):
                file.close()

    def __enter__(self) -> PrefixStore:
        """Use the store within a `with` block."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Close the store."""
        self.close()

    def _append(self, new: Mapping[str, Row]) -> None:
        """Write the rows, then their lines; a segment in which that went wrong is never written to again."""
        checksums = {key: _checksum(key, row) for key, row in new.items()}
        lines = "".join(json.dumps({"key": key, "crc32": value}) + "\n" for key, value in checksums.items())
        try:
            segment, rows_file, index_file = self._own_segment()
            for row in new.values():
                _write(rows_file, row.tobytes())
            _write(index_file, lines.encode())
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise _unusable(self.folder, error) from None
            raise
        for number, (key, checksum) in enumerate(checksums.items(), start=self._own_rows):
            self._places.setdefault(key, []).append(_Place(segment, number, checksum))
        self._own_rows += len(new)

    def _own_segment(self) -> tuple[Path, BinaryIO, BinaryIO]:
        """The segment that this process appends to; a fork begins its own."""
        if self._own is None or self._own_process != os.getpid():
            self.close()
            path = self.folder / f"segment-{secrets.token_hex(8)}.f16"
            rows_file = path.open("xb", buffering=0)
            self._own = path, rows_file, path.with_suffix(".jsonl").open("xb", buffering=0)
            self._own_process = os.getpid()
        return self._own

    def _read_index(self, index: Path) -> None:
        """Note every row of a segment whose line and values are whole."""
        *lines, _torn = read_regular(index, most=LARGEST_INDEX).split(b"\n")
        segment = index.with_suffix(".f16")
        try:  # after the lines, so that a segment that is being written has no line without its row
            whole_rows = segment.stat().st_size // self._row_bytes
        except FileNotFoundError:
            return
        for number, line in enumerate(lines[:whole_rows]):
            with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
                entry = json.loads(line)
                self._places.setdefault(str(entry["key"]), []).append(_Place(segment, number, int(entry["crc32"])))

    def _read(self, key: str) -> Row | None:
        """One row whose checksum holds, or None; places with damaged rows are forgotten."""
        while places := self._places.get(key):
            segment, number, checksum = places[-1]
            with suppress(OSError, ValueError, IndexError):
                row: Row = self._map(segment, number)[number]
                if _checksum(key, row) == checksum:
                    return row
            places.pop()
        self._places.pop(key, None)
        return None

    def _map(self, segment: Path, number: int) -> Row:
        """A segment's rows, mapped anew where it has grown."""
        if segment not in self._mapped or number >= len(self._mapped[segment]):
            whole_rows = segment.stat().st_size // self._row_bytes
            self._mapped[segment] = np.memmap(segment, "<f2", mode="r", shape=(whole_rows, *self.row_shape))
        return self._mapped[segment]


def _checksum(key: str, row: Row) -> int:
    return zlib.crc32(row.data, zlib.crc32(letters(key)))


def _write(file: BinaryIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _check_record(path: Path, expected: Mapping[str, Any]) -> None:
    """Refuse a store that holds something else than what is asked for."""
    try:
        found = documents.parse(read_regular(path), where=str(path), what="a record", error=CacheError)
        form, version, shape = found["format"], int(found["version"]), list(found["row_shape"])
    except (ValueError, TypeError, KeyError, OverflowError, CacheError):
        raise CacheError(f"{path} is damaged: remove the folder {path.parent}, it will be filled again.") from None
    if form != FORMAT or version > FORMAT_VERSION:
        raise CacheError(f"{path} was written by a newer DeAR or by something else: use another cache folder.")
    if shape != expected["row_shape"]:
        raise CacheError(
            f"The cache {path.parent} holds rows of shape {tuple(shape)}, but rows of shape "
            f"{tuple(expected['row_shape'])} are asked for: use another cache folder, or remove this one."
        )
    if found.get("description") != expected["description"]:
        raise CacheError(f"{path} describes other rows than those asked for: remove the folder {path.parent}.")


def _unusable(folder: Path, error: OSError) -> CacheError:
    return CacheError(
        f"The cache {folder} cannot be used ({error.strerror or error}): make room or choose another folder, or run "
        "without the cache; the rows that are in it stay good."
    )
