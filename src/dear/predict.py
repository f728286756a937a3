"""What images show: class names with probabilities, for files, PIL images, and any list of classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from dear.data.images import ImageList, as_rgb, image_batches, open_image
from dear.errors import ConfigError, ImageError, InputError
from dear.methods.base import DEFAULT_TEMPLATE, Method, Strategy, check_strategy, require_classes

_PREDICTS = "Predictions are made for paths and PIL images (tensors go to model(images))"


@dataclass(frozen=True)
class Prediction:
    """What one image shows."""

    image: str
    """The file's path, or the image's place in the list."""
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    """The likeliest classes with their probabilities, likeliest first."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def predict(
    method: Method,
    images: Sequence[Any],
    classes: Sequence[str] | None = None,
    *,
    template: str | None = None,
    strategy: Strategy = "fusion",
    top: int = 5,
) -> list[Prediction]:
    """Classify images among the model's classes, or among others, seen in training or not.

    Args:
        method: a trained model.
        images: paths or PIL images; one that cannot be read raises `ImageError`.
        classes: other class names than the model's own; afterwards the model has its own again.
        template: the prompt around a class name.
        strategy: "fusion", or "decoupled" for the [CLS] feature alone.
        top: how many classes to name.
    """
    found = list(try_predict(method, images, classes, template=template, strategy=strategy, top=top))
    for one in found:
        if isinstance(one, ImageError):
            raise one
    return [one for one in found if isinstance(one, Prediction)]


def try_predict(
    method: Method,
    images: Sequence[Any],
    classes: Sequence[str] | None = None,
    *,
    template: str | None = None,
    strategy: Strategy = "fusion",
    top: int = 5,
    batch: int = 32,
) -> Iterator[Prediction | ImageError]:
    """As `predict`, one by one, an error in the place of an image that cannot be read."""
    check_strategy(strategy)
    if type(top) is not int or top < 1:
        raise ConfigError(f"top is {top!r}, but must be a whole number from 1 on.")
    listed = _as_list(images)
    with _classes(method, classes, template):
        names = require_classes(method.classes).names
        for part in image_batches(listed, method.clip.preprocess_eval, size=batch):
            problems = iter(part.problems)
            scores = {}
            if part.images is not None:
                with torch.inference_mode():
                    out = method(part.images.to(method.clip.device), strategy=strategy)
                    scores = dict(zip(part.indices, out.logits.softmax(dim=1).cpu(), strict=True))
            for index in range(part.start, part.stop):
                if index in scores:
                    yield _prediction(listed.names[index], scores[index], names, top)
                else:
                    yield ImageError(next(problems))


def _prediction(image: str, probabilities: torch.Tensor, names: Sequence[str], top: int) -> Prediction:
    best = probabilities.topk(min(top, len(names)))
    named = tuple((names[i], p) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True))
    return Prediction(image, *named[0], named)


def _as_list(images: object) -> ImageList:
    if isinstance(images, str | Path | Image.Image):
        images = [images]
    if not isinstance(images, Iterable) or isinstance(images, torch.Tensor | dict):
        raise InputError(f"{_PREDICTS}, but got an object of type {type(images).__name__}.")
    listed = list(images)
    for index, one in enumerate(listed):
        if not isinstance(one, str | Path | Image.Image):
            raise InputError(f"{_PREDICTS}, but number {index} is of type {type(one).__name__}.")

    def open_one(index: int) -> Image.Image:
        one = listed[index]
        return as_rgb(one) if isinstance(one, Image.Image) else open_image(Path(one))

    names = [f"image {i}" if isinstance(one, Image.Image) else str(one) for i, one in enumerate(listed)]
    return ImageList(tuple(names), open_one)


@contextmanager
def _classes(method: Method, classes: Sequence[str] | None, template: str | None) -> Iterator[None]:
    """Other classes or another template for a while."""
    own = method.classes
    if classes is None and template is None:
        yield
        return
    names = classes if classes is not None else require_classes(own).names
    method.set_classes(names, template or (own.template if own else DEFAULT_TEMPLATE))
    try:
        yield
    finally:
        if own is not None:
            method.set_classes(own.names, own.template)
