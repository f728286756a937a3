"""The search index on disk: a manifest with a checksum, and segments with checksums. It grows by appending.

At any moment the manifest lists a whole index: a segment is written first, then the manifest that lists it, and
unlisted segments are removed last. One process at a time writes (`dear.storage.locks.locked`); readers need no lock.
Shapes: N rows, G kinds of features, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from dear.errors import ConfigError, DataError, NewerFormatError, did_you_mean, option
from dear.retrieval.segments import NAME, Entry, Segment, Stamp, columns_of, damaged, stored_columns, write_segment
from dear.retrieval.segments_of_v0_2 import OldEntry
from dear.storage.documents import Document, OpenRecord, as_bytes
from dear.storage.files import write_atomic

INDEX = "index.json"
WHOLE = "cls"
"""The kind of feature that is the image as a whole."""
BLOCK = 1024
"""Rows that are compared at once; in fp32 they fit into a processor's cache."""
TRIES = 5
"""How often a reader starts again because a writer has just replaced segments."""
MOST_DEAD = 0.25
"""Share of dead rows above which an index is rewritten."""
MANY, SMALL = 64, 1024
"""More than MANY segments with fewer than SMALL rows on average are merged."""
PUT_TOGETHER = 16384
"""Rows of a segment of a rewritten index."""


class Manifest(Document, OpenRecord):
    """The document `index.json`."""

    format = "dear-index"
    version = 4
    oldest = 3
    noun = "search index"
    sealed = True
    error, newer = DataError, NewerFormatError

    folder: str
    kinds: list[str] = Field(min_length=1)
    embed: int = Field(ge=1, le=65536)
    parts: bool
    """Whether the features, times their lengths, are parts of a sum whose whole is `WHOLE`."""
    lacking: list[str]
    """Attributes that no head is about."""
    model_sha256: str
    made_by: dict[str, Any]
    """What to load to encode a query."""
    segments: list[Entry | OldEntry]
    next_number: int = Field(ge=1)


