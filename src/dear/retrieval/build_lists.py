"""Build the lists that make search in a large index fast; `dear.retrieval.lists` describes and searches them.

Shapes: N rows, L lists, S sampled rows, Q queries, E joint embedding.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.errors import CacheError, ConfigError, DataError
from dear.retrieval.index import Index
from dear.retrieval.lists import (
    ABOUT,
    COLUMNS,
    LISTS,
    MANY_IMAGES,
    ListsRecord,
    faiss_module,
    is_excluded,
    list_checksum,
    open_lists,
    prefix_names,
)
from dear.retrieval.search import SAMPLED
from dear.storage import columns
from dear.storage.files import remove_abandoned, whole_folder
from dear.storage.locks import mark
from dear.storage.user_cache import SEARCH, VARIABLE, cache_home

PER_LIST = 64
"""Rows per list that centroids are trained on."""
QUERIES, NEAREST = 200, 10
"""Rows used as queries, and their nearest rows that are looked for, to choose the number of lists to search."""
WANTED = 0.99
"""Recall from which on no further lists are searched."""
LEAST_SHARE = 1 / 64
"""Share of the lists that is always searched."""
ADDED = 65536
"""Rows that are added at once."""


def build_lists(
    index: Index, kind: str, *, lists: int | None = None, progress: Callable[[int], None] | None = None
) -> tuple[ListsRecord, bool]:
    """Build the lists of one kind, and whether that was necessary; those that cover the whole index are reused.

    `lists` is their number; by default one below a million rows, which is exact, and about the root of N from there on.
    """
    if is_excluded():
        raise ConfigError("Faster search is not available on macOS: faiss and torch crash in one process there.")
    if not len(index):
        raise DataError(f"The index in {index.out} contains no images: there is nothing to build.")
    faiss = faiss_module()
    found = open_lists(index, kind)
    if found is not None and found.segments == len(index.segments) and lists in (None, found.about.lists):
        with suppress(columns.DamagedSegmentError):
            found.check(range(found.about.lists))
            return found.about, False
    home, *_, name = cache_home() / SEARCH, *prefix_names(index, kind)
    try:
        mark(cache_home(), "cache")
        home.mkdir(parents=True, exist_ok=True)
        remove_abandoned(home)
        with whole_folder(home / name) as made:
            about = _write(faiss, index, kind, lists or default_lists(index.rows), made, progress)
        _remove_older(home, name, about)
    except OSError as error:
        found = open_lists(index, kind)
        if found is not None and found.segments == len(index.segments):  # another process has just built them
            return found.about, False
        raise CacheError(
            f"The cache {home} cannot be written ({error.strerror or error}): make room, or set {VARIABLE} to another "
            f"folder; search works without it."
        ) from error
    return about, True


def default_lists(rows: int) -> int:
    """The number of lists for a number of rows: a power of two near its root."""
    return 1 if rows < MANY_IMAGES else int(2 ** round(math.log2(math.sqrt(rows))))


def _write(
    faiss: Any, index: Index, kind: str, lists: int, folder: Path, progress: Callable[[int], None] | None
) -> ListsRecord:
    embed = index.manifest.embed
    sample_SE = index.sample(kind, SAMPLED)
    ivf = faiss.index_factory(embed, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
    ivf.by_residual = False  # codes are then the stored features themselves
    ivf.cp.min_points_per_centroid, ivf.cp.max_points_per_centroid = 1, PER_LIST
    ivf.train(index.sample(kind, max(PER_LIST * lists, embed)).numpy())
    queries_QE = sample_SE[torch.arange(min(QUERIES, len(sample_SE))) * len(sample_SE) // min(QUERIES, len(sample_SE))]
    truth = _Nearest(queries_QE)
    for start, rows_BE in _joined(index, kind):
        ivf.add(rows_BE.numpy())
        truth.add(start, rows_BE)
        if progress:
            progress(start + len(rows_BE))
    probes, recall = _probes(ivf, queries_QE, truth.rows_QK)
    faiss.write_index(ivf, str(folder / LISTS))
    sums = torch.tensor([list_checksum(ivf, number) for number in range(lists)], dtype=torch.int64)
    content = {"sums": sums, "sample": sample_SE.half()}
    columns.write_segment(folder / COLUMNS, content)
    crc32 = {name: columns.checksum(values) for name, values in content.items()}
    crc32[columns.HEADER] = columns.header_checksum(folder / COLUMNS)
    head = _head(faiss, folder / LISTS)
    with (folder / LISTS).open("rb") as file:
        digest = hashlib.sha256(file.read(head)).hexdigest()
    about = ListsRecord(
        index=str(index.out.resolve()),
        kind=kind,
        rows=index.rows,
        lists=lists,
        probes=probes,
        recall=recall,
        bytes=(folder / LISTS).stat().st_size,
        head=head,
        head_sha256=digest,
        crc32=crc32,
    )
    about.write(folder / ABOUT)
    return about


def _joined(index: Index, kind: str) -> Any:
    """Rows of a kind in fp32 in larger pieces than `Index.blocks`, each with its first row."""
    start, waiting = 0, []
    for first, last, (rows_BE,), _ in index.blocks(kind):
        waiting.append(rows_BE.clone())
        if last - start >= ADDED or last == index.rows:
            yield start, torch.cat(waiting)
            start, waiting = last, []
        del first


class _Nearest:
    """The exact nearest rows of queries, from rows that come in pieces."""

    def __init__(self, queries_QE: Tensor) -> None:
        self.queries_QE = queries_QE
        self.scores_QK = torch.empty(len(queries_QE), 0)
        self.rows_QK = torch.empty(len(queries_QE), 0, dtype=torch.int64)

    def add(self, start: int, rows_BE: Tensor) -> None:
        """Compare further rows."""
        scores_QB = self.queries_QE @ rows_BE.T
        numbers_QB = torch.arange(start, start + len(rows_BE)).expand_as(scores_QB)
        scores = torch.cat([self.scores_QK, scores_QB], dim=1)
        best = scores.topk(min(NEAREST, scores.shape[1]), dim=1)
        self.scores_QK = best.values
        self.rows_QK = torch.cat([self.rows_QK, numbers_QB], dim=1).gather(1, best.indices)


def _probes(ivf: Any, queries_QE: Tensor, truth_QK: Tensor) -> tuple[int, float]:
    """The least number of lists with the wanted recall, and the recall that it has."""
    probes = max(1, math.ceil(ivf.nlist * LEAST_SHARE))
    while True:
        ivf.nprobe = probes
        found_QK = torch.from_numpy(ivf.search(queries_QE.numpy(), truth_QK.shape[1])[1])
        recall = float((found_QK[:, :, None] == truth_QK[:, None, :]).any(1).float().mean())
        if recall >= WANTED or probes >= ivf.nlist:
            return probes, round(recall, 4)
        probes = min(2 * probes, ivf.nlist)


def _head(faiss: Any, path: Path) -> int:
    """The number of bytes of a faiss file before its lists."""
    ivf = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    lists = faiss.downcast_InvertedLists(ivf.invlists).lists
    return int(min(lists.at(number).offset for number in range(ivf.nlist) if lists.at(number).size))


def _remove_older(home: Path, name: str, about: ListsRecord) -> None:
    """Remove the entries of earlier states of the same index."""
    for folder in (one for one in home.iterdir() if one.name != name):
        try:
            older = ListsRecord.read(folder / ABOUT)
        except Exception:  # noqa: BLE001 # not readable: not recognisably ours
            continue
        if (older.index, older.kind) == (about.index, about.kind):
            shutil.rmtree(folder, ignore_errors=True)
