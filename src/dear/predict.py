"""What images show: class names with probabilities, for files, pictures, arrays or bytes, and any list of classes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from PIL import Image

from dear.backbone.clip import FrozenClip
from dear.config import whole_number
from dear.data.descriptions import read_descriptions
from dear.data.images import ImageList, as_rgb, decode_image, image_batches, open_image
from dear.data.prompts import ClassList
from dear.errors import ConfigError, DearWarning, ImageError, InputError
from dear.methods.base import Output

OnError = Literal["raise", "skip"]
_PREDICTS = (
    "Predictions are made for paths, PIL images, bytes of image files, and arrays of pixels: (H, W, 3) of uint8, or "
    "tensors (3, H, W) of uint8 or from 0 to 1; preprocessed tensors go to model(images)"
)


@dataclass(frozen=True)
class Prediction:
    """What one image shows."""

    image: str
    """The file's path, or the image's place in the list."""
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    """The likeliest classes with their probabilities, likeliest first."""

    def __repr__(self) -> str:
        """One line, whatever was asked for."""
        return f"Prediction({self.image}: {self.label} {100 * self.probability:.1f} %)"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Classifier(Protocol):
    """What predicts: a `dear.Model`."""

    clip: FrozenClip

    def __call__(self, images: torch.Tensor) -> Output:
        """Classify preprocessed images."""
        ...

    def for_classes(
        self,
        classes: Sequence[str],
        template: str | None = None,
        *,
        descriptions: Mapping[str, Sequence[str]] | None = None,
    ) -> Classifier:
        """The same for other classes."""
        ...

    def required_classes(self) -> ClassList:
        """The classes it tells apart."""
        ...

    def check_readout(self, name: str | None) -> str:
        """The name of a readout that there is."""
        ...


def predict(
    model: Classifier,
    images: Sequence[Any],
    classes: Sequence[str] | None = None,
    *,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    readout: str | None = None,
    top_k: int = 5,
    batch_size: int = 32,
    workers: int = 2,
    on_error: OnError = "raise",
) -> list[Prediction]:
    """Classify images among the model's classes, or among others, seen in training or not.

    Args:
        model: a trained model.
        images: one image, or any number of them: paths, PIL images, bytes of image files, arrays (H, W, 3) of uint8, or
            tensors (3, H, W) of uint8 or from 0 to 1.
        classes: other class names than the model's own.
        template: the prompt around a class name.
        descriptions: sentences about classes, for methods that read them: a mapping, or a JSON file.
        readout: name of the method's readout; by default its first.
        top_k: how many classes to name.
        batch_size: images that are classified at once.
        workers: threads that read images.
        on_error: "raise" an `ImageError` for the first image that cannot be read, or "skip" such images with one
            warning; `Prediction.image` says which image a prediction is of.
    """
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error is {on_error!r}, but can be 'raise' or 'skip'.")
    how: dict[str, Any] = {"readout": readout, "top_k": top_k, "batch_size": batch_size, "workers": workers}
    found = list(stream(model, images, classes, template=template, descriptions=descriptions, **how))
    bad = [one for one in found if isinstance(one, ImageError)]
    if bad and on_error == "raise":
        raise bad[0]
    if bad:
        warnings.warn(f"{len(bad)} of {len(found)} images are left out, the first: {bad[0]}", DearWarning, stacklevel=3)
    return [one for one in found if isinstance(one, Prediction)]


def stream(
    model: Classifier,
    images: Sequence[Any],
    classes: Sequence[str] | None = None,
    *,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    readout: str | None = None,
    top_k: int = 5,
    batch_size: int = 32,
    workers: int = 2,
) -> Iterator[Prediction | ImageError]:
    """As `predict`, one by one as they are made, with an error in the place of an image that cannot be read."""
    chosen = model.check_readout(readout)
    whole_number("top_k", top_k, least=1)
    listed = _as_list(images)
    if classes is not None or template is not None or descriptions is not None:
        names = classes if classes is not None else model.required_classes().names
        told = None if descriptions is None else read_descriptions(descriptions)
        model = model.for_classes(names, template, descriptions=told)
    names = model.required_classes().names
    for part in image_batches(listed, model.clip.preprocess_eval, size=batch_size, workers=workers):
        problems = iter(part.problems)
        scores = {}
        if part.images is not None:
            with torch.inference_mode():
                out = model(part.images.to(model.clip.device))
                logits = out.readouts.get(chosen, out.logits)  # switched off, a model has one readout
                if not bool(logits.isfinite().all()):
                    raise InputError("The model's scores are not finite: the adapter is not usable, train it again.")
                scores = dict(zip(part.indices, logits.softmax(dim=1).cpu(), strict=True))
        for index in range(part.start, part.stop):
            if index in scores:
                yield _prediction(listed.names[index], scores[index], names, top_k)
            else:
                yield ImageError(next(problems))


def _prediction(image: str, probabilities: torch.Tensor, names: Sequence[str], top: int) -> Prediction:
    best = probabilities.topk(min(top, len(names)))
    named = tuple((names[i], p) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True))
    return Prediction(image, *named[0], named)


def _as_list(images: object) -> ImageList:
    """Images of any kind as a list that opens them one by one."""
    if isinstance(images, np.ndarray | torch.Tensor):
        images = list(images) if images.ndim == 4 else [images]
    if isinstance(images, str | Path | Image.Image | bytes | bytearray | memoryview):
        images = [images]
    if not isinstance(images, Iterable) or isinstance(images, dict):
        raise InputError(f"{_PREDICTS}, but got an object of type {type(images).__name__}.")
    listed = list(images)
    for index, one in enumerate(listed):
        if isinstance(one, np.ndarray | torch.Tensor):
            listed[index] = _picture(one, index)
        elif not isinstance(one, str | Path | Image.Image | bytes | bytearray | memoryview):
            raise InputError(f"{_PREDICTS}, but number {index} is of type {type(one).__name__}.")
    names = [str(one) if isinstance(one, str | Path) else f"image {i}" for i, one in enumerate(listed)]

    def open_one(index: int) -> Image.Image:
        one = listed[index]
        if isinstance(one, Image.Image):
            return as_rgb(one)
        return open_image(Path(one)) if isinstance(one, str | Path) else decode_image(bytes(one), names[index])

    return ImageList(tuple(names), open_one)


def _picture(pixels: np.ndarray[Any, Any] | torch.Tensor, index: int) -> Image.Image:
    """An array of pixels as a picture: numpy's with channels last, torch's with channels first."""
    told = f"{pixels.dtype} {tuple(pixels.shape)}"
    if isinstance(pixels, torch.Tensor):
        found = pixels.detach().cpu()
        if found.is_floating_point() and found.numel() and bool(((found >= 0) & (found <= 1)).all()):
            found = (255 * found).round().to(torch.uint8)
        values = found.movedim(0, -1).numpy() if found.ndim == 3 and found.dtype == torch.uint8 else np.empty(0)
    else:
        values = pixels
    channels = values.shape[2] if values.ndim == 3 else 1
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or channels not in (1, 3, 4) or not values.size:
        raise InputError(f"{_PREDICTS}, but number {index} is {told}.")
    values = np.ascontiguousarray(values)  # a copy of its own is made below: the array may change later
    return Image.fromarray(values[..., 0] if values.ndim == 3 and channels == 1 else values).copy()
