"""Sixteen textures as coverage maps: how much neutral ink (0..256) lies on each pixel of a 64 × 64 tile.

Lengths are in 1/64 pixel, so all arithmetic is on integers; each pixel is the average of nine samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dear.world.raster import Bools, Ints, sine, turn
from dear.world.vocabulary import INDEX

TILE = 64
VARIANTS = 16
_PX = 64
_SINE = np.array([sine(degree) for degree in range(360)], dtype=np.int64)

Pattern = Callable[[Ints, Ints, int, Ints], Bools]


def _striped(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    return v % (7 * p) < 7 * p // 2


def _near(u: Ints, v: Ints, centres: Ints) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distances of every sample to its nearest and second nearest centre; as roots of integers their order is exact."""
    first = np.full(u.shape, np.int64(1) << 40)
    second = first.copy()
    for x, y in centres:
        d = (u - x) ** 2 + (v - y) ** 2
        second = np.minimum(second, np.maximum(first, d))
        first = np.minimum(first, d)
    return np.sqrt(first.astype(np.float64)), np.sqrt(second.astype(np.float64))


def _lattice(p: int, spacing: int) -> Ints:
    """Centres of a hexagonal lattice over the tile and its neighbourhood."""
    dx = spacing * p
    dy = dx * 7 // 8
    reach = 60 * _PX
    rows = range(-reach // dy, reach // dy + 1)
    columns = range(-reach // dx, reach // dx + 1)
    return np.array([(c * dx + (r % 2) * dx // 2, r * dy) for r in rows for c in columns], dtype=np.int64)


def _scattered(raw: Ints, p: int, spacing: int) -> Ints:
    """Irregular centres over the tile: a square lattice with randomly displaced points."""
    step = spacing * p
    reach = 48 * _PX
    cells = range(-reach // step, reach // step + 1)
    points = []
    for k, (r, c) in enumerate((r, c) for r in cells for c in cells):
        jitter = int(raw[k % len(raw)]) + 7919 * (k // len(raw))
        points.append((c * step + jitter % step, r * step + (jitter >> 20) % step))
    return np.array(points, dtype=np.int64)


def _dotted(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    step = 8 * p
    x, y = u % step - step // 2, v % step - step // 2
    return x * x + y * y < (step * 5 // 16) ** 2


def _checkered(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    even: Bools = (u // (5 * p) + v // (5 * p)) % 2 == 0
    return even


def _zigzag(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    period = 10 * p
    tooth = np.abs(u % period - period // 2)
    return (v + tooth) % (7 * p) < 3 * p


def _wavy(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    bend = _SINE[(u * 360 // (20 * p)) % 360] * (3 * p) // 16384
    return (v + bend) % (6 * p) < 5 * p // 2


def _gridded(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    return (u % (8 * p) < 2 * p) | (v % (8 * p) < 2 * p)


def _bricked(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    row = v // (6 * p)
    return (v % (6 * p) < 3 * p // 2) | ((u + (row % 2) * 6 * p) % (12 * p) < 3 * p // 2)


def _scaly(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    width, height = 10 * p, 5 * p
    out = np.zeros(u.shape, dtype=bool)
    decided = out.copy()
    row = v // height
    for back in (0, 1, 2):  # a scale overlaps the rows below it
        r = row - 2 + back
        x = (u + (r % 2) * width // 2) % width - width // 2
        y = v - r * height
        d2 = x * x + y * y
        inside = d2 <= (11 * p) ** 2 // 2
        edge = inside & (d2 > (6 * p) ** 2)
        out = np.where(decided, out, edge)
        decided |= inside
    return out


def _honeycombed(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    first, second = _near(u, v, _lattice(p, 9))
    return second - first < 2.2 * p


def _speckled(u: Ints, v: Ints, p: int, raw: Ints) -> Bools:
    first, _ = _near(u, v, _scattered(raw, p, 4))
    return first < 1.0 * p


def _blotchy(u: Ints, v: Ints, p: int, raw: Ints) -> Bools:
    step = 7 * p
    a, b = u // step, v // step
    x, y = u % step, v % step

    def at(i: Ints, j: Ints) -> Ints:
        height: Ints = raw[(i * 31 + j * 17) % len(raw)] % 256
        return height

    top = at(a, b) * (step - x) + at(a + 1, b) * x
    bottom = at(a, b + 1) * (step - x) + at(a + 1, b + 1) * x
    return top * (step - y) + bottom * y > 138 * step * step


def _cracked(u: Ints, v: Ints, p: int, raw: Ints) -> Bools:
    first, second = _near(u, v, _scattered(raw, p, 11))
    return second - first < 1.7 * p


def _woven(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    cell = 8 * p
    upright = (u // cell + v // cell) % 2 == 0
    along = np.where(upright, u, v)
    return along % (cell // 2) < cell // 4


def _ringed(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    distance = np.sqrt((u * u + v * v).astype(np.float64)).astype(np.int64)
    return distance % (7 * p) < 3 * p


def _bubbly(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    first, _second = _near(u, v, _lattice(p, 9))
    return np.abs(first - 3.2 * p) < 0.85 * p


def _plain(u: Ints, v: Ints, p: int, _: Ints) -> Bools:
    return np.zeros(u.shape, dtype=bool)


PATTERNS: dict[str, Pattern] = {
    "plain": _plain,
    "striped": _striped,
    "dotted": _dotted,
    "checkered": _checkered,
    "zigzag": _zigzag,
    "wavy": _wavy,
    "gridded": _gridded,
    "bricked": _bricked,
    "scaly": _scaly,
    "honeycombed": _honeycombed,
    "speckled": _speckled,
    "blotchy": _blotchy,
    "cracked": _cracked,
    "woven": _woven,
    "ringed": _ringed,
    "bubbly": _bubbly,
}
_FREELY_TURNED = {"striped", "speckled", "blotchy", "cracked", "honeycombed", "bubbly"}


@cache
def tile(texture: str, variant: int) -> NDArray[np.int32]:
    """Return the ink coverage (0..256) of one variant of a texture; variants differ in scale, turn and phase."""
    raw = np.random.PCG64(np.random.SeedSequence((7, INDEX["texture"][texture], variant))).random_raw(256)
    chance = (raw >> np.uint64(24)).astype(np.int64)
    period = (60, 66, 73, 80)[variant % 4]  # 1/64 pixel per nominal pixel: 0.94 to 1.25
    degrees = int(chance[0] % 180) if texture in _FREELY_TURNED else int(chance[0] % 25) - 12
    fine = 3 * TILE
    y, x = np.mgrid[0:fine, 0:fine].astype(np.int64)
    x, y = ((2 * x + 1 - fine) * _PX) // 6, ((2 * y + 1 - fine) * _PX) // 6
    u, v = turn(x, y, degrees)
    if texture != "ringed":
        u, v = u + chance[1] % (16 * _PX), v + chance[2] % (16 * _PX)
    samples = PATTERNS[texture](u, v, period, chance).reshape(TILE, 3, TILE, 3)
    ink: NDArray[np.int32] = (samples.sum(axis=(1, 3)) * 256 // 9).astype(np.int32)
    return ink
