"""Rasterisation with integer arithmetic: filled primitives that are identical, byte for byte, on every machine.

Drawings are made on a 100 × 100 board. A board is rasterised on `SIDE` × `SIDE` cells into a label map (0 is empty,
k is paint slot k); `coverage` then places it, turned and scaled, on small pixels with nine samples each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BOARD = 100
SIDE = 200
_UNIT = 2 * SIDE // BOARD  # coordinates count half cells, so that cell centres are odd integers
_TRIG = 1 << 14

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Step = tuple[Any, ...]


def sine(degrees: int) -> int:
    """Return sin(degrees) as a fixed-point integer (16384 is one)."""
    return round(math.sin(math.radians(degrees)) * _TRIG)


def cosine(degrees: int) -> int:
    """Return cos(degrees) as a fixed-point integer (16384 is one)."""
    return sine(degrees + 90)


def turn(x: Ints, y: Ints, degrees: int) -> tuple[Ints, Ints]:
    """Rotate integer coordinates about the origin."""
    c, s = cosine(degrees), sine(degrees)
    return (x * c - y * s) // _TRIG, (x * s + y * c) // _TRIG


@dataclass(frozen=True)
class Board:
    """The size of a board in cells, and the number of half cells per unit of a drawing."""

    height: int = SIDE
    width: int = SIDE
    unit: int = _UNIT

    def window(self, x0: int, y0: int, x1: int, y1: int) -> tuple[tuple[slice, slice], Ints, Ints]:
        """Return the part of the board that half-cell bounds touch, and its cell centres."""
        left, right = min(max(x0 // 2, 0), self.width), min(max(x1 // 2 + 1, 0), self.width)
        top, bottom = min(max(y0 // 2, 0), self.height), min(max(y1 // 2 + 1, 0), self.height)
        y, x = np.mgrid[top:bottom, left:right].astype(np.int64)
        return (slice(top, bottom), slice(left, right)), 2 * x + 1, 2 * y + 1


Patch = tuple[tuple[slice, slice], Bools]


def polygon(board: Board, points: Sequence[tuple[float, float]]) -> Patch:
    """Fill a polygon by the even-odd rule."""
    corners = [(round(px * board.unit), round(py * board.unit)) for px, py in points]
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    where, x, y = board.window(min(xs), min(ys), max(xs), max(ys))
    inside = np.zeros(x.shape, dtype=bool)
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        if y0 == y1:
            continue
        side = (x - x0) * (y1 - y0) - (x1 - x0) * (y - y0)
        inside ^= ((y0 > y) != (y1 > y)) & ((side < 0) if y1 > y0 else (side > 0))
    return where, inside


def oval(board: Board, cx: float, cy: float, rx: float, ry: float) -> Patch:
    """Fill an axis-parallel ellipse."""
    a, b = max(round(rx * board.unit), 1), max(round(ry * board.unit), 1)
    px, py = round(cx * board.unit), round(cy * board.unit)
    where, x, y = board.window(px - a, py - b, px + a, py + b)
    dx, dy = x - px, y - py
    return where, dx * dx * (b * b) + dy * dy * (a * a) <= a * a * b * b


def box(board: Board, x0: float, y0: float, x1: float, y1: float) -> Patch:
    """Fill a rectangle."""
    left, top, right, bottom = (round(v * board.unit) for v in (x0, y0, x1, y1))
    where, x, y = board.window(left, top, right, bottom)
    return where, (x >= left) & (x < right) & (y >= top) & (y < bottom)


def line(board: Board, x0: float, y0: float, x1: float, y1: float, thick: float) -> Patch:
    """Draw a straight stroke with round ends."""
    ax, ay, bx, by = (round(v * board.unit) for v in (x0, y0, x1, y1))
    radius = max(round(thick * board.unit / 2), 1)
    where, x, y = board.window(min(ax, bx) - radius, min(ay, by) - radius, max(ax, bx) + radius, max(ay, by) + radius)
    ux, uy = bx - ax, by - ay
    length2 = ux * ux + uy * uy
    ends = ((x - ax) ** 2 + (y - ay) ** 2 <= radius * radius) | ((x - bx) ** 2 + (y - by) ** 2 <= radius * radius)
    along = (x - ax) * ux + (y - ay) * uy
    across = (x - ax) * uy - (y - ay) * ux
    between = (along >= 0) & (along <= length2) & (across * across <= radius * radius * length2)
    return where, ends | between


_PRIMITIVES: dict[str, Callable[..., Patch]] = {"poly": polygon, "oval": oval, "box": box, "line": line}


def labels(steps: Sequence[Step]) -> Bytes:
    """Paint steps such as ("oval", slot, cx, cy, rx, ry) over each other on a drawing board; slot 0 erases."""
    board = Board()
    cells = np.zeros((board.height, board.width), dtype=np.uint8)
    for name, slot, *values in steps:
        where, mask = _PRIMITIVES[name](board, *values)
        cells[where][mask] = slot
    return cells


def grow(mask: Bools, cells: int) -> Bools:
    """Widen a mask by some cells in the eight directions."""
    out = mask.copy()
    for _ in range(cells):
        wide = out.copy()
        wide[1:] |= out[:-1]
        wide[:-1] |= out[1:]
        tall = wide.copy()
        tall[:, 1:] |= wide[:, :-1]
        tall[:, :-1] |= wide[:, 1:]
        out = tall
    return out


def coverage(board: Bytes, slots: int, size: int, degrees: int, flip: bool) -> NDArray[np.int32]:
    """Return how much (0..256) of each of `size` × `size` pixels every slot covers, after rotation of the board.

    The result has shape (slots, size, size); the difference to 256 is transparent.
    """
    fine = 3 * size
    y, x = np.mgrid[0:fine, 0:fine].astype(np.int64)
    x, y = 2 * x + 1 - fine, 2 * y + 1 - fine
    if flip:
        x = -x
    x, y = turn(x * 64, y * 64, -degrees)
    column = (x * SIDE // (128 * fine)) + SIDE // 2
    row = (y * SIDE // (128 * fine)) + SIDE // 2
    inside = (column >= 0) & (column < SIDE) & (row >= 0) & (row < SIDE)
    slot_of = np.where(inside, board[np.clip(row, 0, SIDE - 1), np.clip(column, 0, SIDE - 1)], 0)
    share = [(slot_of == slot).reshape(size, 3, size, 3).sum(axis=(1, 3)) * 256 // 9 for slot in range(1, slots + 1)]
    return np.stack(share).astype(np.int32)
