"""Features that the frozen CLIP computes for a data set's images: computed on the fly, or cached on disk and shared.

Stores are named by the quantities of `dear.backbone.frozen`, so methods that read the same quantities share them.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from dear.backbone.frozen import PLAIN, TERMS, States, shape_of
from dear.data.dataset import Dataset, Item
from dear.data.images import ImageBatch, ImageList, image_batches
from dear.engine.feature_store import FeatureStore, store_description
from dear.engine.feed import Read, Views
from dear.engine.ranks import Ranks
from dear.errors import ImageError
from dear.model.artefact import identity
from dear.model.model import Model
from dear.progress.stages import Advance, stage
from dear.storage.files import MEGABYTE, letters

BATCH = 64
"""Images that pass through the frozen layers at once."""
BLOCK = 2 * BATCH
"""Test images that a process encodes before it looks again for those that other processes have encoded."""
OPENED = 8
"""Images that are open at once while their views are made."""
SEGMENT_BYTES = 64 * MEGABYTE
"""Size of computed rows in memory at which they are written as one segment; a killed process loses no more."""
EVALUATION = "evaluation"
READING, TESTING, CACHING = "reading images", "testing", "caching views"
Progressed = Callable[[int], None]


_clock: ContextVar[list[float] | None] = ContextVar("clock", default=None)


@contextmanager
def encoding_clock() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds spent on filling caches since the `with` block began.

    What is in a cache serves all later methods, so the first one should not be charged for it.
    """
    spent: list[float] = []
    token = _clock.set(spent)
    try:
        yield lambda: sum(spent)
    finally:
        _clock.reset(token)


@dataclass(frozen=True)
class StateBatch:
    """Frozen quantities of some items, and which items they are."""

    indices: tuple[int, ...]
    states: States


class Stores:
    """One store per quantity, under one transform; a key is in it if every quantity has a row for it."""

    def __init__(self, cache: Path, model: Model, names: Sequence[str], transform: str) -> None:
        self._stores = {
            name: FeatureStore.open(
                cache, *_kind(model, name.removeprefix(PLAIN), EVALUATION if name.startswith(PLAIN) else transform)
            )
            for name in names
        }

    def __contains__(self, key: str) -> bool:
        """Whether every quantity of a key is stored."""
        return all(key in store for store in self._stores.values())

    def only(self, names: Sequence[str]) -> Stores:
        """The stores of some of the quantities."""
        found = copy(self)
        found._stores = {name: self._stores[name] for name in names}
        return found

    def look_again(self) -> None:
        """Note the rows that other processes have added."""
        for store in self._stores.values():
            store.look_again()

    def put(self, keys: Sequence[str], states: States) -> None:
        """Add rows; keys that have a row keep it."""
        for name, store in self._stores.items():
            store.put(keys, states[name])

    def fetch(self, key: str, compute: Callable[[], States]) -> States:
        """The quantities of one key, (1, …) each; what is missing or damaged is computed again."""
        made: States = {}

        def one(name: str, _: list[int]) -> Tensor:
            if not made:
                made.update(compute())
            return made[name]

        return {name: store.fetch([key], partial(one, name)) for name, store in self._stores.items()}


