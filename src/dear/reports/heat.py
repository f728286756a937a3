"""Heat-map images: where in an image the evidence for or against a class is."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from torch import Tensor

from dear.reports.colors import AGAINST, FOR, STRONGEST

SIDE = 224


def overlay(heat: Tensor, largest: float) -> bytes:
    """A PNG to lay over the picture, with one pixel per patch, coloured by its logits (rows, columns)."""
    shares = np.clip(heat.numpy() / (largest or 1.0), -1, 1)[..., None]
    tint = np.where(shares > 0, _rgb(FOR), _rgb(AGAINST))
    cover = (255 * STRONGEST * np.abs(shares)).round()
    return png(Image.fromarray(np.concatenate([tint, cover], axis=-1).astype(np.uint8), "RGBA"))


def faded(picture: Image.Image, side: int = SIDE) -> Image.Image:
    """The picture in light gray, as the background of a heat map."""
    gray = picture.convert("L").resize((side, side), Image.Resampling.BICUBIC)
    return gray.point([90 + 0.6 * level for level in range(256)]).convert("RGB")


def png(picture: Image.Image) -> bytes:
    """The bytes of a PNG file."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
