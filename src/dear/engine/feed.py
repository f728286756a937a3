"""What each step trains on: a function of (seed, epoch, item) and of nothing else, however many workers read it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dear.backbone.frozen import PLAIN
from dear.data.dataset import Dataset, Item
from dear.engine.ranks import Ranks
from dear.errors import DataError, ImageError
from dear.storage.files import letters

Views = Mapping[str, Tensor]
"""Of one image: views (V, …) by name, and (…) for names that begin with "plain:"."""
Read = Callable[[int, int], Views]
"""From (index of an item, epoch) to the item's views in that epoch; raises `ImageError` if there are none."""
IMAGES = "images"
"""The name of the pictures themselves, where frozen quantities are not stored."""


@dataclass(frozen=True)
class StepImages:
    """One process's readable images of a step (none at all if every image is bad), and what could not be read."""

    inputs: dict[str, Tensor]
    """(rows, …) by name, view-major."""
    labels: Tensor
    """One per row."""
    rows: Tensor
    """Places of these rows in the whole step's."""
    size: int
    """Rows of the whole step."""
    problems: tuple[str, ...]

    def part(self, first: int, last: int) -> StepImages:
        """Some of the rows."""
        inputs = {name: tensor[first:last] for name, tensor in self.inputs.items()}
        return StepImages(inputs, self.labels[first:last], self.rows[first:last], self.size, ())


@lru_cache(maxsize=2)
def epoch_order(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The order in which an epoch goes through the items."""
    order = list(range(count))
    random.Random(f"order {seed} {epoch}").shuffle(order)
    return tuple(order)


@lru_cache(maxsize=2)
def one_class_order(labels: tuple[int, ...], batch_size: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The order of an epoch whose batches hold one class each: a class is drawn among those with enough images left."""
    drawing, left = random.Random(f"classes {seed} {epoch}"), dict[int, list[int]]()
    for index, label in enumerate(labels):
        left.setdefault(label, []).append(index)
    for members in left.values():
        drawing.shuffle(members)
    order: list[int] = []
    while able := [label for label, members in left.items() if len(members) >= batch_size]:
        members = left[drawing.choice(able)]
        order += [members.pop() for _ in range(batch_size)]
    return tuple(order)


def live_views(
    dataset: Dataset,
    items: Sequence[Item],
    transform: Callable[..., Tensor],
    seed: int,
    *,
    views: int = 1,
    plain: Callable[..., Tensor] | None = None,
) -> Read:
    """Read an item's image and draw the epoch's views of it; `plain` makes one without augmentation beside them."""

    def read(index: int, epoch: int) -> Views:
        item = items[index]
        image = dataset.open(item.id)
        drawn = [transform(image, view_draw(seed, epoch, item.id, view)) for view in range(views)]
        found = {IMAGES: torch.stack(drawn)}
        return found if plain is None else {**found, f"{PLAIN}{IMAGES}": plain(image)}

    return read


def view_draw(seed: int, epoch: int, item_id: str, view: int) -> random.Random:
    """A view's randomness: it depends on these and on nothing else."""
    return random.Random(letters(f"view {seed} {epoch} {item_id}" + (f" {view}" if view else "")))


class Feed:
    """Batches of views, the next one read by threads while one is used."""

    def __init__(
        self,
        read: Read,
        labels: Sequence[int],
        *,
        batch_size: int,
        seed: int,
        workers: int = 2,
        ranks: Ranks | None = None,
        drop_last: bool = False,
        one_class: bool = False,
    ) -> None:
        if not labels:
            raise DataError("There is nothing to train on: the list of training images is empty.")
        self._read, self._labels = read, tuple(labels)
        self._batch_size, self._seed, self._workers = batch_size, seed, workers
        self.ranks, per_class = ranks or Ranks(), Counter(labels).values()
        self._one_class = one_class and min(per_class) >= batch_size
        whole = sum(count // batch_size for count in (per_class if self._one_class else [len(labels)]))
        drop_last = (drop_last or self._one_class) and whole > 0
        self.steps_per_epoch = whole if drop_last else -(-len(labels) // batch_size)
        self.count = whole * batch_size if drop_last else len(labels)

    def indices(self, step: int) -> tuple[int, ...]:
        """The items of a step, counted from 0, over all processes."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._one_class:
            order = one_class_order(self._labels, self._batch_size, self._seed, epoch)
        else:
            order = epoch_order(len(self._labels), self._seed, epoch)
        return order[place * self._batch_size : (place + 1) * self._batch_size]

    def batches(self, first: int, last: int) -> Iterator[StepImages]:
        """This process's share of the steps `first` to `last` - 1."""
        if self._workers == 0:
            for step in range(first, last):
                yield self._collect(step, [self._try(index, step) for index in self._own(step)])
            return
        with ThreadPoolExecutor(self._workers) as pool:

            def submit(step: int) -> list[Future[Views | ImageError]]:
                return [pool.submit(self._try, index, step) for index in self._own(step)] if step < last else []

            upcoming = submit(first)
            for step in range(first, last):
                current, upcoming = upcoming, submit(step + 1)
                yield self._collect(step, [task.result() for task in current])

    def _own(self, step: int) -> tuple[int, ...]:
        return self.indices(step)[self.ranks.rank :: self.ranks.world]

    def _try(self, index: int, step: int) -> Views | ImageError:
        try:
            return self._read(index, step // self.steps_per_epoch)
        except ImageError as error:
            return error

    def _collect(self, step: int, views: Sequence[Views | ImageError]) -> StepImages:
        places = range(self.ranks.rank, len(self.indices(step)), self.ranks.world)
        good = [
            (place, self._labels[index], one)
            for place, index, one in zip(places, self._own(step), views, strict=True)
            if not isinstance(one, ImageError)
        ]
        names = tuple(good[0][2]) if good else ()
        inputs = {name: _view_major(name, [one[name] for _, _, one in good]) for name in names}
        count = next((good[0][2][name].shape[0] for name in names if not name.startswith(PLAIN)), 1)
        own, batch = torch.tensor([place for place, _, _ in good], dtype=torch.int64), len(self.indices(step))
        return StepImages(
            inputs=inputs,
            labels=torch.tensor([label for _, label, _ in good], dtype=torch.int64).repeat(count),
            rows=torch.cat([own + view * batch for view in range(count)]),
            size=count * batch,
            problems=tuple(str(one) for one in views if isinstance(one, ImageError)),
        )


def _view_major(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """All images of view 1, then all of view 2, …"""
    stacked = torch.stack(list(tensors))
    return stacked if name.startswith(PLAIN) else stacked.transpose(0, 1).flatten(0, 1)
