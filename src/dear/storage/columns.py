"""Segments: safetensors files of named columns that are written once and memory-mapped afterwards.

The search index and the feature cache store their rows in segments. A segment is written whole or not at all, and never
changed. Its checksums are stored by whoever writes it: the index has them in its manifest, one per column, and checks a
column when it is first used. The feature cache has one per row in the segment's own header.
"""

from __future__ import annotations

import stat
import zlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, uint8

from dear.storage.files import write_atomic

HEADER = ""
"""Name under which the checksum of a segment's header is listed; no column has it."""
LARGEST_HEADER = 100_000_000
"""Bytes of the largest header that safetensors reads."""


class DamagedSegmentError(ValueError):
    """The bytes of a segment are not those that were written."""


def write_segment(path: Path, columns: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a segment of contiguous columns, whole or not at all."""
    write_atomic(path, save(dict(columns), dict(metadata) if metadata else None))


def checksum(values: Tensor, start: int = 0) -> int:
    """CRC-32 of a tensor's bytes, continued from `start`."""
    return zlib.crc32(values.contiguous().reshape(-1).view(uint8).numpy().data, start) if values.numel() else start


class Segment:
    """An open segment. Columns are mapped, so memory is used only for what is read."""

    def __init__(self, path: Path, checksums: Mapping[str, int] | None = None) -> None:
        """Map a segment; with `checksums`, its header now and each column when it is first used are checked."""
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedSegmentError(f"{path} is not a regular file")
        self.path, self._checksums = path, checksums
        self._checked: set[str] = set()
        if checksums is not None and header_checksum(path) != checksums.get(HEADER):
            raise DamagedSegmentError(f"{path} has another header")
        try:
            with safe_open(path, framework="pt") as file:
                self.metadata: dict[str, str] = file.metadata() or {}
                self._columns: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise
        except (SafetensorError, OSError, RuntimeError) as error:
            raise DamagedSegmentError(str(error)) from None

    def __getitem__(self, name: str) -> Tensor:
        """One column, checked if it has a checksum."""
        if name not in self._columns:
            raise DamagedSegmentError(f"{self.path} has no column {name!r}")
        values = self._columns[name]
        if self._checksums is not None and name not in self._checked:
            if checksum(values) != self._checksums.get(name):
                raise DamagedSegmentError(f"the column {name!r} of {self.path} was changed")
            self._checked.add(name)
        return values

    def shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of every column, without reading any."""
        return {name: (str(one.dtype), tuple(one.shape)) for name, one in self._columns.items()}


def header_checksum(path: Path) -> int:
    """CRC-32 of the header of a segment."""
    with path.open("rb") as file:
        start = file.read(8)
        size = int.from_bytes(start, "little")
        return zlib.crc32(file.read(size), zlib.crc32(start)) if size <= LARGEST_HEADER else 0
