"""What a training has come to, on some of its own images: scores that are not finite, or worse than plain CLIP's."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from dear.backbone.frozen import PLAIN, States
from dear.data.dataset import Item
from dear.data.images import image_batches
from dear.engine.feed import IMAGES, Read, Views
from dear.engine.job import UNLABELLED, Job
from dear.engine.ranks import Ranks
from dear.errors import ImageError, TrainingError
from dear.methods.base import Draw
from dear.model.model import Model

COMPARING = "comparing with plain CLIP"
BATCH = 16
"""Training images whose scores must be finite, and images that are classified at once."""
COMPARED = 64
"""Training images that are compared with plain CLIP, at most: a large CLIP takes half a second per image on a CPU."""
CHANCE = 0.001
"""How rarely chance alone may cause the warning that plain CLIP classifies the training images better.

Only images count that one of the two classifies correctly and the other does not. If both were equally good, each of
these would be a toss of a coin (an exact one-sided McNemar test). At least ten images are needed for a warning.
"""


class SeenViews:
    """Remembers the views of the last images that were trained on, so that a check opens no image again."""

    def __init__(self) -> None:
        self._read: Read | None = None
        self._last: deque[Views] = deque(maxlen=BATCH)

    def through(self, read: Read) -> Read:
        """A reader that does the same as `read`, and remembers."""
        self._read = read

        def remember(index: int, epoch: int) -> Views:
            views = read(index, epoch)
            self._last.append(views)
            return views

        return remember

    def states(self, model: Model, count: int) -> States | None:
        """Frozen quantities of one view of these images; if no step was made, of the first of `count` images."""
        views = list(self._last)
        for index in range(min(count, BATCH) if self._read and not views else 0):
            with suppress(ImageError):
                views.append(self._read(index, 0))  # type: ignore[misc]
        if not views:
            return None
        device, names = model.clip.device, [name for name in views[0] if not name.startswith(PLAIN)]
        stacked = {name: torch.stack([one[name][0] for one in views]).to(device) for name in names}
        return model.states(stacked[IMAGES]) if IMAGES in stacked else stacked


def drawn_states(model: Model, draw: Draw | None) -> States | None:
    """Frozen quantities of some images that a method looked at as a whole; None if it looked at none."""
    if draw is None or not draw.image:
        return None
    plain = {name.removeprefix(PLAIN): one[:BATCH] for name, one in draw.image.items() if name.startswith(PLAIN)}
    views = {name: one[0][:BATCH] for name, one in draw.image.items() if not name.startswith(PLAIN)}
    found = {**plain, **views}
    return found if all(name in found for name in model.names()) else None


class _Compared(NamedTuple):
    """What the trained model and plain CLIP make of training images with a label."""

    finite: bool = True
    images: int = 0
    right: int = 0
    plain_right: int = 0
    lost: int = 0
    """Images that plain CLIP classifies correctly and the trained model does not."""
    gained: int = 0
    """Images that the trained model classifies correctly and plain CLIP does not."""


def check_outcome(
    job: Job,
    model: Model,
    items: Sequence[Item],
    ranks: Ranks,
    states: States | None,
    *,
    workers: int,
    on_warning: Callable[[str], None] | None = None,
) -> None:
    """Raise `TrainingError` if scores of training images are not finite, in every process.

    With `on_warning`, the first process also compares the model with plain CLIP, on images without augmentation that
    are spread evenly over the list, and passes a sentence on if the model is clearly worse. Nothing random is used, and
    nothing is cached.

    Args:
        job: what was trained.
        model: the trained model.
        items: the images that it was trained on.
        ranks: the processes of the training.
        states: frozen quantities of some of the images; None if there are none.
        workers: threads that read images.
        on_warning: called with the sentence.
    """
    found = _Compared(finite=states is None or _is_finite(model, states))
    if found.finite and on_warning is not None and ranks.is_first:
        count = min(COMPARED, len(items))
        found = _compare(job, model, [items[place * len(items) // count] for place in range(count)], workers)
    if not all(json.loads(one) for one in ranks.gather(json.dumps(found.finite))):
        raise TrainingError(_unusable(has_steps(job, model)))
    if on_warning is not None and is_clearly_worse(found.lost, found.gained):
        on_warning(_worse(found, has_steps(job, model)))


def has_steps(job: Job, model: Model) -> bool:
    """Whether a job is trained by gradient steps; a method without them has none by any recipe."""
    own = model.method.recipe
    return bool(model.trainable()) and all(one.epochs or one.steps_per_shot for one in (job.resolved, own))


def is_clearly_worse(lost: int, gained: int) -> bool:
    """Whether chance is unlikely to explain that more answers were lost than gained; see `CHANCE`."""
    tosses = lost + gained
    as_extreme = sum(comb(tosses, heads) for heads in range(lost, tosses + 1))
    return bool(as_extreme / 2**tosses < CHANCE)


@torch.no_grad()
def _is_finite(model: Model, states: Mapping[str, Tensor]) -> bool:
    return bool(model(given=states).logits.isfinite().all())


@torch.no_grad()
def _compare(job: Job, model: Model, items: Sequence[Item], workers: int) -> _Compared:
    """Classify images by the trained model and by plain CLIP; images that cannot be read do not count."""
    plain, counts = model.plain(), [0] * 5
    names = tuple(dict.fromkeys((*model.names(), *plain.names())))
    images, transform = job.dataset.images(items), model.clip.preprocess_eval
    for part in image_batches(images, transform, size=BATCH, workers=workers, what=COMPARING):
        if part.images is None:
            continue
        states = model.states(part.images.to(model.clip.device), names=names)
        logits_BC = model(given={name: states[name] for name in model.names()}).logits
        if not bool(logits_BC.isfinite().all()):
            return _Compared(finite=False)
        labels = torch.tensor([items[place].label for place in part.indices], device=logits_BC.device)
        known = labels != UNLABELLED
        hit = (logits_BC.argmax(1) == labels) & known
        plain_hit = (plain(given={name: states[name] for name in plain.names()}).logits.argmax(1) == labels) & known
        seen = (known, hit, plain_hit, plain_hit & ~hit, hit & ~plain_hit)
        counts = [count + int(one.sum()) for count, one in zip(counts, seen, strict=True)]
    return _Compared(True, *counts)


def _unusable(steps: bool) -> str:
    advice = "lower the learning rate and train again" if steps else "check the images, or change the method's settings"
    return f"After training, the model's scores are not finite, so no adapter is saved: {advice}."


def _worse(found: _Compared, steps: bool) -> str:
    advice = "a lower learning rate, more epochs, or another method" if steps else "other settings, or another method"
    return (
        f"The trained model classifies {found.right} of {found.images} training images correctly, plain CLIP "
        f"{found.plain_right}: try {advice}."
    )
