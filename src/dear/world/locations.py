"""The sixteen locations: painted backgrounds of 96 × 80 pixels, from which a scene takes a 64 × 64 window.

The variants of a location differ in random details: hills, clouds, lights. Pre-training uses the variants below
`TRAIN_VARIANTS`, the data sets use the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from dear.world.raster import Board, Bytes, Patch, box, line, oval, polygon
from dear.world.vocabulary import INDEX

WIDTH, HEIGHT = 96, 80
TRAIN_VARIANTS = 24
TEST_VARIANTS = 8
_FINE = 2

Paint = tuple[int, int, int]


class Chance:
    """A stream of pseudo-random integers from one seed, the same on every machine."""

    def __init__(self, *key: int) -> None:
        """Start the stream of a key of non-negative integers."""
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def below(self, n: int) -> int:
        """Return a number 0 ≤ x < n."""
        return int((int(self._bits.random_raw()) >> 11) % n)

    def between(self, low: int, high: int) -> int:
        """Return a number low ≤ x ≤ high."""
        return low + self.below(high - low + 1)

    def shade(self, paint: Paint, spread: int = 12) -> Paint:
        """Return a slightly lighter or darker paint."""
        d = self.between(-spread, spread)
        r, g, b = (min(255, max(0, channel + d)) for channel in paint)
        return r, g, b


class Canvas:
    """A picture at twice the final resolution, painted with masks."""

    def __init__(self) -> None:
        """Start with a black picture."""
        self.pixels = np.zeros((HEIGHT * _FINE, WIDTH * _FINE, 3), dtype=np.int32)
        self._board = Board(HEIGHT * _FINE, WIDTH * _FINE, 2 * _FINE)

    def fade(self, top: int, bottom: int, high: Paint, low: Paint) -> None:
        """Fill the rows top..bottom with a vertical gradient."""
        first, last = max(top * _FINE, 0), min(bottom * _FINE, HEIGHT * _FINE)
        rows = np.arange(first, last)[:, None]
        span = max((bottom - top) * _FINE - 1, 1)
        share = np.clip((rows - top * _FINE) * 256 // span, 0, 256)
        mixed = (np.array(high) * (256 - share) + np.array(low) * share) // 256
        self.pixels[first:last] = mixed[:, None, :]

    def _put(self, patch: Patch, paint: Paint, strength: int = 256) -> None:
        where, mask = patch
        part = self.pixels[where]
        part[mask] = (part[mask] * (256 - strength) + np.array(paint, dtype=np.int32) * strength) // 256

    def oval(self, paint: Paint, cx: float, cy: float, rx: float, ry: float, strength: int = 256) -> None:
        """Paint an ellipse."""
        self._put(oval(self._board, cx, cy, rx, ry), paint, strength)

    def box(self, paint: Paint, x0: float, y0: float, x1: float, y1: float) -> None:
        """Paint a rectangle."""
        self._put(box(self._board, x0, y0, x1, y1), paint)

    def line(self, paint: Paint, x0: float, y0: float, x1: float, y1: float, thick: float) -> None:
        """Paint a line."""
        self._put(line(self._board, x0, y0, x1, y1, thick), paint)

    def poly(self, paint: Paint, points: list[tuple[float, float]]) -> None:
        """Paint a polygon."""
        self._put(polygon(self._board, points), paint)

    def hills(self, paint: Paint, chance: Chance, level: int, rough: int, step: int = 12) -> None:
        """Paint rolling ground up to about `level`."""
        xs = range(-step, WIDTH + 2 * step, step)
        ridge = [(float(x), float(level + chance.between(-rough, rough))) for x in xs]
        self.poly(paint, [*ridge, (WIDTH + 40.0, HEIGHT + 40.0), (-40.0, HEIGHT + 40.0)])

    def small(self) -> Bytes:
        """Return the picture at its final resolution."""
        blocks = self.pixels.reshape(HEIGHT, _FINE, WIDTH, _FINE, 3).sum(axis=(1, 3))
        small: Bytes = (blocks // (_FINE * _FINE)).astype(np.uint8)
        return small


def _clouds(canvas: Canvas, chance: Chance, count: int, low: int, paint: Paint = (246, 248, 250)) -> None:
    for _ in range(count):
        x, y, r = chance.below(WIDTH), chance.between(4, low), chance.between(4, 7)
        for dx, dy, k in ((-r, 1, 0.7), (0, -1, 1.0), (r, 1, 0.75)):
            canvas.oval(paint, x + dx, y + dy, r * k * 1.3, r * k * 0.8)


def _desert(c: Canvas, k: Chance) -> None:
    horizon = k.between(30, 40)
    c.fade(0, horizon + 12, k.shade((120, 178, 220)), (244, 222, 172))
    c.oval((255, 240, 180), k.below(WIDTH), k.between(8, 18), 6, 6)
    for i, paint in enumerate(((226, 186, 118), (212, 164, 92), (230, 180, 104))):
        c.hills(k.shade(paint, 6), k, horizon + 6 + 13 * i, 5, 24)
    for _ in range(3):
        x, y = k.below(WIDTH), k.between(horizon + 10, 72)
        for dx0, dy0, dx1, dy1 in ((0, 0, 0, -12), (0, -5, -4, -6), (-4, -6, -4, -10), (0, -4, 4, -5), (4, -5, 4, -9)):
            c.line((70, 120, 70), x + dx0, y + dy0, x + dx1, y + dy1, 2.6)


def _waves(c: Canvas, k: Chance, top: int, bottom: int, count: int, paint: Paint) -> None:
    for _ in range(count):
        x, y, w = k.below(WIDTH), k.between(top, bottom), k.between(3, 6)
        c.line(paint, x - w, y + 1, x, y - 1, 1.2)
        c.line(paint, x, y - 1, x + w, y + 1, 1.2)


def _sea(c: Canvas, k: Chance) -> None:
    horizon = k.between(22, 32)
    c.fade(0, horizon, k.shade((150, 196, 232)), (214, 232, 242))
    c.fade(horizon, HEIGHT, (52, 126, 176), k.shade((16, 66, 122)))
    _clouds(c, k, 2, 14)
    _waves(c, k, horizon + 5, HEIGHT - 2, 26, (176, 214, 232))


def _forest(c: Canvas, k: Chance) -> None:
    c.fade(0, HEIGHT, k.shade((150, 186, 150)), (58, 92, 58))
    for layer, paint in enumerate(((62, 104, 66), (40, 82, 48))):
        for x in range(-4, WIDTH + 8, 12):
            x += k.between(-4, 4)
            base, h = 52 + 14 * layer + k.between(-3, 3), k.between(34, 46)
            c.box((82, 60, 42), x - 1.5, base - 4, x + 1.5, base + 8)
            shade = k.shade(paint)
            for part in range(3):
                y, w = base - h + part * h / 3.6, 4 + 2 * part
                c.poly(shade, [(x, y), (x + w, y + h / 2.4), (x - w, y + h / 2.4)])
    c.hills((52, 76, 40), k, 74, 2)


def _city(c: Canvas, k: Chance) -> None:
    c.fade(0, HEIGHT, k.shade((18, 20, 48)), (62, 50, 92))
    c.oval((238, 234, 200), k.below(WIDTH), k.between(6, 14), 5, 5)
    for layer in range(2):
        x = -k.below(8)
        while x < WIDTH:
            w, top = k.between(10, 16), k.between(18, 40) + 14 * layer
            c.box(k.shade(((44, 44, 72), (26, 26, 44))[layer], 5), x, top, x + w, HEIGHT)
            for wy in range(top + 3, HEIGHT - 2, 5):
                for wx in range(x + 2, x + w - 2, 4):
                    if k.below(3):
                        c.box((252, 214, 112), wx, wy, wx + 2, wy + 2.5)
            x += w + k.between(0, 3)


def _mountains(c: Canvas, k: Chance) -> None:
    c.fade(0, HEIGHT, k.shade((136, 178, 216)), (220, 230, 236))
    _clouds(c, k, 1, 10)
    for _ in range(5):
        x, top, w = k.below(WIDTH), k.between(12, 30), k.between(22, 34)
        base = HEIGHT
        c.poly(k.shade((104, 108, 124)), [(x, top), (x + w, base), (x - w, base)])
        cap = 0.3
        h = (base - top) * cap
        c.poly(
            (242, 246, 250),
            [
                (x, top),
                (x + w * cap, top + h),
                (x + w * 0.1, top + h * 0.75),
                (x - w * 0.08, top + h * 1.1),
                (x - w * cap, top + h),
            ],
        )
    c.hills(k.shade((84, 104, 88)), k, 70, 3)


def _meadow(c: Canvas, k: Chance) -> None:
    horizon = k.between(26, 36)
    c.fade(0, horizon + 8, k.shade((126, 192, 240)), (206, 230, 246))
    _clouds(c, k, 2, 14)
    c.hills(k.shade((134, 192, 88), 8), k, horizon, 3, 24)
    c.hills(k.shade((110, 174, 70), 8), k, horizon + 20, 3, 24)
    for _ in range(46):
        x, y = k.below(WIDTH), k.between(horizon + 6, HEIGHT)
        if k.below(3):
            c.line((76, 138, 52), x, y, x + k.between(-1, 1), y - 3, 1.0)
        else:
            c.oval(((250, 236, 120), (250, 250, 250), (236, 150, 170))[k.below(3)], x, y, 1.3, 1.3)


def _beach(c: Canvas, k: Chance) -> None:
    horizon, shore = k.between(18, 24), k.between(40, 48)
    c.fade(0, horizon, k.shade((132, 200, 240)), (206, 234, 246))
    c.fade(horizon, shore + 8, (44, 156, 190), (116, 214, 214))
    c.hills((246, 250, 250), k, shore - 2, 2, 16)
    c.hills(k.shade((240, 216, 162), 8), k, shore + 2, 2, 16)
    x, y, lean = k.below(WIDTH), k.between(50, 60), k.between(-8, 8)
    c.line((136, 98, 62), x, y + 8, x + lean, y - 26, 2.6)
    for dx, dy in ((-13, 3), (-10, -6), (0, -9), (10, -6), (13, 3)):
        c.line((58, 140, 66), x + lean, y - 26, x + lean + dx, y - 26 + dy, 3)
    for _ in range(12):
        c.oval((206, 176, 120), k.below(WIDTH), k.between(shore + 10, HEIGHT), 1, 0.7)


def _sky(c: Canvas, k: Chance) -> None:
    c.fade(0, HEIGHT, k.shade((70, 150, 228)), (174, 214, 246))
    _clouds(c, k, 9, HEIGHT - 6)


def _space(c: Canvas, k: Chance) -> None:
    c.fade(0, HEIGHT, (8, 6, 22), k.shade((22, 12, 44), 6))
    c.oval((64, 34, 96), k.below(WIDTH), k.below(HEIGHT), 26, 14, 110)
    c.oval((30, 48, 110), k.below(WIDTH), k.below(HEIGHT), 20, 18, 110)
    for _ in range(90):
        r = (0.5, 0.7, 1.0)[k.below(3)]
        c.oval(k.shade((236, 236, 250), 19), k.below(WIDTH), k.below(HEIGHT), r, r)
    for _ in range(2):
        x, y, r = k.below(WIDTH), k.below(HEIGHT), k.between(5, 8)
        c.oval(k.shade((190, 140, 104), 30), x, y, r, r)
        c.line((222, 206, 170), x - r * 1.6, y + 2, x + r * 1.6, y - 2, 1.3)


def _room(c: Canvas, k: Chance) -> None:
    floor = k.between(52, 58)
    c.fade(0, floor, k.shade((226, 212, 190)), k.shade((212, 196, 172)))
    c.box((246, 242, 234), 0, floor - 3, WIDTH, floor)
    c.fade(floor, HEIGHT, (166, 120, 80), (140, 98, 64))
    for x in range(-40, WIDTH + 40, 14):
        c.line((112, 78, 50), 48 + (x - 48) * 0.8, floor, 48 + (x - 48) * 1.5, HEIGHT, 1.0)
    for x in (k.between(6, 24), k.between(58, 74)):
        y = k.between(6, 14)
        c.box((250, 250, 246), x - 2, y - 2, x + 20, y + 26)
        c.box(k.shade((150, 200, 238)), x, y, x + 18, y + 24)
        c.box((250, 250, 246), x + 8.3, y, x + 9.7, y + 24)
        c.box((250, 250, 246), x, y + 11, x + 18, y + 12.5)
    x = k.between(34, 46)
    c.box((110, 80, 56), x, 14, x + 11, 28)
    c.box(k.shade((180, 170, 150), 30), x + 1.5, 15.5, x + 9.5, 26.5)


def _road(c: Canvas, k: Chance) -> None:
    horizon = k.between(26, 34)
    c.fade(0, horizon, k.shade((166, 192, 214)), (226, 230, 230))
    c.hills(k.shade((128, 150, 104)), k, horizon - 4, 3)
    c.fade(horizon, HEIGHT, (150, 156, 110), (132, 140, 94))
    x = k.between(36, 60)
    c.poly(k.shade((84, 86, 92), 8), [(x - 4, horizon), (x + 4, horizon), (x + 56, HEIGHT), (x - 56, HEIGHT)])
    for side in (-1, 1):
        c.poly(
            (236, 236, 230),
            [(x + side * 3.4, horizon), (x + side * 3.8, horizon), (x + side * 49, HEIGHT), (x + side * 45, HEIGHT)],
        )
    for part in range(5):
        y0 = horizon + 3 + part * part * 2.6
        y1 = y0 + 2.5 + part * 1.3
        c.poly(
            (246, 214, 90),
            [
                (x - 0.4 - part * 0.35, y0),
                (x + 0.4 + part * 0.35, y0),
                (x + 0.7 + part * 0.45, y1),
                (x - 0.7 - part * 0.45, y1),
            ],
        )


def _reef(c: Canvas, k: Chance) -> None:
    c.fade(0, HEIGHT, k.shade((70, 186, 204)), (14, 76, 124))
    for _ in range(3):
        x = k.below(WIDTH)
        c.poly((104, 204, 214), [(x, 0), (x + 5, 0), (x - 6, 44), (x - 16, 44)])
    c.hills((196, 178, 132), k, 70, 2)
    for _ in range(9):
        x, y = k.below(WIDTH), k.between(66, 76)
        paint = ((232, 112, 122), (240, 160, 84), (176, 100, 176), (64, 150, 92))[k.below(4)]
        for dx in (-5, 0, 5):
            c.line(paint, x, y, x + dx, y - k.between(9, 18), 2.6)
    for _ in range(16):
        r = k.between(1, 2)
        c.oval((196, 236, 242), k.below(WIDTH), k.below(60), r, r, 150)


def _cave(c: Canvas, k: Chance) -> None:
    c.fade(0, HEIGHT, k.shade((58, 48, 44), 6), (40, 34, 34))
    c.oval((104, 88, 74), 48 + k.between(-10, 10), 44, 34, 26)
    c.oval((150, 126, 98), 48 + k.between(-10, 10), 44, 20, 16, 170)
    for x in range(-4, WIDTH + 8, 9):
        w, h = k.between(4, 6), k.between(12, 28)
        c.poly(k.shade((70, 60, 56), 9), [(x - w, -1), (x + w, -1), (x + k.between(-1, 1), h)])
        w, h = k.between(4, 6), k.between(8, 22)
        c.poly(k.shade((54, 46, 44), 9), [(x - w, HEIGHT), (x + w, HEIGHT), (x + k.between(-1, 1), HEIGHT - h)])


def _snow(c: Canvas, k: Chance) -> None:
    horizon = k.between(32, 42)
    c.fade(0, horizon + 8, k.shade((176, 192, 212)), (220, 228, 238))
    c.hills((206, 218, 232), k, horizon, 4, 20)
    c.hills(k.shade((236, 242, 248), 6), k, horizon + 10, 3, 24)
    for _ in range(3):
        x, y = k.below(WIDTH), k.between(horizon + 12, 72)
        for part in range(3):
            c.poly(
                (86, 116, 112),
                [(x, y - 16 + part * 4), (x + 3 + part, y - 8 + part * 4), (x - 3 - part, y - 8 + part * 4)],
            )
        c.poly((244, 248, 252), [(x, y - 17), (x + 2.4, y - 12), (x - 2.4, y - 12)])
    for _ in range(70):
        c.oval((252, 253, 255), k.below(WIDTH), k.below(HEIGHT), 0.9, 0.9)


def _volcano(c: Canvas, k: Chance) -> None:
    c.fade(0, HEIGHT, k.shade((58, 30, 38), 8), (140, 58, 40))
    x, top = k.between(34, 62), k.between(20, 28)
    for i in range(5):
        c.oval(k.shade((92, 80, 82), 10), x + k.between(-9, 9), top - 4 - 3 * i, 9, 5)
    c.poly((54, 40, 42), [(x - 7, top), (x + 7, top), (x + 52, HEIGHT), (x - 52, HEIGHT)])
    c.poly((250, 150, 44), [(x - 6, top), (x + 6, top), (x + 3, top + 6), (x, top + 3), (x - 4, top + 7)])
    for side in (-1, 0, 1):
        sx = x + side * 4
        for y in range(top + 3, HEIGHT, 7):
            nx = sx + side * 5 + k.between(-3, 3)
            c.line((240, 98, 34), sx, y, nx, y + 7, 2.8)
            c.line((254, 190, 70), sx, y, nx, y + 7, 1.0)
            sx = nx
    for _ in range(20):
        c.oval((252, 168, 62), k.below(WIDTH), k.below(HEIGHT), 0.8, 0.8)


def _farm(c: Canvas, k: Chance) -> None:
    horizon = k.between(22, 30)
    c.fade(0, horizon, k.shade((150, 200, 232)), (222, 232, 226))
    x = k.between(8, 86)
    c.fade(horizon, HEIGHT, (126, 88, 56), (104, 70, 44))
    focus = k.between(30, 66)
    for i in range(-12, 13):
        c.poly(
            k.shade((150, 170, 66), 8),
            [
                (focus + i * 5 - 1, horizon),
                (focus + i * 5 + 1, horizon),
                (focus + i * 19 + 4.5, HEIGHT),
                (focus + i * 19 - 4.5, HEIGHT),
            ],
        )
    c.box((166, 62, 52), x - 7, horizon - 10, x + 7, horizon + 2)
    c.poly((112, 50, 46), [(x - 9, horizon - 10), (x, horizon - 17), (x + 9, horizon - 10)])
    c.box((236, 228, 216), x - 2.5, horizon - 5, x + 2.5, horizon + 2)


PAINTERS: dict[str, Callable[[Canvas, Chance], None]] = {
    "desert": _desert,
    "sea": _sea,
    "forest": _forest,
    "city": _city,
    "mountains": _mountains,
    "meadow": _meadow,
    "beach": _beach,
    "sky": _sky,
    "space": _space,
    "room": _room,
    "road": _road,
    "reef": _reef,
    "cave": _cave,
    "snow": _snow,
    "volcano": _volcano,
    "farm": _farm,
}


@cache
def background(location: str, variant: int) -> Bytes:
    """Return one variant of a location, `HEIGHT` × `WIDTH` × 3."""
    canvas = Canvas()
    PAINTERS[location](canvas, Chance(11, INDEX["location"][location], variant))
    return canvas.small()
