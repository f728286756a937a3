"""Bring a search index up to date with its folder: new, changed, renamed and deleted files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from dear.data.images import MISSING, ImageList, content_of, image_batches, open_image
from dear.data.packed import SHARDS, image_facts
from dear.data.shards import source_images
from dear.errors import DataError, OverwriteError, option
from dear.model.model import Model
from dear.retrieval.encoder import Encoder, model_encoder
from dear.retrieval.index import INDEX, Index, Manifest, Writer, read_index
from dear.retrieval.segments import COPIED, Stamp
from dear.storage.files import shown
from dear.storage.locks import check_ours, locked

WRITE_EVERY = 4096
"""Newly encoded images after which a segment is written, so that a stop loses little."""
UNKNOWN = bytes(16)
BLOCKS, LARGEST_BLOCK = 16, 16384
"""At least this number of blocks, and at most this number of images in one, if other processes encode them."""
Progress = Callable[[int], None]


class Todo(NamedTuple):
    """A block of files for another process to encode, and the earlier rows that its segment replaces."""

    number: int
    stamps: list[Stamp]
    dead: list[int]


class Made(NamedTuple):
    """The segment of a block, in a file of its own; without checksums if there is nothing to write."""

    number: int
    file: Path
    rows: int
    crc32: dict[str, int]
    unreadable: list[str]
    problems: list[str]


Elsewhere = Callable[[Writer, Sequence[Todo]], Iterable[Made]]
"""Encodes blocks in other processes."""


def update_index(
    encoder: Encoder | Model,
    folder: str | Path,
    out: Path,
    *,
    workers: int = 2,
    batch_size: int = 64,
    overwrite: bool = False,
    progress: Progress | None = None,
    elsewhere: Elsewhere | None = None,
) -> tuple[Index, int]:
    """Index the images of a folder, or of tar or Parquet files; only new and changed ones are encoded.

    Returns the index and the number of those. With `elsewhere`, other processes encode them, block by block.

    Images that cannot be read are left out and named in `Index.problems`. If it was stopped, the next call resumes it.
    """
    listed = source_images(folder)
    root = Path(listed.source)
    maker = model_encoder(encoder) if isinstance(encoder, Model) else encoder
    check_ours(out, "index", resume=not overwrite, overwrite=overwrite)
    with locked(out, "index"):
        check_ours(out, "index", resume=not overwrite, overwrite=overwrite)  # another one may just have ended
        old = None if overwrite else _reusable(out, listed, maker)
        return _Update(maker, root, listed, old, progress).run(out, batch_size, workers, elsewhere)


def _reusable(out: Path, listed: ImageList, encoder: Encoder) -> Index | None:
    """The index that is already there, if it is of the same model; that of another folder or shard is refused."""
    if not (out / INDEX).exists():
        return None
    old, root = read_index(out), Path(listed.source)
    if old.folder != root.resolve():
        raise OverwriteError(
            f"{out} is the index of {old.folder}: give another folder, or replace it with {option(overwrite=True)}."
        )
    _check_shards(old, listed)
    same = (old.model_sha256, old.folder, old.kinds) == (encoder.mark, root.resolve(), encoder.kinds)
    if not same and old.manifest.made_by and ("heads" in encoder.made_by or "heads" in old.manifest.made_by):
        raise OverwriteError(
            f"The index in {out} was made by another CLIP, role map or choice of kinds: give another folder, or "
            f"replace it with {option(overwrite=True)}."
        )
    return old if same else None


def _check_shards(old: Index, listed: ImageList) -> None:
    """Refuse other shards of the same folder than those of the index, all of whose images would be removed."""
    now = {_shard_of(name) for name in listed.names}
    known = None
    for known in map(_shard_of, _names(old)):
        if known in now:
            return
    if known is not None:
        what = f"{shown(known)} in {old.folder}" if known else f"images in {old.folder}, but not in its shards"
        raise OverwriteError(
            f"{old.out} is the index of {what}, and none of its images is listed: name all shards together, as in "
            f"'shards/*.tar', or replace it with {option(overwrite=True)}."
        )


def _names(index: Index) -> Iterator[str]:
    """Names of the images that count; a segment is read when its first name is needed."""
    start = 0
    for segment in index.segments:
        alive = index.alive[start : start + segment.rows].tolist()
        yield from (stamp.path for stamp, counts in zip(segment.stamps(), alive, strict=True) if counts)
        start += segment.rows


def _shard_of(name: str) -> str:
    """The shard that an image is in, by its name in an index; empty for an image in a folder."""
    parts = name.split("/")[:-1]
    return next(("/".join(parts[: at + 1]) for at, part in enumerate(parts) if part.lower().endswith(SHARDS)), "")


@dataclass
class _Rows:
    """Rows that wait to be written."""

    stamps: list[Stamp]
    features: list[Tensor]
    dead: list[int]


class _Update:
    """One pass over a folder."""

    def __init__(
        self, encoder: Encoder, root: Path, listed: ImageList, old: Index | None, progress: Progress | None
    ) -> None:
        self.encoder, self.root, self.listed, self.old, self.progress = encoder, root, listed, old, progress
        known = old.stamps() if old else {}
        self.row_of = {stamp.path: row for row, stamp in known.items()}
        self.known = known
        self.by_content = {stamp.content: row for row, stamp in known.items() if stamp.content != UNKNOWN}
        self.waiting = _Rows([], [], [])

    def run(self, out: Path, batch_size: int, workers: int, elsewhere: Elsewhere | None) -> tuple[Index, int]:
        """Write what is new, segment by segment, then what is gone."""
        stamps = [stamp_of(self.root, name) for name in self.listed.names]
        new = [i for i, stamp in enumerate(stamps) if not self._unchanged(stamp)]
        sizes = {stamp.size for stamp in self.known.values()}
        for i in (i for i in new if stamps[i].size in sizes):
            stamps[i] = hashed(self.root, stamps[i])  # only a file of a known size can be a known one
        copied = [i for i in new if stamps[i].content in self.by_content]
        unseen = [i for i in new if stamps[i].content not in self.by_content]
        writer = self._writer(out)
        for first in range(0, len(copied), WRITE_EVERY):
            self._copy([stamps[i] for i in copied[first : first + WRITE_EVERY]])
            if len(self.waiting.stamps) >= WRITE_EVERY:
                self._flush(writer)
        wanted = [stamps[i] for i in unseen]
        self.unreadable = {stamp.path for stamp in wanted}
        if elsewhere is None:
            problems = self._encode(writer, wanted, batch_size, workers)
        else:
            self._flush(writer)
            problems = self._adopt(writer, elsewhere, wanted, batch_size)
        present, broken = set(self.listed.names), self.unreadable
        self.waiting.dead += [row for name, row in self.row_of.items() if name not in present or name in broken]
        self._flush(writer)
        if writer.manifest.segments:
            writer.tidy()
        index = read_index(out) if writer.manifest.segments else None
        if index is None or not len(index):
            raise DataError(f"None of the images in {self.root} can be read; the first: {problems[0]}")
        encoded = len(unseen) - len(problems)
        return replace(index, problems=tuple(problems), encoded=encoded), encoded

    def _encode(self, writer: Writer, stamps: list[Stamp], batch_size: int, workers: int) -> list[str]:
        problems: list[str] = []
        for part in encoded_batches(self.encoder, self.root, stamps, batch_size=batch_size, workers=workers):
            problems += part.problems
            if part.features is not None:
                self._take(part.stamps, part.features)
                self.unreadable -= {stamp.path for stamp in part.stamps}
            if len(self.waiting.stamps) >= WRITE_EVERY:
                self._flush(writer)
            if self.progress:
                self.progress(part.stop)
        return problems

    def _adopt(self, writer: Writer, elsewhere: Elsewhere, stamps: list[Stamp], batch_size: int) -> list[str]:
        """List the segments that other processes write, each as soon as it is there; their order is that of the files.

        Earlier rows of a block's files die with its segment, so that at any moment each file counts once.
        """
        size = block_size(len(stamps), batch_size)
        parts = [stamps[first : first + size] for first in range(0, len(stamps), size)]
        blocks = [
            Todo(number, part, [self.row_of[one.path] for one in part if one.path in self.row_of])
            for number, part in enumerate(parts)
        ]
        before, done, found = len(writer.manifest.segments), 0, dict[int, Made]()
        for made in elsewhere(writer, blocks):
            found[made.number] = made
            if made.crc32:
                writer.adopt(made.file, made.rows, made.crc32)
            for stamp in parts[made.number]:
                self.row_of.pop(stamp.path, None)
            self.unreadable -= {stamp.path for stamp in parts[made.number]} - set(made.unreadable)
            done += len(parts[made.number])
            if self.progress:
                self.progress(done)
        listed = [number for number in found if found[number].crc32]
        writer.order(before, sorted(range(len(listed)), key=lambda place: listed[place]))
        return [problem for number in sorted(found) for problem in found[number].problems]

    def _take(self, stamps: Sequence[Stamp], features: Tensor) -> None:
        """Rows for files; their earlier rows, if any, no longer count."""
        for stamp in stamps:
            self.waiting.stamps.append(confirmed(self.root, stamp))
            if stamp.path in self.row_of:
                self.waiting.dead.append(self.row_of.pop(stamp.path))
        self.waiting.features.append(features)

    def _copy(self, stamps: Sequence[Stamp]) -> None:
        """Take features over for files whose content is known already: renamed, copied or touched ones."""
        if not stamps or self.old is None:
            return
        rows = torch.tensor([self.by_content[stamp.content] for stamp in stamps])
        order, back = torch.unique(rows, return_inverse=True)
        unit_NGE = torch.stack([self.old.gather(kind, order) for kind in range(len(self.old.kinds))], dim=1)
        whole_NGE = unit_NGE.float() * self.old.lengths(order)[..., None]
        self._take([stamp._replace(state=COPIED) for stamp in stamps], whole_NGE[back])

    def _flush(self, writer: Writer) -> None:
        waiting, self.waiting = self.waiting, _Rows([], [], [])
        if waiting.stamps or waiting.dead:
            shape = (0, len(self.encoder.kinds), self.encoder.clip.geometry.embed_dim)
            features = torch.cat(waiting.features) if waiting.features else torch.zeros(shape)
            writer.append(features, waiting.stamps, waiting.dead)

    def _writer(self, out: Path) -> Writer:
        made_by = dict(self.encoder.made_by)
        if self.old is not None:
            manifest = self.old.manifest.model_copy(
                update={
                    "made_by": made_by or self.old.manifest.made_by,
                    "parts": self.encoder.parts,
                    "lacking": list(self.encoder.lacking),
                }
            )
            writer = Writer.continued(replace(self.old, manifest=manifest))
            if manifest != self.old.manifest:  # such as the new place of a run that was moved
                writer.record()
            return writer
        form = Manifest(
            folder=str(self.root.resolve()),
            kinds=list(self.encoder.kinds),
            embed=self.encoder.clip.geometry.embed_dim,
            parts=self.encoder.parts,
            lacking=list(self.encoder.lacking),
            model_sha256=self.encoder.mark,
            made_by=made_by,
            segments=[],
            next_number=_next_number(out),
        )
        return Writer(out, form)

    def _unchanged(self, stamp: Stamp) -> bool:
        row = self.row_of.get(stamp.path)
        return row is not None and self.known[row][1:3] == stamp[1:3]


class EncodedBatch(NamedTuple):
    """A batch of images: files that could be read, with their features, and what is wrong with the others."""

    stamps: list[Stamp]
    features: Tensor | None
    problems: tuple[str, ...]
    stop: int


def encoded_batches(
    encoder: Encoder, root: Path, stamps: list[Stamp], *, batch_size: int, workers: int
) -> Iterator[EncodedBatch]:
    """Encode files batch by batch; a file without a hash is hashed when it is opened."""

    def open_one(at: int) -> Image.Image:
        if stamps[at].content == UNKNOWN:
            stamps[at] = hashed(root, stamps[at])
        return open_image(root / stamps[at].path)

    wanted = ImageList(tuple(stamp.path for stamp in stamps), open_one)
    for part in image_batches(wanted, encoder.clip.preprocess_eval, size=batch_size, workers=workers):
        features = None if part.images is None else encoder.encode(part.images)
        yield EncodedBatch([stamps[at] for at in part.indices], features, part.problems, part.stop)


def block_size(images: int, batch_size: int) -> int:
    """Images of a block: a sixteenth of all, a multiple of the batch size, at most LARGEST_BLOCK."""
    batches = -(-images // (BLOCKS * batch_size))
    return batch_size * max(1, min(batches, LARGEST_BLOCK // batch_size))


def stamp_of(root: Path, name: str) -> Stamp:
    """A file as it is now."""
    try:
        return Stamp(name, *image_facts(root / name))
    except (OSError, DataError):
        return Stamp(name, 0, 0)  # it is gone or cannot be reached: opening it says why


def hashed(root: Path, stamp: Stamp) -> Stamp:
    """The same with the hash of its content, if it can be read."""
    found = content_of(root / stamp.path)
    return stamp if found == MISSING else stamp._replace(content=bytes.fromhex(found)[:16])


def confirmed(root: Path, stamp: Stamp) -> Stamp:
    """The same; without its hash if the file was changed meanwhile."""
    now = stamp_of(root, stamp.path)
    return stamp if now[1:3] == stamp[1:3] else stamp._replace(content=UNKNOWN)


def _next_number(out: Path) -> int:
    """A number above those of all segments in the folder, listed or not: readers may have them open."""
    numbers = [path.stem.removeprefix("segment-") for path in out.glob("segment-*")]
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
