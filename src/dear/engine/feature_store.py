"""On-disk store of one quantity that the frozen CLIP computes from images: one fp16 row per image or view.

A store is a folder with `store.json`, which describes its rows, and segments (`dear.storage.columns`). The header of a
segment lists the key and the checksum of every row. Any number of processes may write: each adds segments of its own,
whole or not at all, so nothing is locked. A row whose checksum is wrong counts as missing and is computed again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from dear.backbone.augment import AUGMENTATION_VERSION
from dear.backbone.clip import FrozenClip
from dear.errors import CacheError, DearError
from dear.storage.columns import DamagedSegmentError, Segment, checksum, write_segment
from dear.storage.documents import Document
from dear.storage.files import letters, remove_abandoned, sha256
from dear.storage.locks import mark

RECORD, ROWS = "store.json", "rows"
LARGEST = 65504.0
"""The largest number in fp16."""


class StoreRecord(Document):
    """The document `store.json`."""

    format = "dear-features"
    version = 1
    noun = "feature store"
    error = CacheError

    row_shape: list[int]
    description: dict[str, Any]
    """What decides the rows, except the image."""

    @classmethod
    def invalid(cls, where: str, problem: Exception | None) -> DearError:
        """Nobody writes it by hand: whatever is wrong with it, it is damaged."""
        return cls.error(f"{where} is damaged: remove the folder {Path(where).parent}, it will be filled again.")


def store_description(clip: FrozenClip, quantity: str, transform: str) -> dict[str, Any]:
    """Everything that decides the rows of a store, except the images.

    Args:
        clip: the frozen backbone.
        quantity: what a row is, such as "vision state before layer 9" or "image features".
        transform: how images became input, such as "evaluation" or "training view 3".
    """
    return {
        "weights_sha256": clip.weights_sha256,
        "precision": clip.precision,
        "image_size": clip.geometry.image_size,
        "geometry": clip.geometry.as_dict(),
        "preprocessing": dict(clip.model.visual.preprocess_cfg),
        "prefix": quantity,
        "transform": transform,
        "augmentation_version": AUGMENTATION_VERSION,
    }


class _Place(NamedTuple):
    """Where a row is, and the checksum it must have."""

    rows: Tensor
    number: int
    checksum: int


class FeatureStore:
    """Rows of one shape by key, opened by `FeatureStore.open`; to be used from one thread at a time."""

    def __init__(self, folder: Path, row_shape: tuple[int, ...]) -> None:
        self.folder, self.row_shape = folder, row_shape
        self._places: dict[str, list[_Place]] = {}
        self._seen: set[str] = set()
        """Names of the segments that have been looked at."""

    @classmethod
    def open(cls, cache: Path, description: Mapping[str, Any], row_shape: tuple[int, ...]) -> FeatureStore:
        """Open the store of all rows with this description below the folder `cache`, or create it."""
        described = json.loads(json.dumps(dict(description)))
        folder = Path(cache) / f"features-{sha256(json.dumps(described, sort_keys=True).encode())[:16]}"
        store = cls(folder, tuple(row_shape))
        try:
            mark(Path(cache), "cache")
            folder.mkdir(exist_ok=True)
            if not (folder / RECORD).exists():
                StoreRecord(row_shape=list(row_shape), description=described).write(folder / RECORD)
            _check(StoreRecord.read(folder / RECORD), folder, row_shape, described)
            remove_abandoned(folder)  # segments have names of their own, so that writing one does not find others
            store.look_again()
        except DearError:
            raise
        except OSError as error:
            raise _unusable(folder, error) from None
        return store

    def look_again(self) -> None:
        """Note the rows that other processes have added since the store was opened."""
        for path in sorted(self.folder.glob("segment-*.safetensors")):
            if path.name not in self._seen:
                self._seen.add(path.name)
                with suppress(FileNotFoundError, DamagedSegmentError):
                    self._add(Segment(path))

    def __contains__(self, key: object) -> bool:
        """Whether there is a row; it is checked when it is read."""
        return key in self._places

    def __len__(self) -> int:
        """Number of keys that have a row."""
        return len(self._places)

    def get(self, keys: Sequence[str]) -> Tensor:
        """Rows in fp32, (len(keys), *row_shape); a damaged row is missing from then on."""

        def refuse(missing: list[int]) -> Tensor:
            raise CacheError(
                f"{len(missing)} of {len(keys)} rows, the first {keys[missing[0]]!r}, are missing or damaged in the "
                f"cache {self.folder}: compute them and put them in again."
            )

        return self.fetch(keys, refuse)

    def fetch(self, keys: Sequence[str], compute: Callable[[list[int]], Tensor]) -> Tensor:
        """Rows in fp32; those that are missing or damaged are computed and added first.

        `compute` gets positions in `keys` and returns their rows. All rows come back as they are stored, rounded to
        fp16, so the run that fills a store and the runs that use it see the same numbers.
        """
        found = [self._read(key) for key in keys]
        if missing := [position for position, row in enumerate(found) if row is None]:
            computed = compute(missing)
            self.put([keys[position] for position in missing], computed)
            for position, row in zip(missing, computed.detach().to("cpu", torch.float16), strict=True):
                found[position] = row
        rows = [row.float() for row in found if row is not None]
        return torch.stack(rows) if rows else torch.empty(0, *self.row_shape)

    def put(self, keys: Sequence[str], rows: Tensor) -> None:
        """Add rows (len(keys), *row_shape) as one segment; keys that have a row keep it."""
        if tuple(rows.shape) != (len(keys), *self.row_shape):
            raise CacheError(f"Expected {len(keys)} rows of shape {self.row_shape}, but got {tuple(rows.shape)}.")
        if rows.numel() and not float(rows.detach().abs().max()) <= LARGEST:  # also where there is NaN
            raise CacheError(
                f"A feature is above {LARGEST:.0f} or not finite, which fp16 cannot store, so it cannot be cached in "
                f"{self.folder}: run without the cache."
            )
        new = {key: position for position, key in enumerate(keys) if key not in self._places}
        if not new:
            return
        values = rows.detach()[list(new.values())].to("cpu", torch.float16).contiguous()
        sums = [_row_checksum(key, row) for key, row in zip(new, values, strict=True)]
        path = self.folder / f"segment-{secrets.token_hex(8)}.safetensors"
        try:
            write_segment(path, {ROWS: values}, {"keys": json.dumps(list(new)), "crc32": json.dumps(sums)})
            self._seen.add(path.name)
            self._add(Segment(path))
        except OSError as error:
            raise _unusable(self.folder, error) from None

    def _add(self, segment: Segment) -> None:
        """Note the rows of a segment; one whose header does not fit its rows is left out."""
        with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
            rows, keys = segment[ROWS], json.loads(segment.metadata["keys"])
            sums = [int(one) for one in json.loads(segment.metadata["crc32"])]
            fits = rows.dtype == torch.float16 and tuple(rows.shape) == (len(keys), *self.row_shape)
            if fits and len(sums) == len(keys):
                for number, (key, expected) in enumerate(zip(keys, sums, strict=True)):
                    self._places.setdefault(str(key), []).append(_Place(rows, number, expected))

    def _read(self, key: str) -> Tensor | None:
        """One row whose checksum is right, or None; damaged rows are forgotten."""
        while places := self._places.get(key):
            row = places[-1].rows[places[-1].number]
            if _row_checksum(key, row) == places[-1].checksum:
                return row
            places.pop()
        self._places.pop(key, None)
        return None


def _row_checksum(key: str, row: Tensor) -> int:
    return checksum(row, crc32(letters(key)))


def _check(record: StoreRecord, folder: Path, row_shape: tuple[int, ...], description: dict[str, Any]) -> None:
    """Refuse a store of other rows."""
    if tuple(record.row_shape) != tuple(row_shape):
        raise CacheError(
            f"The cache {folder} has rows of shape {tuple(record.row_shape)}, but rows of shape {tuple(row_shape)} are "
            f"asked for: use another cache folder, or remove this one."
        )
    if record.description != description:
        raise CacheError(f"{folder / RECORD} describes other rows: remove the folder {folder}.")


def _unusable(folder: Path, error: OSError) -> CacheError:
    return CacheError(
        f"The cache {folder} cannot be used ({error.strerror or error}): make room or choose another folder, or run "
        f"without the cache; the rows that are in it stay valid."
    )
