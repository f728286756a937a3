"""Image styles. Pre-training shows only "painted"; the others are for the data sets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dear.errors import ConfigError, did_you_mean
from dear.world.raster import Bytes

Ints = NDArray[np.int32]


def _gray(image: Ints) -> Ints:
    gray: Ints = (image[..., 0] * 77 + image[..., 1] * 151 + image[..., 2] * 28) >> 8
    return gray


def _blur(image: Ints) -> Ints:
    """Average each pixel with its neighbours (weights 1, 2, 1 both ways)."""
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")
    wide = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    blurred: Ints = (wide[:-2] + 2 * wide[1:-1] + wide[2:]) >> 4
    return blurred


def _edges(image: Ints) -> Ints:
    """Return the largest difference of each pixel to its right and lower neighbours, over the channels."""
    padded = np.pad(image, ((0, 1), (0, 1), (0, 0)), mode="edge")
    right = np.abs(padded[:-1, 1:] - image).max(axis=2)
    below = np.abs(padded[1:, :-1] - image).max(axis=2)
    edges: Ints = np.minimum(right + below, 255)
    return edges


def _painted(image: Ints) -> Ints:
    return image


def _sketch(image: Ints) -> Ints:
    """Pencil lines along the strong edges, over a pale wash of the colours."""
    lines = np.clip(_edges(image) - 60, 0, 120)
    paper = 244 - (244 - image) * 160 // 256
    sketch: Ints = paper * (255 - lines)[..., None] // 255
    return sketch


def _poster(image: Ints) -> Ints:
    """Few levels per channel, with hard steps."""
    steps: Ints = np.minimum((image + 42) // 85 * 85, 255)
    return steps


def _mosaic(image: Ints) -> Ints:
    """Tiles of 2 × 2 pixels with a thin dark joint every second tile."""
    blocks = image.reshape(32, 2, 32, 2, 3).sum(axis=(1, 3)) >> 2
    out = blocks.repeat(2, axis=0).repeat(2, axis=1)
    out[3::4] = out[3::4] * 3 >> 2
    out[:, 3::4] = out[:, 3::4] * 3 >> 2
    tiles: Ints = out
    return tiles


def _night(image: Ints) -> Ints:
    """Moonlight: darker, bluer, less saturated."""
    gray = _gray(image)[..., None]
    dull = (image * 5 + gray * 3) >> 3
    return dull * np.array([110, 132, 190], dtype=np.int32) >> 8


def _negative(image: Ints) -> Ints:
    """Light and dark exchanged, with the same hues."""
    gray = _gray(image)[..., None]
    turned: Ints = np.clip(image + 255 - 2 * gray, 0, 255)
    return turned


def _watercolor(image: Ints) -> Ints:
    """Soft washes on white paper."""
    soft = _blur(_blur(image))
    return 255 - (255 - soft) * 176 // 256


def _hatched(image: Ints) -> Ints:
    """Pen hatching, denser in the dark, over a pale wash."""
    gray = _gray(image)
    y, x = np.mgrid[0:64, 0:64]
    ink = ((gray < 150) & ((x + y) % 4 == 0)) | ((gray < 84) & ((x - y) % 4 == 0))
    wash = 255 - (255 - image) * 200 // 256
    return np.where(ink[..., None], wash * 2 // 5, wash)


def _sepia(image: Ints) -> Ints:
    """An old photograph: a quarter of the colour left, brown toned."""
    gray = _gray(image)[..., None]
    toned = gray * np.array([270, 236, 190], dtype=np.int32) >> 8
    faded: Ints = np.minimum((image + 2 * toned) // 3, 255)
    return faded


def _neon(image: Ints) -> Ints:
    """Bright contours of the scene's own colours on black."""
    lines = np.minimum(_edges(image) * 3, 255)[..., None]
    glow = np.minimum(image * 5 // 4 + 30, 255)
    lit: Ints = glow * lines // 255 + image * (255 - lines) // 1020
    return lit


STYLES: dict[str, Callable[[Ints], Ints]] = {
    "painted": _painted,
    "sketch": _sketch,
    "poster": _poster,
    "mosaic": _mosaic,
    "night": _night,
    "negative": _negative,
    "watercolor": _watercolor,
    "hatched": _hatched,
    "sepia": _sepia,
    "neon": _neon,
}


def apply_style(image: Bytes, style: str) -> Bytes:
    """Return the image in a style."""
    if style not in STYLES:
        raise ConfigError(f"There is no style {style!r}: choose {', '.join(STYLES)}.{did_you_mean(style, STYLES)}")
    if style == "painted":
        return image
    return np.clip(STYLES[style](image.astype(np.int32)), 0, 255).astype(np.uint8)