def _kind(model: Model, name: str, transform: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    """What a quantity's store is known by, and the shape of its rows; a companion's counts by its content."""
    if not _of_companion(name):
        return store_description(model.clip, name, transform), shape_of(model.clip.vision, name)
    other = model.companion(name)
    what = json.dumps({"image feature of": identity(other)}, sort_keys=True)
    return store_description(other.clip, what, transform), (other.clip.geometry.embed_dim,)


def _of_companion(name: str) -> bool:
    return ":" in name and not name.startswith(TERMS)


def row_key(dataset: Dataset, item: Item) -> str:
    """Names an image by its bytes: folders of one name may hold files of equal names, sizes and times."""
    return f"{dataset.name} {item.id} {dataset.content_of(item.id)}"


def evaluation_states(
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    *,
    cache: Path | None,
    batch_size: int,
    workers: int,
    problems: dict[int, str],
    progress: Progressed | None = None,
    names: Sequence[str] | None = None,
    also: Sequence[str] = (),
) -> Iterator[StateBatch]:
    """Quantities of images without augmentation, in order; problems with unreadable images go to `problems` by index.

    They are those that the method reads of test images, or `names`. Quantities in `also` are computed and cached in the
    same pass, for methods that read them later.
    """
    what = READING if names is not None else TESTING
    names = model.names() if names is None else names
    if cache is None:
        yield from _live(model, dataset, items, batch_size, workers, problems, progress, names, what)
        return
    keys = [row_key(dataset, item) for item in items]
    preprocess = model.clip.preprocess_eval
    both = tuple(dict.fromkeys((*names, *also)))
    compute, compute_own = _computer(model, both), _computer(model, names)

    def recompute(item: Item) -> States:
        return compute_own(preprocess(dataset.open(item.id))[None])

    every = Stores(cache, model, both, EVALUATION)
    stores = every.only(names)
    chosen = [index for index, key in enumerate(keys) if key not in stores]
    with stage(what, len(chosen)) as advance:
        done = 0
        for block in own_order(chosen, os.getpid()):
            stores.look_again()
            left = [index for index in block if keys[index] not in stores]
            listed = dataset.images([items[index] for index in left])
            count = partial(_count, done, advance, progress)
            found = _fill(every, listed, preprocess, compute, [keys[i] for i in left], workers, what, advance=count)
            problems |= {left[index]: problem for index, problem in found.items()}
            done += len(block)
            _count(done, advance, progress, 0)
    good = [index for index in range(len(items)) if index not in problems]
    for first in range(0, len(good), batch_size):
        rows: dict[int, States] = {}
        for index in good[first : first + batch_size]:
            with _noting(problems, index):
                rows[index] = stores.fetch(keys[index], partial(recompute, items[index]))
        if rows:
            joined = {name: torch.cat([row[name] for row in rows.values()]) for name in names}
            yield StateBatch(tuple(rows), {name: x.to(model.clip.device) for name, x in joined.items()})


def own_order(chosen: Sequence[int], process: int) -> list[Sequence[int]]:
    """Blocks of images in an order of a process's own, so that processes that need the same images share the work.

    Each process looks before every block for what the others have stored.
    """
    blocks = [chosen[first : first + BLOCK] for first in range(0, len(chosen), BLOCK)]
    random.Random(process).shuffle(blocks)
    return blocks


def _count(before: int, advance: Advance, progress: Progressed | None, done: int) -> None:
    """Report images of a block after all images of the blocks before it."""
    advance(before + done)
    if progress:
        progress(before + done)


@contextmanager
def _noting(problems: dict[int, str], index: int) -> Iterator[None]:
    try:
        yield
    except ImageError as error:
        problems[index] = str(error)


def _live(
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    batch_size: int,
    workers: int,
    problems: dict[int, str],
    progress: Progressed | None,
    names: Sequence[str],
    what: str,
) -> Iterator[StateBatch]:
    images, preprocess = dataset.images(items), model.clip.preprocess_eval
    for part in image_batches(images, preprocess, size=batch_size, workers=workers, what=what):
        problems |= _problems(part)
        if part.images is not None:
            yield StateBatch(part.indices, model.states(part.images.to(model.clip.device), names=names))
        if progress:
            progress(part.stop)


def _fill(
    stores: Stores,
    images: ImageList,
    preprocess: Callable[..., Any],
    compute: Callable[[Any], States],
    keys: Sequence[str],
    workers: int,
    what: str,
    progress: Progressed | None = None,
    advance: Advance | None = None,
) -> dict[int, str]:
    """Compute and store the rows of images; return the problems of those that could not be read, by index."""
    began, spent = time.monotonic(), _clock.get()
    problems: dict[int, str] = {}
    waiting: dict[str, States] = {}

    def flush() -> None:
        made = list(waiting.values())
        if made:
            stores.put(list(waiting), {name: torch.stack([one[name] for one in made]) for name in made[0]})
        waiting.clear()

    try:
        for part in image_batches(images, preprocess, size=BATCH, workers=workers, what=what, advance=advance):
            problems |= _problems(part)
            if part.images is not None:
                states = compute(part.images)
                for row, index in enumerate(part.indices):
                    waiting[keys[index]] = {name: values[row] for name, values in states.items()}
            if _bytes(waiting) >= SEGMENT_BYTES:
                flush()
            if progress:
                progress(part.stop)
    finally:
        flush()
        if spent is not None:
            spent.append(time.monotonic() - began)
    return problems


def _problems(part: ImageBatch) -> dict[int, str]:
    """The problem of each image of a batch that could not be read, by its index."""
    unread = [index for index in range(part.start, part.stop) if index not in part.indices]
    return dict(zip(unread, part.problems, strict=True))


def _bytes(rows: Mapping[str, States]) -> int:
    """Size of rows of equal shapes in memory."""
    first = next(iter(rows.values()), {})
    return len(rows) * sum(values.numel() * values.element_size() for values in first.values())


def _computer(model: Model, names: Sequence[str]) -> Callable[[Tensor], States]:
    """What goes into stores: always by the towers' own pass, whoever asks first."""

    @torch.inference_mode()
    def compute(images: Tensor) -> States:
        bare, shown = [name.removeprefix(PLAIN) for name in names], images.to(model.clip.device)
        own = [name for name in bare if not _of_companion(name)]
        found = model.clip.frozen(shown, own) if own else {}
        found |= {name: model.companion(name).image_features(shown) for name in bare if name not in own}
        return {name: found[name.removeprefix(PLAIN)].float().cpu() for name in names}

    return compute


def cached_views(
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    *,
    views: int,
    seed: int,
    crop: tuple[float, float],
    cache: Path,
    workers: int,
    ranks: Ranks,
    progress: Progressed | None = None,
    names: Sequence[str] | None = None,
) -> Read:
    """Read views from disk, after computing those that are missing, each process its share of them.

    View v of an image is the same for every seed; a seed decides with which of them an image begins, and each epoch
    takes the next ones. The quantities are those that the method reads in training, or `names`.
    """
    clip, names = model.clip, model.names(training=True) if names is None else names
    own_names = [name for name in names if not name.startswith(PLAIN)]
    plain_names = [name for name in names if name.startswith(PLAIN)]
    wanted = [(index, view) for index in range(len(items)) for view in range(views)]
    keys = {place: f"{row_key(dataset, items[place[0]])} view {place[1]}" for place in wanted}
    transform = replace(clip.preprocess_train, scale=crop)
    compute, transform_name = _computer(model, own_names), f"training views, crops of {crop[0]:g} to {crop[1]:g}"

    opened = lru_cache(maxsize=OPENED)(dataset.open)  # the views of an image are made one after another

    def make_view(index: int, view: int) -> Tensor:
        item = items[index]
        return transform(opened(item.id), random.Random(letters(f"cached view {view} {item.id}")))

    stores = Stores(cache, model, own_names, transform_name)
    own = [place for place in wanted[ranks.rank :: ranks.world] if keys[place] not in stores]
    missing: Any = ImageList(tuple(keys[place] for place in own), lambda position: make_view(*own[position]))  # type: ignore[arg-type, return-value]
    _fill(stores, missing, lambda view: view, compute, [keys[place] for place in own], workers, CACHING, progress)
    compute_plain = _computer(model, plain_names)
    if plain_names:
        _fill_plain(Stores(cache, model, plain_names, EVALUATION), model, dataset, items, compute_plain, workers, ranks)
    ranks.wait()
    stores, lock, per_step = Stores(cache, model, own_names, transform_name), Lock(), model.method.needs.views
    plain = Stores(cache, model, plain_names, EVALUATION) if plain_names else None

    def read(index: int, epoch: int) -> Views:
        first = random.Random(letters(f"first view {seed} {items[index].id}")).randrange(views)
        places = [(index, (first + epoch * per_step + number) % views) for number in range(per_step)]
        with lock:  # what is damaged or could not be read is tried again
            rows = [stores.fetch(keys[at], lambda at=at: compute(make_view(*at)[None])) for at in places]  # type: ignore[misc]
            found: dict[str, Tensor] = {name: torch.cat([row[name] for row in rows]) for name in own_names}
            if plain is not None:
                item = items[index]
                shown = plain.fetch(
                    row_key(dataset, item), lambda: compute_plain(clip.preprocess_eval(dataset.open(item.id))[None])
                )
                found |= {name: row[0] for name, row in shown.items()}
        return found

    return read


def _fill_plain(
    stores: Stores,
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    compute: Callable[[Tensor], States],
    workers: int,
    ranks: Ranks,
) -> None:
    """Compute the missing rows of images without augmentation, each process its share of them."""
    keys = {row_key(dataset, item): item for item in items[ranks.rank :: ranks.world]}
    keys = {key: item for key, item in keys.items() if key not in stores}
    images = dataset.images(list(keys.values()))
    _fill(stores, images, model.clip.preprocess_eval, compute, list(keys), workers, CACHING)


def fixed_views(model: Model, dataset: Dataset, items: Sequence[Item], *, workers: int) -> Read:
    """Read views without augmentation: computed once, stored in memory, the same in every epoch."""
    clip, names, views = model.clip, model.names(training=True), model.method.needs.views
    rows: dict[int, Views] = {}
    problems: dict[int, str] = {}
    for part in image_batches(dataset.images(items), clip.preprocess_eval, size=BATCH, workers=workers):
        problems |= _problems(part)
        if part.images is None:
            continue
        found = model.states(part.images.to(clip.device), names=names)
        for place, index in enumerate(part.indices):
            row = {name: tensor[place].cpu() for name, tensor in found.items()}
            rows[index] = {name: x if name.startswith(PLAIN) else x.expand(views, *x.shape) for name, x in row.items()}

    def read(index: int, epoch: int) -> Views:
        if index in problems:
            raise ImageError(problems[index])
        return rows[index]

    return read
