"""Faster search in large indexes: rows in lists around centroids, by faiss. A cache of the segments and nothing else.

Every kind of feature has an entry in the user's cache, a folder named by a hash of the segments that it was built from:
  lists.faiss            IVF index with fp16 codes (the stored features unchanged), memory-mapped
  columns.safetensors    sums (L,): checksum of each list; sample (S, E): features spread evenly over the images
  lists.json             what was built, with checksums of both files

faiss does not check what it reads. Therefore entries are only in the user's own cache and never in an index, which may
come from anybody; the part of `lists.faiss` that faiss parses is hashed before faiss opens it, and a list is compared
with its checksum before it is first searched. A damaged entry is ignored.
Shapes: N rows, L lists, E joint embedding.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dear.errors import CacheError, DearError, MissingExtraError
from dear.retrieval.index import Index
from dear.retrieval.segments import Entry
from dear.storage import columns
from dear.storage.documents import Document
from dear.storage.user_cache import SEARCH, cache_home

LISTS, COLUMNS, ABOUT = "lists.faiss", "columns.safetensors", "lists.json"
MANY_IMAGES = 1_000_000
"""Images from which on search by lists is proposed, and approximate; below, there is one list, so search is exact."""
FOR_TEXT = 4
"""Times the lists of a photo that are searched for a text: texts are far from all photos, so they need more."""
OUTDATED = 0.1
"""Share of the rows that may be newer than the lists before building again is proposed."""


class ListsRecord(Document):
    """The document `lists.json`."""

    format = "dear-search-lists"
    version = 1
    noun = "description of search lists"
    sealed = True
    error = CacheError

    index: str
    """Folder of the index when it was built; only to recognise entries that a later one replaces."""
    kind: str
    rows: int = Field(ge=1)
    lists: int = Field(ge=1)
    probes: int = Field(ge=1)
    """Lists that are searched per query."""
    recall: float = Field(ge=0, le=1)
    """Share of the ten nearest images that are found, measured with images of the index as queries."""
    bytes: int = Field(ge=1)
    """Size of the faiss file."""
    head: int = Field(ge=1)
    """Bytes at its beginning that faiss parses; the rest are the lists."""
    head_sha256: str
    crc32: dict[str, int]
    """Checksums of `columns.safetensors`."""


@dataclass(frozen=True)
class Near:
    """What lists find: rows with scores, largest first, and scores of a sample of all images."""

    best: list[tuple[int, float]]
    sampled: Tensor


@dataclass(frozen=True)
class Lists:
    """Opened lists of one kind of feature; they cover the first segments of an index."""

    about: ListsRecord
    segments: int
    """Number of segments that are covered."""
    ivf: Any
    columns: columns.Segment
    checked: set[int] = field(default_factory=set)

    @cached_property
    def sample(self) -> Tensor:
        """(S, E) features in fp32, spread evenly over the images that the lists were built from."""
        return self.columns["sample"].float()

    def search(self, index: Index, query_E: Tensor, count: int, *, is_text: bool = False) -> Near:
        """The nearest rows of the nearest lists, without deleted ones.

        Raises `DamagedSegmentError` if a list is not the one that was written.
        """
        faiss, rows = faiss_module(), self.about.rows
        query_1E = query_E.reshape(1, -1).contiguous().numpy()
        probes = min(self.about.probes * (FOR_TEXT if is_text else 1), self.about.lists)
        self.check(self.ivf.quantizer.search(query_1E, probes)[1][0].tolist())
        bits = np.packbits(index.alive[:rows].numpy(), bitorder="little")
        chosen = faiss.IDSelectorBitmap(bits)
        how = faiss.SearchParametersIVF(sel=chosen, nprobe=probes)
        scores_1K, rows_1K = self.ivf.search(query_1E, min(count, rows), params=how)
        found = [
            (row, score) for row, score in zip(rows_1K[0].tolist(), scores_1K[0].tolist(), strict=True) if row >= 0
        ]
        return Near(found, self.sample @ query_E)

    def newer(self, index: Index) -> Index:
        """The segments that the lists do not cover, as an index whose rows are numbered from zero."""
        return replace(index, segments=index.segments[self.segments :])

    def check(self, wanted: Iterable[int]) -> None:
        """Raise `DamagedSegmentError` if one of these lists is not the one that was written."""
        for number in set(wanted) - self.checked - {-1}:
            if list_checksum(self.ivf, number) != int(self.columns["sums"][number]):
                raise columns.DamagedSegmentError(f"list {number} was changed")
            self.checked.add(number)


def list_checksum(ivf: Any, number: int) -> int:
    """CRC-32 of the rows and codes of a list."""
    faiss, size = faiss_module(), ivf.invlists.list_size(number)
    if not size:
        return 0
    rows = faiss.rev_swig_ptr(ivf.invlists.get_ids(number), size)
    codes = faiss.rev_swig_ptr(ivf.invlists.get_codes(number), size * ivf.code_size)
    return zlib.crc32(codes, zlib.crc32(rows))


def open_lists(index: Index, kind: str) -> Lists | None:
    """The lists that cover most of an index, if there are any that can be used; whatever is damaged is ignored."""
    if is_excluded() or not find_spec("faiss"):
        return None
    for segments, name in reversed(list(enumerate(prefix_names(index, kind), start=1))):
        folder = cache_home() / SEARCH / name
        if not folder.is_dir():
            continue
        try:
            return _opened(folder, index, segments)
        except (OSError, ValueError, DearError, RuntimeError):
            continue
    return None


def _opened(folder: Path, index: Index, segments: int) -> Lists:
    about = ListsRecord.read(folder / ABOUT)
    path = folder / LISTS
    facts = path.lstat()
    rows = sum(entry.rows for entry in index.manifest.segments[:segments])
    if not stat.S_ISREG(facts.st_mode) or facts.st_size != about.bytes or about.head > about.bytes:
        raise CacheError(f"{path} is not the file that was written")
    with path.open("rb") as file:
        if hashlib.sha256(file.read(about.head)).hexdigest() != about.head_sha256:
            raise CacheError(f"{path} is not the file that was written")
    stored = columns.Segment(folder / COLUMNS, about.crc32)
    faiss = faiss_module()
    ivf = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    found = (ivf.ntotal, ivf.d, ivf.nlist, len(stored["sums"]), stored["sample"].shape[1])
    if found != (rows, index.manifest.embed, about.lists, about.lists, ivf.d) or about.rows != rows:
        raise CacheError(f"{path} does not fit the index")
    os.utime(folder / ABOUT)  # it is in use: the cache removes the least recently used entries first
    return Lists(about, segments, ivf, stored)


def prefix_names(index: Index, kind: str) -> Iterator[str]:
    """The names of lists of the first segment, of the first two, and so on to all of them."""
    number, manifest = index.number(kind), index.manifest
    content = hashlib.sha256(repr((manifest.model_sha256, kind, manifest.embed)).encode())
    for entry in manifest.segments:
        crc = entry.crc32[f"feature.{number}"] if isinstance(entry, Entry) else entry.crc32[number]
        content.update(repr((entry.rows, crc)).encode())
        yield content.hexdigest()[:32]


def advice(index: Index, kind: str) -> str:
    """What to type so that search by a kind is faster; nothing if it is fast enough."""
    if len(index) < MANY_IMAGES or is_excluded():
        return ""
    found = open_lists(index, kind)
    newer = index.rows - found.about.rows if found else index.rows
    if newer <= OUTDATED * index.rows:
        return ""
    install = "" if find_spec("faiss") else "pip install 'dear-vlm[search]', then "
    which = f"{newer:,} of {index.rows:,} images" if found else f"All {len(index):,} images"
    return f"{which} are compared one by one; for faster search type: {install}dear search build {index.out}"


def is_excluded() -> bool:
    """Whether this system always searches one by one: faiss and torch crash in one process on macOS."""
    return sys.platform == "darwin"


def faiss_module() -> Any:
    """The module faiss, with as many threads as torch has."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("Faster search needs faiss: pip install 'dear-vlm[search]'.") from None
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss
