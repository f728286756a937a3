"""Convert what a caller passes as images (paths, PIL images, bytes, arrays, tensors) to a stream or a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dear.data.images import ImageList, ImageStream, NamedImage, as_rgb, decode_image, open_image
from dear.errors import InputError

ONE_IMAGE = (str, Path, Image.Image, bytes, bytearray, memoryview)


def image_stream(images: object, purpose: str) -> ImageStream:
    """One image or several, of any supported kind, as a stream; a generator is read as its images are needed.

    `purpose` begins the error message.
    """
    if isinstance(images, ImageStream):
        return images
    if isinstance(images, np.ndarray | torch.Tensor):
        images = list(images) if images.ndim == 4 else [images]
    if isinstance(images, ONE_IMAGE):
        images = [images]
    if not isinstance(images, Iterable) or isinstance(images, dict):
        raise InputError(f"{purpose}, but got an object of type {type(images).__name__}.")
    if isinstance(images, Sequence):
        for index, one in enumerate(images):
            _check_kind(one, index, purpose)
    named = (named_image(one, index, purpose) for index, one in enumerate(images))
    return ImageStream(named, len(images) if isinstance(images, Sized) else 0)


def image_list(images: object, purpose: str) -> ImageList:
    """As `image_stream`, as a list."""
    named = list(image_stream(images, purpose).images)
    return ImageList(tuple(one.name for one in named), lambda index: named[index].open())


def named_image(image: object, index: int, purpose: str) -> NamedImage:
    """One image of any supported kind, named by its path or by its index."""
    _check_kind(image, index, purpose)
    if isinstance(image, str | Path):
        return NamedImage(str(image), partial(open_image, Path(image)))
    name = f"image {index}"
    if isinstance(image, bytes | bytearray | memoryview):
        return NamedImage(name, partial(decode_image, bytes(image), name))
    picture = image if isinstance(image, Image.Image) else _picture(image, index, purpose)  # type: ignore[arg-type]
    return NamedImage(name, partial(as_rgb, picture))


def _check_kind(image: object, index: int, purpose: str) -> None:
    if not isinstance(image, (*ONE_IMAGE, np.ndarray, torch.Tensor)):
        raise InputError(f"{purpose}, but number {index} is of type {type(image).__name__}.")


def _picture(pixels: np.ndarray[Any, Any] | torch.Tensor, index: int, purpose: str) -> Image.Image:
    """A PIL image from pixels: channels last for numpy arrays, channels first for tensors."""
    description = f"{pixels.dtype} {tuple(pixels.shape)}"
    if isinstance(pixels, torch.Tensor):
        tensor = pixels.detach().cpu()
        if tensor.is_floating_point() and tensor.numel() and bool(((tensor >= 0) & (tensor <= 1)).all()):
            tensor = (255 * tensor).round().to(torch.uint8)
        values = tensor.movedim(0, -1).numpy() if tensor.ndim == 3 and tensor.dtype == torch.uint8 else np.empty(0)
    else:
        values = pixels
    channels = values.shape[2] if values.ndim == 3 else 1
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or channels not in (1, 3, 4) or not values.size:
        raise InputError(f"{purpose}, but number {index} is {description}.")
    values = np.ascontiguousarray(values)  # copied below, because the caller may change the array later
    return Image.fromarray(values[..., 0] if values.ndim == 3 and channels == 1 else values).copy()
