"""Frozen prefixes of a data set's images: computed as they come, or kept on disk and shared by seeds and variants."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.data.images import ImageList, image_batches
from dear.engine.feed import Read
from dear.engine.prefix_store import PrefixStore, prefix_key
from dear.errors import ImageError
from dear.methods.base import Method

BATCH = 64  # images at once through the frozen layers


@dataclass(frozen=True)
class PrefixBatch:
    """Prefixes of some items, and which items they are."""

    indices: tuple[int, ...]
    prefix: Tensor


def open_store(cache: Path, method: Method, transform: str) -> PrefixStore:
    """The store of a method's prefixes under one transform."""
    kind = method.prefix_kind
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
    with open_store(cache, method, "evaluation") as store:
        chosen = _absent(store, keys)
        listed = dataset.images([items[i] for i in chosen])
        found = fill(store, method, listed, method.clip.preprocess_eval, [keys[i] for i in chosen], workers, progress)
        problems |= {chosen[index]: problem for index, problem in found.items()}
        good = [index for index in range(len(items)) if index not in problems]
        for first in range(0, len(good), batch):
            indices = tuple(good[first : first + batch])

            def again(damaged: list[int], indices: tuple[int, ...] = indices) -> Tensor:
                opened = [dataset.open(items[indices[i]].id) for i in damaged]
                return _prefix(method, torch.stack([method.clip.preprocess_eval(image) for image in opened]))

            yield PrefixBatch(indices, store.fetch([keys[i] for i in indices], again).to(method.clip.device))


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
    method: Method,
    images: ImageList,
    preprocess: Callable[..., Tensor],
    keys: Sequence[str],
    workers: int,
    progress: Callable[[int], None] | None = None,
) -> dict[int, str]:
    """Compute and keep the prefixes of images; return what could not be read, by index."""
    problems: dict[int, str] = {}
    for part in image_batches(images, preprocess, size=BATCH, workers=workers):
        bad = [index for index in range(part.start, part.stop) if index not in part.indices]
        problems |= dict(zip(bad, part.problems, strict=True))
        if part.images is not None:
            store.put([keys[index] for index in part.indices], _prefix(method, part.images))
        if progress:
            progress(part.stop)
    return problems


@torch.inference_mode()
def _prefix(method: Method, images: Tensor) -> Tensor:
    return method.image_prefix(images.to(method.clip.device)).float().cpu()


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
    progress: Callable[[int], None] | None = None,
) -> Read:
    """Read views from disk, after computing those that are missing.

    View v of an image is the same for every seed; a seed decides with which of them an image begins, and each epoch
    takes the next.
    """
    store = open_store(cache, method, "training views")
    wanted = [(index, view) for index in range(len(items)) for view in range(views)]
    keys = {place: f"{row_key(dataset, items[place[0]])} view {place[1]}" for place in wanted}
    chosen = [wanted[i] for i in _absent(store, [keys[place] for place in wanted])]

    def draw(index: int, view: int) -> Tensor:
        item = items[index]
        return method.clip.preprocess_train(dataset.open(item.id), random.Random(f"cached view {view} {item.id}"))

    drawn: Any = ImageList(tuple(keys[place] for place in chosen), lambda position: draw(*chosen[position]))  # type: ignore[arg-type, return-value]
    found = fill(store, method, drawn, lambda view: view, [keys[place] for place in chosen], workers, progress)
    problems = {chosen[position][0]: problem for position, problem in found.items()}
    lock = Lock()

    def read(index: int, epoch: int) -> Tensor:
        if index in problems:
            raise ImageError(problems[index])
        first = random.Random(f"first view {seed} {items[index].id}").randrange(views)
        place = index, (first + epoch) % views
        with lock:
            return store.fetch([keys[place]], lambda damaged: _prefix(method, draw(*place)[None]))[0]

    return read
