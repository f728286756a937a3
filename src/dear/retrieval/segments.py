"""Segments of a search index: sealed files of columns that are written once and memory-mapped ever after.

A segment holds, one after another and aligned to 64 bytes, all little-endian:
  header                one `HEADER`
  one column per kind   N × E fp16, features of unit length
  lengths               N × G fp32, what each feature was divided by
  records               N × `RECORD`: size, time, content hash and path of each file
  dead                  D × u64, numbers of earlier rows that no longer count
  paths                 P bytes, the files' paths side by side
The index's manifest has a checksum of every column; a column is checked when it is first used, once per open.
Shapes: N rows, G kinds of features, E joint embedding.
"""

from __future__ import annotations

import math
import stat
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from dear.errors import DataError
from dear.storage.documents import OpenRecord
from dear.storage.files import letters, write_atomic

MAGIC = b"dearseg1"
HEADER = struct.Struct("<8sIIQQQ")
"""Magic, kinds, embedding, rows, dead rows, bytes of paths."""
RECORD = np.dtype(
    [
        ("size", "<u8"),
        ("mtime_ns", "<i8"),
        ("content", "<u8", (2,)),
        ("path", "<u8"),
        ("path_bytes", "<u4"),
        ("state", "<u4"),
    ]
)
"""A file: size, time, first half of its SHA-256, where its path is, and what was done for it."""
ENCODED, COPIED = 0, 1
"""States: its features were computed, or taken over from a file of the same content, as after a rename."""
ALIGN = 64
OTHERS = ("lengths", "records", "dead", "paths")
NAME = "segment-{:06d}.dear"
PATTERN = r"^segment-[0-9]{6,18}\.dear$"

Array = npt.NDArray[Any]


def damaged(folder: Path) -> DataError:
    """What to say of an index whose bytes are not those that were written."""
    return DataError(f"The index in {folder} is damaged: make it again with 'dear search index … --overwrite'.")


class Entry(OpenRecord):
    """A segment in the manifest."""

    file: str = Field(pattern=PATTERN)
    rows: int = Field(ge=0, lt=2**48)
    dead: int = Field(ge=0, lt=2**48)
    paths: int = Field(ge=0, lt=2**48)
    crc32: list[int]
    """One per column, in their order."""


class Stamp(NamedTuple):
    """A file as it was when it was encoded."""

    path: str
    size: int
    mtime_ns: int
    content: bytes = bytes(16)
    """First half of its SHA-256; zeros if unknown."""
    state: int = ENCODED


@dataclass(frozen=True)
class Columns:
    """What a segment holds, in memory."""

    features_GNE: Array
    lengths_NG: Array
    records_N: Array
    dead_D: Array
    paths: bytes

    def parts(self) -> list[Array]:
        """The columns in their order."""
        blob = np.frombuffer(self.paths, np.uint8)
        return [*self.features_GNE, self.lengths_NG, self.records_N, self.dead_D, blob]


def columns_of(features_NGE: Tensor, stamps: Sequence[Stamp], dead: Sequence[int] = ()) -> Columns:
    """Columns of features that are not yet of unit length, the files they are of, and the rows they make obsolete."""
    values_NGE = features_NGE.detach().cpu().float()
    lengths_NG = values_NGE.norm(dim=-1)
    if not bool(lengths_NG.isfinite().all()):
        raise DataError("Features are not finite: the model is not usable, train it again.")
    shape = values_NGE.shape[1], values_NGE.shape[0], values_NGE.shape[2]
    features_GNE = torch.empty(shape, dtype=torch.float16)
    for kind, rows_NE in enumerate(values_NGE.unbind(1)):
        features_GNE[kind] = rows_NE / lengths_NG[:, kind, None].clamp(min=1e-12)
    records_N, paths = _records(stamps)
    stored, lengths = features_GNE.numpy().astype("<f2", copy=False), lengths_NG.numpy().astype("<f4", copy=False)
    return Columns(stored, lengths, records_N, np.asarray(dead, "<u8"), paths)


def _records(stamps: Sequence[Stamp]) -> tuple[Array, bytes]:
    named = [letters(stamp.path) for stamp in stamps]
    sizes = np.array([len(name) for name in named], np.uint64)
    records_N = np.zeros(len(stamps), RECORD)
    records_N["size"] = [stamp.size for stamp in stamps]
    records_N["mtime_ns"] = [stamp.mtime_ns for stamp in stamps]
    records_N["content"] = np.frombuffer(b"".join(stamp.content for stamp in stamps), "<u8").reshape(-1, 2)
    records_N["state"] = [stamp.state for stamp in stamps]
    records_N["path_bytes"] = sizes
    records_N["path"] = np.cumsum(sizes) - sizes
    return records_N, b"".join(named)


