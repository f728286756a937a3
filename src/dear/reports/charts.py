"""Charts as SVG text: lines, heat maps and grids of roles. Each is a file of its own and can stand in a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from dear.reports.colors import LINES, head_fill, heat_fill, ink_on, two_way_fill
from dear.roles.grid import head_word
from dear.roles.rolemap import RoleMap

TEXT, GRID, LIGHT = "#1d2630", "#dfe3e8", "#5b6672"
DASHES = ("", "7 3", "2 2", "9 3 2 3", "12 4", "4 2")
"""Lines differ in their dashes, too, for people and printers that do not tell their colours apart."""
LETTER = 6.6
"""Pixels a letter takes at the size the charts are written in, a little more than it needs."""


SAMPLE = 22
"""Pixels of a line in the legend."""


def line_chart(
    title: str,
    places: Sequence[str],
    lines: Mapping[str, Sequence[float | None]],
    *,
    x_title: str,
    y_title: str = "",
    width: int = 440,
    height: int = 270,
    from_zero: bool = False,
) -> str:
    """Lines over evenly spaced places; a place without a number is left out of its line.

    A few places are all named and their points marked; many, such as the steps of a training, are named here and there.
    """
    values = [value for line in lines.values() for value in line if value is not None and math.isfinite(value)]
    values += [0.0] if from_zero else []
    ticks = nice_ticks(min(values, default=0.0), max(values, default=1.0))
    labels = tick_labels(ticks)
    left = (22 if y_title else 4) + LETTER * max(map(len, labels)) + 8
    right, top = width - 14, 34
    rows = _legend_rows(list(lines), right - left)
    bottom = height - 46 - 18 * len(rows)

    def x(place: int) -> float:
        return left + (right - left) * (place + 0.5) / max(1, len(places))

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    parts = [words(4, 18, title, weight=600)]
    for tick, label in zip(ticks, labels, strict=True):
        parts.append(f'<line x1="{left:.1f}" y1="{y(tick):.1f}" x2="{right}" y2="{y(tick):.1f}" stroke="{GRID}"/>')
        parts.append(words(left - 6, y(tick) + 4, label, anchor="end", fill=LIGHT))
    named = spread_places(places, right - left)
    parts += [words(x(i), bottom + 16, places[i], anchor="middle", fill=LIGHT) for i in named]
    parts.append(words((left + right) / 2, bottom + 34, x_title, anchor="middle", fill=LIGHT))
    middle = (top + bottom) / 2
    turn = f"rotate(-90 13 {middle:.1f})"
    parts += [words(13, middle, y_title, anchor="middle", fill=LIGHT, turn=turn)] if y_title else []
    for number, (name, line) in enumerate(lines.items()):
        points = [(x(i), y(value)) for i, value in enumerate(line) if value is not None and math.isfinite(value)]
        parts += _line(name, points, number, marked=len(named) == len(places))
    parts += _legend(rows, list(lines), left, bottom + 50)
    return drawing(width, height, title, parts)


def _line(name: str, points: Sequence[tuple[float, float]], number: int, *, marked: bool) -> list[str]:
    joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    ink = LINES[number % len(LINES)]
    parts = [f'<polyline fill="none" {_stroke(number)} stroke-width="{2 if marked else 1.5}" points="{joined}"/>']
    if marked or len(points) == 1:  # a line of one point cannot be seen
        hint = f"<title>{escape(name)}</title>"
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{ink}">{hint}</circle>' for a, b in points]
    return parts


def _stroke(number: int) -> str:
    """The colour and the dashes of a line by its number."""
    dashes = DASHES[number % len(DASHES)]
    return f'stroke="{LINES[number % len(LINES)]}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Ticks with as few digits as tell every one of them exactly."""
    size = ticks[1] - ticks[0]
    exact = (d for d in range(12) if all(abs(round(tick, d) - tick) < 1e-6 * size for tick in ticks))
    digits = next(exact, 12)
    return [f"{tick + 0.0:.{digits}f}" for tick in ticks]


