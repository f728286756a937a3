"""Frozen prefixes of a data set's images: computed as they come, or kept on disk and shared by seeds and variants."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.data.images import ImageList, image_batches
from dear.engine.feed import Read
from dear.engine.ranks import Ranks
from dear.engine.store import PrefixStore, prefix_key
from dear.errors import ImageError
from dear.methods.base import Method, PrefixKind

BATCH = 64  # images at once through the frozen layers


@dataclass(frozen=True)
class PrefixBatch:
    """Prefixes of some items, and which items they are."""

    indices: tuple[int, ...]
    prefix: Tensor


def open_store(cache: Path, method: Method, kind: PrefixKind, transform: str) -> PrefixStore:
    """The store of what a method's frozen part makes of images under one transform."""
    return PrefixStore.open(cache, prefix_key(method.clip, kind.name, transform), kind.shape)


def row_key(dataset: Dataset, item: Item) -> str:
    """Names an image as it is now."""
    return f"{dataset.name} {item.id} {dataset.fingerprint(item.id)}"


def evaluation_prefixes(
    method: Method,
    dataset: Dataset,
    items: Sequence[Item],
    *,
    cache: Path | None,
    batch: int,
    workers: int,
    problems: dict[int, str],
    progress: Callable[[int], None] | None = None,
) -> Iterator[PrefixBatch]:
    """Prefixes of test images, in order; what cannot be read is put into `problems` by its index."""
    if cache is None:
        yield from _live(method, dataset, items, batch, workers, problems, progress)
        return
    keys = [row_key(dataset, item) for item in items]

    def anew(item: Item, _: list[int]) -> Tensor:
        return _frozen(method, method.image_prefix, method.clip.preprocess_eval(dataset.open(item.id))[None])

    with open_store(cache, method, method.prefix_kind, "evaluation") as store:
        chosen = _absent(store, keys)
        listed = dataset.images([items[i] for i in chosen])
        found = fill(
            store,
            listed,
            method.clip.preprocess_eval,
            partial(_frozen, method, method.image_prefix),
            [keys[i] for i in chosen],
            workers,
            progress,
        )
        problems |= {chosen[index]: problem for index, problem in found.items()}
        good = [index for index in range(len(items)) if index not in problems]
        for first in range(0, len(good), batch):
            rows: dict[int, Tensor] = {}
            for index in good[first : first + batch]:
                with _noting(problems, index):
                    rows[index] = store.fetch([keys[index]], partial(anew, items[index]))[0]
            if rows:
                yield PrefixBatch(tuple(rows), torch.stack(list(rows.values())).to(method.clip.device))


@contextmanager
def _noting(problems: dict[int, str], index: int) -> Iterator[None]:
    try:
        yield
    except ImageError as error:
        problems[index] = str(error)


def _live(
    method: Method,
    dataset: Dataset,
    items: Sequence[Item],
    batch: int,
    workers: int,
    problems: dict[int, str],
    progress: Callable[[int], None] | None,
) -> Iterator[PrefixBatch]:
    listed = dataset.images(items)
    for part in image_batches(listed, method.clip.preprocess_eval, size=batch, workers=workers):
        bad = [index for index in range(part.start, part.stop) if index not in part.indices]
        problems |= dict(zip(bad, part.problems, strict=True))
        if part.images is not None:
            yield PrefixBatch(part.indices, method.image_prefix(part.images.to(method.clip.device)))
        if progress:
            progress(part.stop)


def fill(
    store: PrefixStore,
    images: ImageList,
    preprocess: Callable[..., Tensor],
    compute: Callable[[Tensor], Tensor],
    keys: Sequence[str],
    workers: int,
    progress: Callable[[int], None] | None = None,
) -> dict[int, str]:
    """Compute and keep the rows of images; return what could not be read, by index."""
    problems: dict[int, str] = {}
    for part in image_batches(images, preprocess, size=BATCH, workers=workers):
        bad = [index for index in range(part.start, part.stop) if index not in part.indices]
        problems |= dict(zip(bad, part.problems, strict=True))
        if part.images is not None:
            store.put([keys[index] for index in part.indices], compute(part.images))
        if progress:
            progress(part.stop)
    return problems


@torch.inference_mode()
def _frozen(method: Method, part: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    return part(images.to(method.clip.device)).float().cpu()


def _absent(store: PrefixStore, keys: Sequence[str]) -> list[int]:
    return [index for index, key in enumerate(keys) if key not in store]


def cached_views(
    method: Method,
    dataset: Dataset,
    items: Sequence[Item],
    *,
    views: int,
    seed: int,
    cache: Path,
    workers: int,
    ranks: Ranks,
    progress: Callable[[int], None] | None = None,
) -> Read:
    """Read views from disk, after computing those that are missing, each process its share of them.

    View v of an image is the same for every seed; a seed decides with which of them an image begins, and each epoch
    takes the next.
    """
    wanted = [(index, view) for index in range(len(items)) for view in range(views)]
    keys = {place: f"{row_key(dataset, items[place[0]])} view {place[1]}" for place in wanted}

    def draw(index: int, view: int) -> Tensor:
        item = items[index]
        return method.clip.preprocess_train(dataset.open(item.id), random.Random(f"cached view {view} {item.id}"))

    compute = partial(_frozen, method, method.image_view)
    with open_store(cache, method, method.view_kind, "training views") as store:
        own = [place for place in wanted[ranks.rank :: ranks.world] if keys[place] not in store]
        drawn: Any = ImageList(tuple(keys[place] for place in own), lambda position: draw(*own[position]))  # type: ignore[arg-type, return-value]
        fill(store, drawn, lambda view: view, compute, [keys[place] for place in own], workers, progress)
    ranks.wait()
    store = open_store(cache, method, method.view_kind, "training views")
    lock = Lock()

    def read(index: int, epoch: int) -> Tensor:
        first = random.Random(f"first view {seed} {items[index].id}").randrange(views)
        place = index, (first + epoch) % views
        with lock:  # what is damaged or could not be read is tried again
            return store.fetch([keys[place]], lambda _: compute(draw(*place)[None]))[0]

    return read
