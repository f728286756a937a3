"""Bring a search index up to date with its folder: new, changed, renamed and deleted files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dear.data.images import MISSING, ImageList, content_of, image_batches
from dear.data.packed import image_facts
from dear.data.shards import source_images
from dear.errors import DataError, OverwriteError, option
from dear.model.model import Model
from dear.retrieval.encoder import Encoder, model_encoder
from dear.retrieval.index import INDEX, Index, Manifest, Writer, read_index
from dear.retrieval.segments import COPIED, Stamp
from dear.storage.locks import check_ours, locked

WRITE_EVERY = 4096
"""Newly encoded images after which a segment is written, so that a stop loses little."""
UNKNOWN = bytes(16)
Progress = Callable[[int], None]


def update_index(
    encoder: Encoder | Model,
    folder: str | Path,
    out: Path,
    *,
    workers: int = 2,
    batch_size: int = 64,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[Index, int]:
    """Index the images of a folder, or of tar or Parquet files; only new and changed ones are encoded.

    Returns the index and the number of those.
    Images that cannot be read are left out and named in `Index.problems`. If it was stopped, the next call resumes it.
    """
    listed = source_images(folder)
    root = Path(listed.source)
    maker = model_encoder(encoder) if isinstance(encoder, Model) else encoder
    check_ours(out, "index", resume=not overwrite, overwrite=overwrite)
    with locked(out, "index"):
        check_ours(out, "index", resume=not overwrite, overwrite=overwrite)  # another one may just have ended
        old = None if overwrite else _reusable(out, root, maker)
        return _Update(maker, root, listed, old, progress).run(out, batch_size, workers)


def _reusable(out: Path, root: Path, encoder: Encoder) -> Index | None:
    """The index that is already there, if it is of the same model; that of another folder is refused."""
    if not (out / INDEX).exists():
        return None
    old = read_index(out)
    if old.folder != root.resolve():
        raise OverwriteError(
            f"{out} is the index of {old.folder}: give another folder, or replace it with {option(overwrite=True)}."
        )
    same = (old.model_sha256, old.folder, old.kinds) == (encoder.mark, root.resolve(), encoder.kinds)
    if not same and len(old.manifest.made_by) and "heads" in encoder.made_by:
        raise OverwriteError(
            f"The index in {out} was made by another CLIP, role map or choice of kinds: give another folder, or "
            f"replace it with {option(overwrite=True)}."
        )
    return old if same else None


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

    def run(self, out: Path, batch_size: int, workers: int) -> tuple[Index, int]:
        """Write what is new, segment by segment, then what is gone."""
        stamps = [self._stamp(name) for name in self.listed.names]
        new = [i for i, stamp in enumerate(stamps) if not self._unchanged(stamp)]
        sizes = {stamp.size for stamp in self.known.values()}
        for i in (i for i in new if stamps[i].size in sizes):
            stamps[i] = self._hashed(stamps[i])  # only a file of a known size can be a known one
        copied = [i for i in new if stamps[i].content in self.by_content]
        unseen = [i for i in new if stamps[i].content not in self.by_content]
        writer = self._writer(out)
        self._copy([stamps[i] for i in copied])
        problems = self._encode(writer, [stamps[i] for i in unseen], unseen, batch_size, workers)
        present = set(self.listed.names)
        broken = {stamps[i].path for i in unseen if i in self.unreadable}
        self.waiting.dead += [row for name, row in self.row_of.items() if name not in present or name in broken]
        self._flush(writer)
        if writer.manifest.segments:
            writer.tidy()
        index = read_index(out) if writer.manifest.segments else None
        if index is None or not len(index):
            raise DataError(f"None of the images in {self.root} can be read; the first: {problems[0]}")
        encoded = len(unseen) - len(problems)
        return replace(index, problems=tuple(problems), encoded=encoded), encoded

    def _encode(
        self, writer: Writer, stamps: list[Stamp], places: list[int], batch_size: int, workers: int
    ) -> list[str]:
        def open_one(at: int) -> Image.Image:
            if stamps[at].content == UNKNOWN:
                stamps[at] = self._hashed(stamps[at])
            return self.listed.open(places[at])

        wanted = ImageList(tuple(stamp.path for stamp in stamps), open_one)
        problems: list[str] = []
        self.unreadable: set[int] = set(places)
        for part in image_batches(wanted, self.encoder.clip.preprocess_eval, size=batch_size, workers=workers):
            problems += part.problems
            if part.images is not None:
                self._take([stamps[at] for at in part.indices], self.encoder.encode(part.images))
                self.unreadable -= {places[at] for at in part.indices}
            if len(self.waiting.stamps) >= WRITE_EVERY:
                self._flush(writer)
            if self.progress:
                self.progress(part.stop)
        return problems

    def _take(self, stamps: Sequence[Stamp], features: Tensor) -> None:
        """Rows for files; their earlier rows, if any, no longer count."""
        for stamp in stamps:
            now = self._stamp(stamp.path)
            same = (now.size, now.mtime_ns) == (stamp.size, stamp.mtime_ns)
            self.waiting.stamps.append(stamp if same else stamp._replace(content=UNKNOWN))
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
            return Writer.continued(replace(self.old, manifest=manifest))
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

    def _stamp(self, name: str) -> Stamp:
        try:
            return Stamp(name, *image_facts(self.root / name))
        except (OSError, DataError):
            return Stamp(name, 0, 0)  # it is gone or cannot be reached: opening it says why

    def _hashed(self, stamp: Stamp) -> Stamp:
        found = content_of(self.root / stamp.path)
        return stamp if found == MISSING else stamp._replace(content=bytes.fromhex(found)[:16])


def _next_number(out: Path) -> int:
    """A number above those of all segments that lie there, whoever they belong to: readers may have them open."""
    numbers = [path.stem.removeprefix("segment-") for path in out.glob("segment-*")]
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
