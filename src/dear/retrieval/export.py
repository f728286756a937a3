"""An index as a Parquet file, for programs with a vector database of their own.

Columns: `path`, relative to the folder of the images, and one list of E fp32 numbers of unit length per kind of
feature. The key `dear-index` of the file's metadata says in JSON what the features were made by.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dear.errors import MissingExtraError, OverwriteError
from dear.retrieval.index import Index
from dear.storage.files import letters, write_atomic

ROWS = 8192
"""Rows per row group, which is what a reader and this writer have in memory at once."""
METADATA = "dear-index"


def write_parquet(index: Index, out: Path) -> int:
    """Write the images that count, one row group after another, whole or not at all; returns their number."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtraError("Writing Parquet files needs pyarrow: pip install 'dear-vlm[data]'.") from None
    if out.exists() or out.is_symlink():
        raise OverwriteError(f"{out} exists: choose another file, or delete it first.")
    vectors = pa.list_(pa.float32(), index.manifest.embed)
    fields = [pa.field("path", pa.string(), nullable=False), *(pa.field(kind, vectors) for kind in index.kinds)]
    schema = pa.schema(fields, {METADATA: json.dumps(_about(index))})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, _parts(index, schema))
    except OSError as error:
        raise OverwriteError(f"{out} cannot be written ({error.strerror or error}): make room and try again.") from None
    return len(index)


class _Buffer(io.RawIOBase):
    """What a writer has written since the last look."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(bytes(data))
        self.written += len(self.parts[-1])
        return len(self.parts[-1])

    def tell(self) -> int:
        return self.written

    def taken(self) -> list[bytes]:
        parts, self.parts = self.parts, []
        return parts


def _parts(index: Index, schema: Any) -> Iterator[bytes]:
    """The bytes of the Parquet file, one row group after another."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    buffer = _Buffer()
    with ParquetWriter(buffer, schema, compression="zstd", use_dictionary=False) as writer:
        for columns in _groups(index):
            arrays = [pa.array(columns["path"], pa.string())]
            for kind in index.kinds:
                numbers = pa.array(columns[kind].reshape(-1).numpy())
                arrays.append(pa.FixedSizeListArray.from_arrays(numbers, index.manifest.embed))
            writer.write_table(pa.table(arrays, schema=schema))
            yield from buffer.taken()
    yield from buffer.taken()


def _groups(index: Index) -> Any:
    """Paths and features of the images that count, at most ROWS at once."""
    start = 0
    for segment in index.segments:
        alive = index.alive[start : start + segment.rows].nonzero()[:, 0]
        start += segment.rows
        for first in range(0, len(alive), ROWS):
            rows = alive[first : first + ROWS]
            features = {kind: segment.feature(index.number(kind))[rows].float() for kind in index.kinds}
            yield {"path": [_readable(segment.path(row)) for row in rows.tolist()], **features}


def _readable(name: str) -> str:
    """A path in UTF-8; bytes of a name that is not are written as in Python, such as \\xff."""
    return letters(name).decode("utf-8", "backslashreplace")


def _about(index: Index) -> dict[str, Any]:
    manifest = index.manifest
    return {
        "folder": manifest.folder,
        "kinds": manifest.kinds,
        "model_sha256": manifest.model_sha256,
        "made_by": manifest.made_by,
        "unit_length": True,
    }
