"""Features of the training and held-out images, for methods that use all of them before or after training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.backbone.frozen import PLAIN, States
from dear.data.dataset import Dataset, Item
from dear.data.images import ImageList, image_batches
from dear.engine.feature_cache import BATCH, READING, cached_views, evaluation_states
from dear.engine.feed import Read, view_draw
from dear.engine.job import Job
from dear.engine.ranks import Ranks
from dear.errors import ImageError
from dear.methods.base import Draw
from dear.model.model import Model
from dear.progress.stages import Advance, stage

Problems = dict[str, None]
"""Sentences about unreadable images, each once, in their order."""


def draw_for(
    job: Job,
    model: Model,
    items: Sequence[Item],
    *,
    ranks: Ranks,
    workers: int,
    cache: Path | None,
    on_cache: Callable[[int], None] | None,
    problems: Problems,
) -> Draw | None:
    """Features of the training images, for methods that use them before or after training; None for all others.

    If as many views are cached as the method passes over, those are used.
    """
    method, recipe = model.method, job.resolved
    if not (method.overrides("begin") or method.overrides("finish")):
        return None
    if not method.needs.drawn_images:
        return Draw({}, torch.empty(0, dtype=torch.int64), model.required_classes(), job.seed)
    passes = method.needs.passes or 0
    if cache is not None and recipe.augment and 0 < passes <= job.cached_views:
        read = cached_views(
            model,
            job.dataset,
            items,
            views=job.cached_views,
            seed=job.seed,
            crop=recipe.crop,
            cache=cache,
            workers=workers,
            ranks=ranks,
            progress=on_cache,
        )
        return stored_images(model, items, read, passes, seed=job.seed, problems=problems)
    return drawn_images(
        model,
        job.dataset,
        items,
        seed=job.seed,
        crop=recipe.crop,
        augment=recipe.augment,
        workers=workers,
        cache=cache,
        problems=problems,
    )


def unread_classes(job: Job, items: Sequence[Item], draw: Draw | None) -> tuple[str, ...]:
    """A sentence about every class of which no image could be read."""
    if draw is None or not draw.image:
        return ()
    gone = sorted({item.label for item in items} - set(draw.labels.tolist()))
    return tuple(
        f"None of the images of {job.class_names[one]!r} can be read: nothing is learned of it." for one in gone
    )


def stored_images(
    model: Model, items: Sequence[Item], read: Read, passes: int, *, seed: int, problems: Problems
) -> Draw:
    """Features of the training images from cached views, the next view of each image in every pass."""
    labels, rows = list[int](), list[States]()
    for index, item in enumerate(items):
        try:
            seen = [read(index, number) for number in range(passes)]
        except ImageError as error:
            problems[str(error)] = None
            continue
        labels.append(item.label)
        rows.append({n: x if n.startswith(PLAIN) else torch.cat([one[n] for one in seen]) for n, x in seen[0].items()})
    if not rows:
        raise ImageError("None of the images can be read.")
    device = model.clip.device
    image = {n: torch.stack([row[n] for row in rows], 0 if n.startswith(PLAIN) else 1).to(device) for n in rows[0]}
    return Draw(image, torch.tensor(labels).to(device), model.required_classes(), seed)


def drawn_images(
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    *,
    seed: int,
    crop: tuple[float, float],
    augment: bool = True,
    workers: int,
    cache: Path | None = None,
    problems: Problems | None = None,
) -> Draw:
    """The images to train on as quantities, for `begin` and `finish`: augmented views of each, as many as the method
    needs, and the image without augmentation for names that begin with "plain:"; `problems` gathers what is unreadable.

    What `forward` reads is left out if training asks for it without augmentation only; that may come from the cache.
    """
    clip, needs, names = model.clip, model.method.needs, model.names(training=True)
    plain = [name for name in names if name.startswith(PLAIN)]
    own = [name for name in names if name not in plain and (PLAIN + name not in plain or name in needs.training)]
    transform = replace(clip.preprocess_train, scale=crop)

    def views_of(view: int) -> ImageList:
        def augmented(place: int) -> Any:
            item = items[place]
            picture = dataset.open(item.id)
            return transform(picture, view_draw(seed, 0, item.id, view)) if augment else clip.preprocess_eval(picture)

        return ImageList(tuple(item.id for item in items), augmented)

    readable, image = list(range(len(items))), States()
    count = needs.views if needs.passes is None else needs.passes
    if own and count:
        with stage(READING, count * len(items)) as advance:  # one for all passes: each alone would begin at 0 again
            passes = [
                _all_states(
                    model,
                    views_of(view),
                    lambda image: image,
                    names=own,
                    workers=workers,
                    problems=problems,
                    advance=partial(_advance_from, advance, view * len(items)),
                )
                for view in range(count)
            ]
        readable, image = passes[0][0], {name: torch.stack([states[name] for _, states in passes]) for name in own}
    if plain:
        shown = [items[place] for place in readable]
        good, found = _plain_states(model, dataset, shown, plain, cache, workers, problems)
        image = {name: tensor[:, good] for name, tensor in image.items()} | found
        readable = [readable[place] for place in good]
    labels = torch.tensor([items[place].label for place in readable])
    return Draw(image, labels.to(clip.device), model.required_classes(), seed)


def _plain_states(
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    names: Sequence[str],
    cache: Path | None,
    workers: int,
    problems: Problems | None,
) -> tuple[list[int], States]:
    """Which items can be read, and their quantities without augmentation, by names that begin with "plain:"."""
    bare, bad = [name.removeprefix(PLAIN) for name in names], dict[int, str]()
    read = partial(evaluation_states, cache=cache, batch_size=BATCH, workers=workers)
    parts = list(read(model, dataset, items, problems=bad, names=bare))
    if problems is not None:
        problems |= dict.fromkeys(bad.values())
    if not parts:
        raise ImageError("None of the images can be read.")
    found = {PLAIN + name: torch.cat([part.states[name] for part in parts]) for name in bare}
    return [index for part in parts for index in part.indices], found


def held_images(
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    *,
    seed: int,
    workers: int,
    problems: Problems | None = None,
) -> Draw | None:
    """Held-out images as quantities, without augmentation; None if there are none."""
    if not items:
        return None
    images, transform = dataset.images(items), model.clip.preprocess_eval
    readable, image = _all_states(model, images, transform, names=model.names(), workers=workers, problems=problems)
    labels = torch.tensor([items[place].label for place in readable])
    return Draw(image, labels.to(model.clip.device), model.required_classes(), seed)


def _all_states(
    model: Model,
    images: ImageList,
    preprocess: Callable[..., Tensor],
    *,
    names: Sequence[str],
    workers: int,
    problems: Problems | None,
    advance: Advance | None = None,
) -> tuple[list[int], States]:
    """Which images can be read, and their quantities."""
    parts: list[States] = []
    readable: list[int] = []
    for part in image_batches(images, preprocess, size=BATCH, workers=workers, advance=advance):
        if problems is not None:
            problems |= dict.fromkeys(part.problems)
        if part.images is not None:
            parts.append(model.states(part.images.to(model.clip.device), names=names))
            readable += part.indices
    if not parts:
        raise ImageError("None of the images can be read.")
    return readable, {name: torch.cat([part[name] for part in parts]) for name in names}


def _advance_from(advance: Advance, before: int, done: int) -> None:
    """Count what is done of one pass, after all images of the passes before it."""
    advance(before + done)