@dataclass(frozen=True)
class Index:
    """An open index. Rows are numbered through all segments, dead ones included."""

    out: Path
    manifest: Manifest
    segments: tuple[Segment, ...]
    problems: tuple[str, ...] = field(default=())
    """Images that the last update could not read."""
    encoded: int = 0
    """Images that the last update encoded."""

    @property
    def folder(self) -> Path:
        """The folder of the images."""
        return Path(self.manifest.folder)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of features."""
        return tuple(self.manifest.kinds)

    @property
    def model_sha256(self) -> str:
        """What the features were made by."""
        return self.manifest.model_sha256

    @cached_property
    def rows(self) -> int:
        """N, dead rows included."""
        return sum(segment.rows for segment in self.segments)

    @cached_property
    def alive(self) -> Tensor:
        """(N,) whether a row counts."""
        found, total = torch.ones(self.rows, dtype=torch.bool), 0
        for segment in self.segments:
            dead = segment.dead
            if len(dead) and (int(dead.max()) >= total or int(dead.min()) < 0):
                raise damaged(self.out)
            found[dead] = False
            total += segment.rows
        return found

    def __len__(self) -> int:
        """Number of images that can be found."""
        return int(self.alive.sum())

    def number(self, kind: str) -> int:
        """The position of a kind of feature."""
        if kind not in self.kinds:
            if kind in self.manifest.lacking:
                raise ConfigError(
                    f"The role map of this index has no head for {kind}, so search by {kind} is not available: "
                    f"choose {', '.join(self.kinds)}."
                )
            known = ", ".join(self.kinds)
            raise ConfigError(f"There is no feature {kind!r}: choose {known}.{did_you_mean(kind, self.kinds)}")
        return self.kinds.index(kind)

    def blocks(self, *kinds: str) -> Iterator[tuple[int, int, list[Tensor], Tensor]]:
        """Blocks of rows: first row, end, their unit features of each kind (B, E) in fp32, their lengths (B, G).

        The memory of the features is reused for the next block.
        """
        numbers, start = [self.number(kind) for kind in kinds], 0
        memory = [torch.empty(BLOCK, self.manifest.embed) for _ in kinds]
        for segment in self.segments:
            columns = [segment.feature(number) for number in numbers]
            lengths = segment.lengths[:, numbers] if len(numbers) > 1 else torch.empty(0)
            for first in range(0, segment.rows, BLOCK):
                last = min(first + BLOCK, segment.rows)
                yield (
                    start + first,
                    start + last,
                    [
                        own[: last - first].copy_(column[first:last])
                        for own, column in zip(memory, columns, strict=True)
                    ],
                    lengths[first:last],
                )
            start += segment.rows

    def features(self, kind: str) -> Tensor:
        """(number of images, E) features of one kind, in memory."""
        found = [block.clone() for _, _, (block,), _ in self.blocks(kind)]
        return torch.cat(found)[self.alive] if found else torch.empty(0, self.manifest.embed)

    def sample(self, kind: str, most: int, *, pieces: int | None = None) -> Tensor:
        """At most `most` features of one kind, evenly spread over the images that count.

        With `pieces` they come from this number of segments, so that no others are read and checked.
        """
        rows = self.alive.nonzero()[:, 0]
        if pieces is not None and len(self.segments) > pieces:
            ends = torch.tensor([segment.rows for segment in self.segments]).cumsum(0)
            segment_of = torch.bucketize(rows, ends, right=True)
            full = torch.unique(segment_of)
            rows = rows[torch.isin(segment_of, full[torch.arange(pieces) * len(full) // pieces])]
        chosen = rows[torch.arange(min(most, len(rows))) * len(rows) // max(1, min(most, len(rows)))]
        return self.gather(self.number(kind), chosen).float()

    def gather(self, number: int, rows: Tensor) -> Tensor:
        """Features of chosen rows, in ascending order, as they are stored."""
        return self._gathered(rows, lambda segment, own: segment.feature(number)[own])

    def lengths(self, rows: Tensor) -> Tensor:
        """Lengths (…, G) of chosen rows, in ascending order."""
        return self._gathered(rows, lambda segment, own: segment.lengths[own])

    def _gathered(self, rows: Tensor, take: Callable[[Segment, Tensor], Tensor]) -> Tensor:
        found, start = [], 0
        for segment in self.segments:
            first, last = torch.searchsorted(rows, torch.tensor([start, start + segment.rows])).tolist()
            if last > first:
                found.append(take(segment, rows[first:last] - start))
            start += segment.rows
        return torch.cat(found)

    def path(self, row: int) -> Path:
        """The file of a row; a path that leads out of the folder is refused."""
        for segment in self.segments:
            if row < segment.rows:
                name = segment.path(row)
                parts = PurePosixPath(name).parts
                if not parts or parts[0] == "/" or ".." in parts or "\0" in name:
                    raise damaged(self.out)
                return self.folder / name
            row -= segment.rows
        raise IndexError(row)

    def stamps(self) -> dict[int, Stamp]:
        """Every image that counts, by its row; read one by one, for updates only."""
        listed = [stamp for segment in self.segments for stamp in segment.stamps()]
        return {row: listed[row] for row in self.alive.nonzero()[:, 0].tolist()}

    @property
    def images(self) -> tuple[Stamp, ...]:
        """Every image that counts, in the order of `features`."""
        return tuple(self.stamps().values())


def read_index(out: Path) -> Index:
    """Open an index: read its manifest and map its segments, whose columns are checked when they are first used."""
    for _ in range(TRIES):
        try:
            form = Manifest.read(out / INDEX)
        except OSError:
            raise DataError(
                f"{out} contains no index: index a folder of photos with {option(clip='CLIP', out=str(out))}."
            ) from None
        except NewerFormatError:
            raise
        except Exception as error:  # whatever a damaged file can cause
            raise damaged(out) from error
        with suppress(FileNotFoundError):  # a writer has replaced it meanwhile
            return _opened(out, form)
    raise damaged(out)


def _opened(out: Path, form: Manifest) -> Index:
    try:
        segments = tuple(entry.open(out, len(form.kinds), form.embed) for entry in form.segments)
        index = Index(out, form, segments)
        assert len(index.alive) == index.rows
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise damaged(out) from error
    return index


class Writer:
    """Appends to an index; the caller has locked the folder."""

    def __init__(self, out: Path, manifest: Manifest) -> None:
        self.out, self.manifest = out, manifest

    @classmethod
    def continued(cls, index: Index) -> Writer:
        """Append to an index that is there."""
        return cls(index.out, index.manifest)

    def append(self, features_NGE: Tensor, stamps: Sequence[Stamp], dead: Sequence[int] = ()) -> None:
        """Add rows, and say which earlier ones no longer count; older segments stay as they are."""
        columns = columns_of(features_NGE, stamps, dead)
        self._try(lambda: self._add([write_segment(self.out, self.manifest.next_number, columns)]))

    def record(self) -> None:
        """Write the manifest as it is, without a new segment."""
        self._try(lambda: self._add([]))

    def adopt(self, file: Path, rows: int, crc32: dict[str, int]) -> None:
        """List a segment that another process wrote to a file of its own on the same disk."""

        def take() -> None:
            name = NAME.format(self.manifest.next_number)
            file.replace(self.out / name)
            self._add([Entry(file=name, rows=rows, crc32=crc32)])

        self._try(take)

    def order(self, first: int, places: Sequence[int]) -> None:
        """Reorder the segments from `first` on, which replace rows of earlier ones only."""
        listed = self.manifest.segments
        if list(places) != sorted(places):
            self._try(lambda: self._add([*listed[:first], *(listed[first + place] for place in places)], replace=True))

    def tidy(self) -> None:
        """Rewrite the index if too many rows are dead or segments are too small; remove unlisted segments."""
        index = read_index(self.out)
        pieces = len(index.segments)
        if index.rows - len(index) > MOST_DEAD * index.rows or (pieces > MANY and index.rows < SMALL * pieces):
            self._try(lambda: self._compact(index))
        named = {entry.file for entry in self.manifest.segments}
        for left in self.out.glob("segment-*"):
            if left.name not in named and left.is_file():
                with suppress(OSError):
                    left.unlink()

    def _compact(self, index: Index) -> None:
        rows, entries, number = index.alive.nonzero()[:, 0], [], self.manifest.next_number
        stamps = index.stamps()
        for first in range(0, len(rows), PUT_TOGETHER):
            some = rows[first : first + PUT_TOGETHER]
            features = [index.gather(kind, some) for kind in range(len(index.kinds))]
            content = stored_columns(features, index.lengths(some), [stamps[row] for row in some.tolist()])
            entries.append(write_segment(self.out, number, content))
            number += 1
        self._add(entries, replace=True)

    def _add(self, entries: Sequence[Entry | OldEntry], *, replace: bool = False) -> None:
        """List new segments in the manifest, after the others or instead of them."""
        before = [] if replace else self.manifest.segments
        number = self.manifest.next_number + len(entries)
        self.manifest = self.manifest.model_copy(update={"segments": [*before, *entries], "next_number": number})
        write_atomic(self.out / INDEX, as_bytes(Manifest.encode(self.manifest.model_dump())))

    def _try(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            raise DataError(
                f"The index cannot be written to {self.out} ({error.strerror}): make room and try again."
            ) from None
