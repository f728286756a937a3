"""What each step trains on: a function of (seed, epoch, item) and of nothing else, however many workers read it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.engine.ranks import Ranks
from dear.errors import DataError, ImageError

Read = Callable[[int, int], Tensor]
"""From (index of an item, epoch) to the view of that item in that epoch; raises `ImageError` where there is none."""


@dataclass(frozen=True)
class Batch:
    """One step's readable views (none at all where every image is bad), their labels, and what could not be read."""

    inputs: Tensor | None
    labels: Tensor
    problems: tuple[str, ...]


@lru_cache(maxsize=2)
def epoch_order(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The order in which an epoch goes through the items."""
    order = list(range(count))
    random.Random(f"order {seed} {epoch}").shuffle(order)
    return tuple(order)


def live_views(dataset: Dataset, items: Sequence[Item], transform: Callable[..., Tensor], seed: int) -> Read:
    """Read an item's image and draw the epoch's view of it."""

    def read(index: int, epoch: int) -> Tensor:
        item = items[index]
        return transform(dataset.open(item.id), random.Random(f"view {seed} {epoch} {item.id}"))

    return read


class Feed:
    """Batches of views, the next one read by threads while one is used."""

    def __init__(
        self, read: Read, labels: Sequence[int], *, batch: int, seed: int, workers: int = 2, ranks: Ranks | None = None
    ) -> None:
        if not labels:
            raise DataError("There is nothing to train on: the list of training images is empty.")
        self._read, self._labels = read, labels
        self._batch, self._seed, self._workers = batch, seed, workers
        self.ranks, self.count = ranks or Ranks(), len(labels)
        self.steps_per_epoch = -(-len(labels) // batch)

    def indices(self, step: int) -> tuple[int, ...]:
        """This process's share of the items of a step, counted from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        whole_batch = epoch_order(self.count, self._seed, epoch)[place * self._batch : (place + 1) * self._batch]
        return whole_batch[self.ranks.rank :: self.ranks.world]

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of the steps `first` to `last` - 1."""
        if self._workers == 0:
            for step in range(first, last):
                yield self._collect(step, [self._try(index, step) for index in self.indices(step)])
            return
        with ThreadPoolExecutor(self._workers) as pool:

            def submit(step: int) -> list[Future[Tensor | ImageError]]:
                return [pool.submit(self._try, index, step) for index in self.indices(step)] if step < last else []

            upcoming = submit(first)
            for step in range(first, last):
                current, upcoming = upcoming, submit(step + 1)
                yield self._collect(step, [task.result() for task in current])

    def _try(self, index: int, step: int) -> Tensor | ImageError:
        try:
            return self._read(index, step // self.steps_per_epoch)
        except ImageError as error:
            return error

    def _collect(self, step: int, views: Sequence[Tensor | ImageError]) -> Batch:
        pairs = list(zip(self.indices(step), views, strict=True))
        good = [(view, self._labels[index]) for index, view in pairs if isinstance(view, Tensor)]
        return Batch(
            inputs=torch.stack([view for view, _ in good]) if good else None,
            labels=torch.tensor([label for _, label in good], dtype=torch.int64),
            problems=tuple(str(view) for view in views if isinstance(view, ImageError)),
        )
