"""Render a scene to 64 × 64 pixels: a location as background, a coloured textured shape and an object in front.

An image is a pure function of (scene, key, look): all random numbers come from PCG64 seeded by the key, and all
arithmetic is on integers, so the same key gives the same bytes on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dear.world import locations, textures
from dear.world.objects import OUTLINE_PAINT, PAINTS, object_coverage, shape_coverage
from dear.world.raster import Bytes
from dear.world.styles import apply_style
from dear.world.vocabulary import RGB

SIZE = 64
RENDERER_VERSION = 2  # increase whenever the same scene, key and look give other bytes
_LIGHT_INK, _DARK_INK = (250, 250, 248), (24, 24, 28)
_ALWAYS_DARK_INK = {"yellow", "white", "lime", "pink"}
_ALWAYS_LIGHT_INK = {"black", "brown", "purple", "blue"}
_NEVER_TURNED_FAR = {"square", "diamond", "semicircle", "arrow", "triangle"}

Ints = NDArray[np.int32]


class Scene(NamedTuple):
    """The content of an image: one value of each of the five attributes."""

    color: str
    shape: str
    texture: str
    object: str
    location: str


@dataclass(frozen=True)
class Look:
    """The range of random variations, and the style of the result."""

    style: str = "painted"
    shape_sizes: tuple[int, int] = (28, 40)
    object_sizes: tuple[int, int] = (25, 35)
    turn: int = 18  # degrees in either direction
    light: int = 44  # of 256, in either direction, for the whole image, and half of it per channel
    noise: int = 10  # of 255, the largest deviation
    clutter: int = 3  # maximum number of small extra objects
    overlap: int = 5  # pixels by which shape and object may overlap
    held_out_places: bool = False  # use the variants of a location that pre-training never shows


class Layout(NamedTuple):
    """An image with the coverage (0..256 per pixel) of its shape and its object, for losses and checks of patches."""

    image: Bytes
    shape: Ints
    object: Ints


@cache
def _noise() -> NDArray[np.int16]:
    """Return a fixed field of bell-shaped noise, about ±128."""
    raw = np.random.PCG64(np.random.SeedSequence((3, 1))).random_raw(4 * 128 * 128 * 3 // 8)
    parts = raw.astype("<u8").view(np.uint8).reshape(4, 128, 128, 3).astype(np.int16)
    noise: NDArray[np.int16] = (parts.sum(axis=0) - 510) // 4
    return noise


def words(key: tuple[int, ...], count: int) -> list[int]:
    """Return `count` 32-bit numbers that depend only on the key."""
    raw = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    return [int(word) >> 32 for word in raw]


class _Draw:
    """Reads bounded numbers from a list of random words."""

    def __init__(self, key: tuple[int, ...]) -> None:
        self._words = iter(words(key, 112))

    def between(self, low: int, high: int) -> int:
        """Return a number low ≤ x ≤ high."""
        return low + next(self._words) % (high - low + 1)


def _ink(color: str, draw: _Draw) -> tuple[int, int, int]:
    coin = draw.between(0, 1)
    if color in _ALWAYS_DARK_INK:
        return _DARK_INK
    if color in _ALWAYS_LIGHT_INK:
        return _LIGHT_INK
    return (_DARK_INK, _LIGHT_INK)[coin]


def _paste(canvas: Ints, paint: Ints, alpha: Ints, top: int, left: int) -> Ints:
    """Paint a square over the canvas and return its coverage."""
    size = alpha.shape[0]
    cover = np.zeros((SIZE, SIZE), dtype=np.int32)
    y0, x0, y1, x1 = max(top, 0), max(left, 0), min(top + size, SIZE), min(left + size, SIZE)
    inner = (slice(y0 - top, y1 - top), slice(x0 - left, x1 - left))
    part = canvas[y0:y1, x0:x1]
    a = alpha[inner]
    part *= (256 - a)[..., None]
    part += paint[inner]
    part >>= 8
    cover[y0:y1, x0:x1] = a
    return cover


def _shape_paint(scene: Scene, size: int, degrees: int, draw: _Draw) -> tuple[Ints, Ints]:
    fill, rim = shape_coverage(scene.shape, size, degrees, bool(draw.between(0, 1)))
    tile = textures.tile(scene.texture, draw.between(0, textures.VARIANTS - 1))
    slack = textures.TILE - size
    reach = 5 if scene.texture == "ringed" else slack // 2
    top, left = slack // 2 + draw.between(-reach, reach), slack // 2 + draw.between(-reach, reach)
    strength = draw.between(150, 205)
    ink = np.array(_ink(scene.color, draw), dtype=np.int32)
    base = np.array(RGB[scene.color], dtype=np.int32)
    inked = (tile[top : top + size, left : left + size] * strength) >> 8
    paint = base + (((ink - base) * inked[..., None]) >> 8)
    edge = (base * 2 + ink * 3) // 5
    return paint * fill[..., None] + edge * rim[..., None], fill + rim


def _object_paint(name: str, size: int, degrees: int, draw: _Draw) -> tuple[Ints, Ints]:
    cover = object_coverage(name, size, degrees, bool(draw.between(0, 1)))
    sets = PAINTS[name]
    paints = np.array([*sets[draw.between(0, len(sets) - 1)], OUTLINE_PAINT], dtype=np.int32)
    paints[:4] = np.clip(paints[:4] + draw.between(-18, 18), 0, 255)
    flat = cover.reshape(len(cover), -1).T.astype(np.float32) @ paints.astype(np.float32)  # exact: below 2²⁴
    return flat.astype(np.int32).reshape(size, size, 3), cover.sum(axis=0, dtype=np.int32)


def _clutter(canvas: Ints, count: int, draw: _Draw) -> None:
    for _ in range(count):
        y, x = draw.between(0, SIZE - 5), draw.between(0, SIZE - 5)
        height, width, gray = draw.between(1, 4), draw.between(1, 4), draw.between(60, 210)
        canvas[y : y + height, x : x + width] = gray


def _positions(shape: int, thing: int, look: Look, draw: _Draw) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (top, left) of shape and object: side by side or diagonal, in either order."""
    first_is_shape = draw.between(0, 1)
    a, b = (shape, thing) if first_is_shape else (thing, shape)
    gap = SIZE - a - b  # free space between the two
    left_a = draw.between(-2, max(gap // 2, 0) + 1)
    nearest = max(left_a + a - look.overlap, SIZE - b - max(gap // 2, 0) - 1)
    left_b = draw.between(min(nearest, SIZE - b + 2), SIZE - b + 2)
    top_a, top_b = draw.between(-2, SIZE - a + 2), draw.between(-2, SIZE - b + 2)
    spots = (top_a, left_a), (top_b, left_b)
    if draw.between(0, 2) == 0:  # one above the other
        spots = (left_a, top_a), (left_b, top_b)
    return spots if first_is_shape else (spots[1], spots[0])


def compose(scene: Scene, key: tuple[int, ...], look: Look) -> Layout:
    """Render a scene and return it with the coverage of its shape and its object."""
    draw = _Draw(key)
    first = locations.TRAIN_VARIANTS if look.held_out_places else 0
    count = locations.TEST_VARIANTS if look.held_out_places else locations.TRAIN_VARIANTS
    back = locations.background(scene.location, first + draw.between(0, count - 1))
    top, left = draw.between(0, locations.HEIGHT - SIZE), draw.between(0, locations.WIDTH - SIZE)
    canvas = back[top : top + SIZE, left : left + SIZE].astype(np.int32)
    if draw.between(0, 1):
        canvas = np.ascontiguousarray(canvas[:, ::-1])

    shape_size, object_size = draw.between(*look.shape_sizes), draw.between(*look.object_sizes)
    small_turn = min(look.turn, 14) if scene.shape in _NEVER_TURNED_FAR else look.turn
    shape_turn = 2 * (draw.between(-small_turn, small_turn) // 2)
    object_turn = 2 * (draw.between(-look.turn, look.turn) // 2)
    shape_at, object_at = _positions(shape_size, object_size, look, draw)
    shape_on_top = draw.between(0, 1)
    shape_paint, shape_alpha = _shape_paint(scene, shape_size, shape_turn, draw)
    object_paint, object_alpha = _object_paint(scene.object, object_size, object_turn, draw)
    light = np.array([draw.between(-look.light, look.light)] * 3, dtype=np.int32)
    light += [draw.between(-look.light // 2, look.light // 2) // 2 for _ in range(3)]
    strength, ny, nx = draw.between(0, look.noise), draw.between(0, SIZE), draw.between(0, SIZE)
    _clutter(canvas, draw.between(0, look.clutter), draw)

    if shape_on_top:
        object_cover = _paste(canvas, object_paint, object_alpha, *object_at)
        shape_cover = _paste(canvas, shape_paint, shape_alpha, *shape_at)
        object_cover = object_cover * (256 - shape_cover) >> 8
    else:
        shape_cover = _paste(canvas, shape_paint, shape_alpha, *shape_at)
        object_cover = _paste(canvas, object_paint, object_alpha, *object_at)
        shape_cover = shape_cover * (256 - object_cover) >> 8
    canvas *= 256 + light
    canvas += _noise()[ny : ny + SIZE, nx : nx + SIZE].astype(np.int32) * (4 * strength)
    canvas >>= 8
    np.clip(canvas, 0, 255, out=canvas)
    image = canvas.astype(np.uint8)
    return Layout(apply_style(image, look.style), shape_cover, object_cover)


def render(scene: Scene, key: tuple[int, ...], look: Look | None = None) -> Bytes:
    """Return the image of a scene, 64 × 64 × 3 bytes."""
    return compose(scene, key, look or Look()).image
