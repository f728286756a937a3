"""Reader of the index segments that version 0.2 wrote (`segment-*.dear`).

After a header of 64 bytes follow, each aligned to 64 bytes and little-endian: one fp16 column per kind of feature, the
lengths (fp32), one `FILE` record per row, the dead rows (u64) and the paths. An update leaves these files as they are.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from dear.retrieval.segments import Segment, damaged
from dear.storage.documents import OpenRecord

HEADER = struct.Struct("<8sIIQQQ")
FILE = np.dtype(
    [("size", "<i8"), ("mtime_ns", "<i8"), ("content", "u1", 16), ("path", "<u8"), ("bytes", "<u4"), ("state", "<u4")]
)
ALIGN = 64


class OldEntry(OpenRecord):
    """A segment of version 0.2 in the manifest."""

    file: str = Field(pattern=r"^segment-[0-9]{6,18}\.dear$")
    rows: int = Field(ge=0, lt=2**48)
    dead: int = Field(ge=0, lt=2**48)
    paths: int = Field(ge=0, lt=2**48)
    crc32: list[int]
    """One per column, in their order."""

    def open(self, folder: Path, kinds: int, embed: int) -> Segment:
        """Map the segment."""
        return _OldSegment(folder, self, kinds, embed)


class _OldSegment(Segment):
    def __init__(self, folder: Path, entry: OldEntry, kinds: int, embed: int) -> None:
        self._folder, self.rows, self._kinds = folder, entry.rows, kinds
        n = entry.rows
        columns: list[tuple[str, npt.DTypeLike, tuple[int, ...]]]
        columns = [(f"feature.{kind}", "<f2", (n, embed)) for kind in range(kinds)]
        columns += [("lengths", "<f4", (n, kinds)), ("files", FILE, (n,)), ("dead", "<i8", (entry.dead,))]
        columns += [("paths", "u1", (entry.paths,))]
        self._layout, start = {}, ALIGN
        for (name, kind, shape), crc in zip(columns, [*entry.crc32, *([0] * len(columns))], strict=False):
            self._layout[name] = np.dtype(kind), shape, start, crc
            start += -(-np.dtype(kind).itemsize * int(np.prod(shape)) // ALIGN) * ALIGN
        path = folder / entry.file
        facts = path.lstat()
        if not S_ISREG(facts.st_mode) or facts.st_size != start or len(entry.crc32) != len(columns):
            raise damaged(folder)
        self._mapped: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="c")
        if self._mapped[: HEADER.size].tobytes() != HEADER.pack(b"dearseg1", kinds, embed, n, entry.dead, entry.paths):
            raise damaged(folder)
        self._loaded: dict[str, npt.NDArray[Any]] = {}

    def _array(self, name: str) -> npt.NDArray[Any]:
        if name not in self._loaded:
            kind, shape, start, crc = self._layout[name]
            data = self._mapped[start : start + kind.itemsize * int(np.prod(shape))]
            if zlib.crc32(data.data) != crc:
                raise damaged(self._folder)
            self._loaded[name] = data.view(kind).reshape(shape)
        return self._loaded[name]

    def column(self, name: str) -> Tensor:
        """One column under the name that it has today."""
        if name in self._layout:
            return torch.from_numpy(self._array(name))
        files = self._array("files")
        if name == "path_ends":
            ends = np.cumsum(files["bytes"], dtype=np.int64)
            if (ends - files["bytes"] != files["path"]).any():
                raise damaged(self._folder)
            return torch.from_numpy(ends)
        return torch.from_numpy(np.ascontiguousarray(files[name]).astype(np.uint8 if name == "content" else np.int64))