def spread_places(places: Sequence[str], width: float) -> list[int]:
    """All places if their names fit side by side, else every 2nd, 5th, 10th, 20th … of them."""
    fit = max(1, int(width // (10 + LETTER * max(map(len, places), default=1))))
    step = round_step(len(places) / fit)
    return list(range(min(step, len(places)) - 1, len(places), step)) if places else []


def round_step(least: float) -> int:
    """The first of 1, 2, 5, 10, 20, 50 … that is not less than this."""
    steps: Iterator[int] = (factor * int(10**power) for power in range(19) for factor in (1, 2, 5))
    return next(step for step in steps if step >= least)


def heat_chart(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    digits: int = 3,
    middle: float | None = None,
) -> str:
    """A map whose cells are a darker blue the larger their value is; what is below zero stays white.

    With a `middle`, cells are blue above it and orange below it, the darker the further away.
    """
    left = 16 + LETTER * max(map(len, rows), default=0)
    wide = max(58.0, *(14 + LETTER * len(name) for name in columns)) if columns else 58.0
    tall, top = 28, 54
    largest = max((abs(value - middle) if middle else value for row in values for value in row), default=0.0) or 1.0
    parts = [words(8, 18, title, weight=600)]
    for j, name in enumerate(columns):
        parts.append(words(left + wide * (j + 0.5), top - 8, name, anchor="middle", fill=LIGHT))
    for i, (name, row) in enumerate(zip(rows, values, strict=True)):
        parts.append(words(left - 8, top + tall * i + 19, name, anchor="end"))
        for j, value in enumerate(row):
            fill = two_way_fill((value - middle) / largest) if middle else heat_fill(value / largest)
            parts.append(
                f'<rect x="{left + wide * j:.1f}" y="{top + tall * i}" width="{wide - 2:.1f}" height="{tall - 2}" '
                f'fill="{fill}" stroke="{GRID}"/>'
            )
            place = left + wide * (j + 0.5) - 1
            parts.append(words(place, top + tall * i + 18, f"{value:.{digits}f}", anchor="middle", fill=ink_on(fill)))
    width = max(left + wide * len(columns) + 8, 16 + 7.4 * len(title))
    return drawing(math.ceil(width), top + tall * len(rows) + 8, title, parts)


def role_chart(title: str, roles: RoleMap) -> str:
    """Layers down, heads across, each head in its role's colour with a word for what it does."""
    layers = sorted({head.layer for head in roles.heads})
    most = max(len(roles.layer(layer)) for layer in layers)
    wide, tall, left, top = 78, 32, 70, 54
    parts = [words(8, 18, title, weight=600)]
    parts += [words(left + wide * (j + 0.5), top - 8, f"head {j}", anchor="middle", fill=LIGHT) for j in range(most)]
    for i, layer in enumerate(layers):
        parts.append(words(left - 8, top + tall * i + 20, f"layer {layer}", anchor="end", fill=LIGHT))
        for j, head in enumerate(roles.layer(layer)):
            hint = ", ".join(head.phrases[:3])
            fill = head_fill(head)
            parts.append(
                f'<rect x="{left + wide * j}" y="{top + tall * i}" width="{wide - 3}" height="{tall - 3}" rx="4" '
                f'fill="{fill}"><title>{escape(hint)}</title></rect>'
            )
            word = _cut(head_word(head), wide - 6)
            parts.append(words(left + wide * (j + 0.5) - 1, top + tall * i + 19, word, "middle", ink_on(fill)))
    width = max(left + wide * most + 8, math.ceil(16 + 7.4 * len(title)))
    return drawing(width, top + tall * len(layers) + 8, title, parts)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers, evenly spaced, that hold everything between two numbers; at least two of them."""
    span = (high - low) or max(abs(high), 1.0) * 0.1
    rough = span / (most - 1)
    size = 10 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10, 20) if factor * size >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(first, max(last, first + 1) + 1)]


def _legend_rows(names: Sequence[str], width: float) -> list[list[int]]:
    """Names by their number, as many on a line as fit."""
    rows: list[list[int]] = []
    used = width + 1
    for index, name in enumerate(names):
        need = SAMPLE + 22 + LETTER * len(name)
        if used + need > width:
            rows.append([])
            used = 0
        rows[-1].append(index)
        used += need
    return rows


def _legend(rows: Sequence[Sequence[int]], names: Sequence[str], left: float, top: float) -> list[str]:
    parts = []
    for line, row in enumerate(rows):
        x, y = left, top + 18 * line
        for index in row:
            ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{x + SAMPLE:.1f}" y2="{y:.1f}"'
            parts.append(f'<line {ends} {_stroke(index)} stroke-width="3"/>')
            parts.append(words(x + SAMPLE + 5, y + 4, names[index]))
            x += SAMPLE + 22 + LETTER * len(names[index])
    return parts


def _cut(text: str, width: float) -> str:
    """As much of a text as fits."""
    fit = int(width // LETTER)
    return text if len(text) <= fit else f"{text[: fit - 1]}…"


def words(
    x: float, y: float, text: str, anchor: str = "start", fill: str = TEXT, *, weight: int = 400, turn: str = ""
) -> str:
    """Text at a place."""
    turned = f' transform="{turn}"' if turn else ""
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{bold}{turned}>{escape(text)}</text>'


def drawing(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """A whole chart from its parts."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui,sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )
