"""Read images and labels from a Parquet file: the layout of the hub (`image: struct<bytes, path>`), or plain bytes.

A path in such a file is a name and nothing else: it is never opened.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dear.data.tar_file import harmless
from dear.errors import DataError, DearError, MissingExtraError
from dear.storage.files import MEGABYTE, NotRegularError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALL = "Reading Parquet files needs pyarrow: pip install 'dear-vlm[data]'."
IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes", "image_bytes", "content")
"""Names of columns with images, if the schema does not say which one it is."""
LABELS = ("label", "labels", "class", "classname", "class_name", "fine_label", "target", "cls", "category")
"""Names of columns with labels, in order of preference."""
LARGEST_GROUP = 2048 * MEGABYTE
"""Most bytes of images in one row group, which is read at once."""
REMEMBERED = 512 * MEGABYTE
"""Bytes of images in memory; at least the last row group."""
AT_ONCE = 64
"""Rows that are decoded at once, so that a small page cannot become terabytes."""


MOST_ROWS = 1_000_000
"""Rows of a file, unless it has more bytes than that."""


@dataclass(frozen=True)
class ParquetImages:
    """The images of a Parquet file, one per row."""

    path: Path
    column: str
    """The column of images; its bytes are `column` or `column.bytes`."""
    is_struct: bool
    groups: tuple[int, ...]
    """Number of rows in each row group."""
    names: tuple[str, ...]
    """The row number of each image and, if there is one, the last part of its path."""
    labels: tuple[str | int | None, ...]
    class_names: tuple[str, ...] | None

    def read(self, row: int, mark: tuple[int, ...], *, most: int) -> bytes:
        """The bytes of the image in a row; `mark` changes when the file does."""
        group, first = 0, 0
        while row >= first + self.groups[group]:
            first += self.groups[group]
            group += 1
        data = _GROUPS.rows(self, group, mark)[row - first]
        if data is None:
            raise NotRegularError(0, "its row has no image bytes, and a path in a Parquet file is never opened")
        if len(data) > most:
            raise NotRegularError(0, f"it has {len(data):,} bytes, more than the {most:,} that fit")
        return data


def list_parquet(path: Path) -> ParquetImages:
    """Names and labels of the images in a Parquet file; no image is read."""
    with _opened(path) as file:
        schema = file.schema_arrow
        features = _features(schema)
        column = _image_column(schema, features, path)
        is_struct = not _is_bytes(schema.field(column).type)
        has_path = is_struct and schema.field(column).type.get_field_index("path") >= 0
        label = _label_column(schema, features, path)
        wanted = ([f"{column}.path"] if has_path else []) + ([label] if label else [])
        rows = file.metadata.num_rows
        groups = tuple(file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups))
        if not 0 <= rows <= max(MOST_ROWS, path.stat().st_size):  # an image has more than a byte
            raise _damaged(path)
        found = _names_and_labels(file, wanted, path) if wanted else {}
        paths = [one and one.get("path") for one in found[column]] if has_path else [None] * rows
        labels = found[label] if label else [None] * rows
    if len(paths) != rows or len(labels) != rows or sum(groups) != rows:
        raise _damaged(path)
    class_names = _names_of(features.get(label or ""), path)
    return ParquetImages(
        path,
        column,
        is_struct,
        groups,
        tuple(_name(row, one) for row, one in enumerate(paths)),
        tuple(_label(one, class_names, path) for one in labels),
        class_names,
    )


def _names_and_labels(file: Any, wanted: list[str], path: Path) -> dict[str, list[Any]]:
    """The values of small columns; a page of few bytes can stand for one long text in millions of rows."""
    groups = (file.metadata.row_group(index) for index in range(file.metadata.num_row_groups))
    parts = (group.column(place) for group in groups for place in range(group.num_columns))
    largest = max((part.total_uncompressed_size for part in parts if part.path_in_schema in wanted), default=1)
    found: dict[str, list[Any]] = {}
    total = 0
    for batch in file.iter_batches(max(AT_ONCE, min(65_536, REMEMBERED // max(largest, 1))), columns=wanted):
        total += batch.nbytes
        if total > REMEMBERED:
            raise DataError(f"{shown(path)} has more than {REMEMBERED // MEGABYTE} MB of names and labels.")
        for name in batch.schema.names:
            found.setdefault(name, []).extend(batch.column(name).to_pylist())
    return {**{name.partition(".")[0]: [] for name in wanted}, **found}


def _name(row: int, path: object) -> str:
    last = PurePosixPath(harmless(path)).name if isinstance(path, str) and path.strip() else ""
    return f"{row}/{last}" if last else str(row)


def _label(value: Any, names: tuple[str, ...] | None, path: Path) -> str | int | None:
    if value is None or isinstance(value, str):
        return value.strip() or None if value else None
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"{shown(path)} has a label of type {type(value).__name__}: labels are names or whole numbers.")
    if names is not None and value >= len(names):
        raise DataError(f"{shown(path)} has the label {value}, but names only {len(names)} classes.")
    return value if value >= 0 else None


def _features(schema: Any) -> dict[str, Any]:
    """What the hub's metadata says about each column."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return {name: one for name, one in found.items() if isinstance(one, dict)} if isinstance(found, dict) else {}


def _image_column(schema: Any, features: dict[str, Any], path: Path) -> str:
    holding = [field.name for field in schema if _is_bytes(field.type) or _bytes_inside(field.type)]
    declared = [name for name, one in features.items() if one.get("_type") == "Image" and name in holding]
    for known in (declared, [name for name in IMAGES if name in holding], holding):
        if known:
            return str(known[0])
    columns = ", ".join(field.name for field in schema)
    raise DataError(
        f"{shown(path)} has no column with the bytes of images (its columns: {shown(columns)[:200]}): paths in a "
        f"Parquet file are never opened, so write the images into it."
    )


def _label_column(schema: Any, features: dict[str, Any], path: Path) -> str | None:
    present = [field.name for field in schema]
    declared = [name for name, one in features.items() if one.get("_type") == "ClassLabel" and name in present]
    if named := [name for name in LABELS if name in (declared or present)]:
        return named[0]
    if len(declared) > 1:
        raise DataError(f"{shown(path)} has several columns of labels, {', '.join(declared)}: call one of them label.")
    return declared[0] if declared else None


def _names_of(feature: Any, path: Path) -> tuple[str, ...] | None:
    names = feature.get("names") if isinstance(feature, dict) else None
    if not isinstance(names, list) or not names:
        return None
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise DataError(f"{shown(path)} has a class without a name: every name of a ClassLabel must be a text.")
    return tuple(names)


def _is_bytes(kind: Any) -> bool:
    return str(kind) in ("binary", "large_binary")


def _bytes_inside(kind: Any) -> bool:
    index = kind.get_field_index("bytes") if str(kind).startswith("struct") else -1
    return index >= 0 and _is_bytes(kind.field(index).type)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An open Parquet file; whatever a damaged one causes is one sentence."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise MissingExtraError(INSTALL) from None
    try:
        if not path.is_file():
            raise NotRegularError(0, "it is not a regular file", str(path))
        with ParquetFile(path, pre_buffer=False) as file:
            yield file
    except DearError:
        raise
    except NotRegularError as error:
        raise DataError(f"{shown(path)} cannot be read: {error.strerror}.") from None
    except Exception as error:  # pyarrow raises many kinds of errors for damaged files
        raise _damaged(path) from error


def _damaged(path: Path) -> DataError:
    return DataError(f"{shown(path)} is not a Parquet file, or it is damaged: download it again.")


class _Groups:
    """Images of the row groups that were read last, at most REMEMBERED bytes of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: OrderedDict[tuple[Any, ...], list[bytes | None]] = OrderedDict()
        self._bytes = 0

    def rows(self, images: ParquetImages, group: int, mark: tuple[int, ...]) -> list[bytes | None]:
        """The bytes of every image of a row group."""
        key = (images.path, group, mark)
        with self._lock:
            if key not in self._read:
                found = _read_group(images, group)
                self._read[key] = found
                self._bytes += _size(found)
                while self._bytes > REMEMBERED and len(self._read) > 1:
                    self._bytes -= _size(self._read.popitem(last=False)[1])
            self._read.move_to_end(key)
            return self._read[key]


def _read_group(images: ParquetImages, group: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    total, column = 0, f"{images.column}.bytes" if images.is_struct else images.column
    with _opened(images.path) as file:
        about = file.metadata.row_group(group)
        parts = [about.column(index) for index in range(about.num_columns)]
        total = sum(part.total_uncompressed_size for part in parts if part.path_in_schema == column)
        if total > LARGEST_GROUP:
            raise _too_large(images.path)
        total = 0
        for batch in file.iter_batches(AT_ONCE, row_groups=[group], columns=[column]):
            values = batch.column(0).field("bytes") if images.is_struct else batch.column(0)
            total += values.nbytes
            if total > LARGEST_GROUP:
                raise _too_large(images.path)
            found += values.to_pylist()
    if len(found) != images.groups[group]:
        raise _damaged(images.path)
    return found


def _too_large(path: Path) -> DataError:
    return DataError(
        f"{shown(path)} has more than {LARGEST_GROUP // MEGABYTE:,} MB of images in one row group: write it again with "
        f"row_group_size=1000."
    )


def _size(rows: list[bytes | None]) -> int:
    return sum(len(row) for row in rows if row is not None)


_GROUPS = _Groups()
