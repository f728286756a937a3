"""Convert what a caller passes as images (paths, PIL images, bytes, arrays, tensors) to an `ImageList`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dear.data.images import ImageList, as_rgb, decode_image, open_image
from dear.errors import InputError


def image_list(images: object, purpose: str) -> ImageList:
    """An `ImageList` of one image or several, of any supported kind; `purpose` begins the error message."""
    if isinstance(images, np.ndarray | torch.Tensor):
        images = list(images) if images.ndim == 4 else [images]
    if isinstance(images, str | Path | Image.Image | bytes | bytearray | memoryview):
        images = [images]
    if not isinstance(images, Iterable) or isinstance(images, dict):
        raise InputError(f"{purpose}, but got an object of type {type(images).__name__}.")
    listed = list(images)
    for index, one in enumerate(listed):
        if isinstance(one, np.ndarray | torch.Tensor):
            listed[index] = _picture(one, index, purpose)
        elif not isinstance(one, str | Path | Image.Image | bytes | bytearray | memoryview):
            raise InputError(f"{purpose}, but number {index} is of type {type(one).__name__}.")
    names = [str(one) if isinstance(one, str | Path) else f"image {i}" for i, one in enumerate(listed)]

    def open_one(index: int) -> Image.Image:
        one = listed[index]
        if isinstance(one, Image.Image):
            return as_rgb(one)
        return open_image(Path(one)) if isinstance(one, str | Path) else decode_image(bytes(one), names[index])

    return ImageList(tuple(names), open_one)


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