def write_segment(folder: Path, number: int, columns: Columns) -> Entry:
    """Write a segment under its number, whole or not at all."""
    kinds, rows, embed = columns.features_GNE.shape
    parts = columns.parts()
    header = HEADER.pack(MAGIC, kinds, embed, rows, len(columns.dead_D), len(columns.paths))
    blocks: list[Any] = [header, bytes(ALIGN - len(header))]
    for part in parts:
        blocks += [_bytes(part), bytes(-part.nbytes % ALIGN)]
    name = NAME.format(number)
    write_atomic(folder / name, b"".join(blocks))
    checks = [zlib.crc32(_bytes(part)) for part in parts]
    return Entry(file=name, rows=rows, dead=len(columns.dead_D), paths=len(columns.paths), crc32=checks)


def _bytes(part: Array) -> memoryview:
    """An array's values as they lie in memory."""
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data


class Segment:
    """A segment that is open: its columns are mapped, and checked when they are first used."""

    def __init__(self, folder: Path, entry: Entry, kinds: int, embed: int) -> None:
        self._folder = folder
        self.entry = entry
        self.rows = entry.rows
        path = folder / entry.file
        facts = path.lstat()
        sizes = [2 * embed * entry.rows] * kinds
        sizes += [4 * kinds * entry.rows, RECORD.itemsize * entry.rows, 8 * entry.dead, entry.paths]
        self._starts = [ALIGN]
        for size in sizes:
            self._starts.append(self._starts[-1] + math.ceil(size / ALIGN) * ALIGN)
        self._sizes, self._embed, self._kinds = sizes, embed, kinds
        whole = stat.S_ISREG(facts.st_mode) and facts.st_size == self._starts[-1] and len(entry.crc32) == len(sizes)
        if not whole:
            raise damaged(self._folder)
        self._mapped: Array = np.memmap(path, np.uint8, mode="c")  # nobody writes: torch takes writable arrays only
        expected = HEADER.pack(MAGIC, kinds, embed, entry.rows, entry.dead, entry.paths)
        if self._mapped[: HEADER.size].tobytes() != expected:
            raise damaged(self._folder)
        self._checked: set[int] = set()

    def feature(self, kind: int) -> Array:
        """(N, E) fp16 features of one kind."""
        return self._column(kind).view("<f2").reshape(self.rows, self._embed)

    @property
    def lengths(self) -> Array:
        """(N, G) fp32."""
        return self._column(self._kinds).view("<f4").reshape(self.rows, self._kinds)

    @property
    def records(self) -> Array:
        """(N,) records; their paths lie within the blob."""
        checked = self._kinds + 1 in self._checked
        records_N: Array = self._column(self._kinds + 1).view(RECORD)
        ends = records_N["path"] + records_N["path_bytes"]
        if not checked and self.rows and (int(ends.max()) > self.entry.paths or bool((ends < records_N["path"]).any())):
            raise damaged(self._folder)
        return records_N

    @property
    def dead(self) -> Array:
        """(D,) numbers of rows that no longer count."""
        return self._column(self._kinds + 2).view("<u8")

    def path(self, row: int) -> str:
        """The path of a row's file."""
        record = self.records[row]
        start = int(record["path"])
        return self._name(self._column(self._kinds + 3)[start : start + int(record["path_bytes"])].tobytes())

    def stamps(self) -> list[Stamp]:
        """All files of the segment, one by one."""
        blob = self._column(self._kinds + 3).tobytes()
        found = []
        for size, time, content, start, length, state in self.records.tolist():
            name = self._name(blob[start : start + length])
            found.append(Stamp(name, size, time, struct.pack("<QQ", *content), state))
        return found

    @staticmethod
    def _name(data: bytes) -> str:
        return data.decode("utf-8", "surrogateescape")

    def _column(self, number: int) -> Array:
        start, size = self._starts[number], self._sizes[number]
        column = self._mapped[start : start + size]
        if number not in self._checked:
            if zlib.crc32(_bytes(column)) != self.entry.crc32[number]:
                raise damaged(self._folder)
            self._checked.add(number)
        return column
