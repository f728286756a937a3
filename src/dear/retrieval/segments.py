"""Segments of a search index: features of images, and the files that they belong to.

Columns of a segment, with N rows, G kinds of features and E numbers per feature:
  feature.0 … feature.G-1   (N, E) fp16, features of unit length
  lengths                   (N, G) fp32, the length of each feature before it was normalised
  size, mtime_ns, state     (N,) int64, facts about each file
  content                   (N, 16) uint8, first half of the SHA-256 of each file
  path_ends                 (N,) int64, where the path of each file ends in `paths`
  paths                     uint8, the paths of all files, one after another
  dead                      int64, numbers of earlier rows that no longer count
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from dear.errors import DataError, option
from dear.storage import columns
from dear.storage.columns import HEADER, DamagedSegmentError, checksum, header_checksum
from dear.storage.documents import OpenRecord
from dear.storage.files import letters

ENCODED, COPIED = 0, 1
"""States of a file: its features were computed, or copied from a file of the same content, as after a rename."""
NAME = "segment-{:06d}.safetensors"
PATTERN = r"^segment-[0-9]{6,18}\.safetensors$"
FILE_COLUMNS = ("size", "mtime_ns", "state", "path_ends")


def damaged(folder: Path) -> DataError:
    """The error for an index whose bytes are not those that were written."""
    return DataError(f"The index in {folder} is damaged: make it again with {option(overwrite=True)}.")


class Entry(OpenRecord):
    """A segment in the manifest."""

    file: str = Field(pattern=PATTERN)
    rows: int = Field(ge=0, lt=2**48)
    crc32: dict[str, int]
    """Checksums of the header ("") and of every column."""

    def open(self, folder: Path, kinds: int, embed: int) -> Segment:
        """Map the segment."""
        return Segment(folder, self, kinds, embed)


class Stamp(NamedTuple):
    """A file as it was when it was encoded."""

    path: str
    size: int
    mtime_ns: int
    content: bytes = bytes(16)
    """First half of its SHA-256; zeros if unknown."""
    state: int = ENCODED


def columns_of(features_NGE: Tensor, stamps: Sequence[Stamp], dead: Sequence[int] = ()) -> dict[str, Tensor]:
    """Columns for features that are not yet normalised, their files, and the rows that they replace."""
    values_NGE = features_NGE.detach().cpu().float()
    lengths_NG = values_NGE.norm(dim=-1)
    if not bool(lengths_NG.isfinite().all()):
        raise DataError("Features are not finite: the model is not usable, train it again.")
    pairs = zip(values_NGE.unbind(1), lengths_NG.clamp(min=1e-12).unbind(1), strict=True)
    unit = [(rows_NE / lengths_N[:, None]).half() for rows_NE, lengths_N in pairs]
    return stored_columns(unit, lengths_NG.contiguous(), stamps, dead)


def stored_columns(
    unit_GNE: Sequence[Tensor], lengths_NG: Tensor, stamps: Sequence[Stamp], dead: Sequence[int] = ()
) -> dict[str, Tensor]:
    """Columns for features as they are stored."""
    names = [letters(stamp.path) for stamp in stamps]
    ends = torch.tensor([len(name) for name in names], dtype=torch.int64).cumsum(0)
    return {
        **{f"feature.{kind}": rows_NE for kind, rows_NE in enumerate(unit_GNE)},
        "lengths": lengths_NG,
        "size": torch.tensor([stamp.size for stamp in stamps], dtype=torch.int64),
        "mtime_ns": torch.tensor([stamp.mtime_ns for stamp in stamps], dtype=torch.int64),
        "state": torch.tensor([stamp.state for stamp in stamps], dtype=torch.int64),
        "content": _bytes(b"".join(stamp.content for stamp in stamps)).reshape(-1, 16),
        "path_ends": ends,
        "paths": _bytes(b"".join(names)),
        "dead": torch.tensor(list(dead), dtype=torch.int64),
    }


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def write_segment(folder: Path, number: int, content: dict[str, Tensor]) -> Entry:
    """Write a segment under its number, whole or not at all."""
    path = folder / NAME.format(number)
    columns.write_segment(path, content)
    sums = {HEADER: header_checksum(path), **{name: checksum(column) for name, column in content.items()}}
    return Entry(file=path.name, rows=len(content["size"]), crc32=sums)


class Segment:
    """An open segment: its columns are mapped, and checked when they are first used."""

    _path_ends: Tensor | None = None

    def __init__(self, folder: Path, entry: Entry, kinds: int, embed: int) -> None:
        self._folder, self.rows, self._kinds = folder, entry.rows, kinds
        try:
            self._columns = columns.Segment(folder / entry.file, entry.crc32)
            shapes = self._columns.shapes()
        except DamagedSegmentError as error:
            raise damaged(folder) from error
        expected: dict[str, tuple[str, tuple[int, ...]]]
        expected = {f"feature.{kind}": ("torch.float16", (self.rows, embed)) for kind in range(kinds)}
        expected |= dict.fromkeys(FILE_COLUMNS, ("torch.int64", (self.rows,)))
        expected |= {"lengths": ("torch.float32", (self.rows, kinds)), "content": ("torch.uint8", (self.rows, 16))}
        expected |= {name: (kind, shapes.get(name, ("", (0,)))[1][:1]) for name, kind in _OF_ANY_LENGTH}
        if shapes != expected or not shapes.keys() <= entry.crc32.keys():
            raise damaged(folder)

    def column(self, name: str) -> Tensor:
        """One column."""
        try:
            return self._columns[name]
        except DamagedSegmentError as error:
            raise damaged(self._folder) from error

    def feature(self, kind: int) -> Tensor:
        """(N, E) fp16 features of one kind."""
        return self.column(f"feature.{kind}")

    @property
    def lengths(self) -> Tensor:
        """(N, G) fp32."""
        return self.column("lengths")

    @property
    def dead(self) -> Tensor:
        """(D,) numbers of rows that no longer count."""
        return self.column("dead")

    def path_ends(self) -> Tensor:
        """(N,) ends of the paths, which lie within `paths` in ascending order."""
        if self._path_ends is None:
            ends = self.column("path_ends")
            ordered = not self.rows or (int(ends[0]) >= 0 and bool((ends.diff() >= 0).all()))
            if not ordered or (self.rows and int(ends[-1]) > len(self.column("paths"))):
                raise damaged(self._folder)
            self._path_ends = ends
        return self._path_ends

    def path(self, row: int) -> str:
        """The path of a row's file."""
        ends = self.path_ends()
        start = int(ends[row - 1]) if row else 0
        return _name(self.column("paths")[start : int(ends[row])].numpy().tobytes())

    def stamps(self) -> list[Stamp]:
        """All files of the segment."""
        blob = self.column("paths").numpy().tobytes()
        ends = self.path_ends().tolist()
        names = [_name(blob[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        sizes, times, states = (self.column(name).tolist() for name in ("size", "mtime_ns", "state"))
        contents = [row.tobytes() for row in self.column("content").numpy()]
        return [Stamp(*one) for one in zip(names, sizes, times, contents, states, strict=True)]


_OF_ANY_LENGTH = (("paths", "torch.uint8"), ("dead", "torch.int64"))


def _name(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
