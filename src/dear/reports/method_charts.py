"""Charts that compare methods, as SVG text: differences with intervals, cost against accuracy, all pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from dear.reports.colors import LINES, ink_on
from dear.reports.svg import GRID, LETTER, LIGHT, grid_lines, nice_ticks, svg_document, svg_text, tick_labels

STRONG, WEAK = LINES[0], "#7d8894"
BETTER, WORSE, SAME = "#b9d3f5", "#f5c3cb", "#eef1f4"
NAMED = 10
"""Up to this number, points are labelled with names, otherwise with numbers."""

LEAST_PLOT = 220
"""Pixels beside the labels of an interval chart, at least."""
DOT = 4
"""Radius of a dot in pixels."""
AWAY = (8, 16, 24, 36, 48, 64, 80)
"""Distances of a label from its dot in pixels, the preferred one first."""
Bounds = tuple[float, float, float, float]
"""Left, top, right and bottom of a rectangle."""


class Mark(NamedTuple):
    """A row of an interval chart."""

    label: str
    value: float
    low: float
    high: float
    strong: bool
    """Whether to use the strong colour."""


class Point(NamedTuple):
    """A point of a scatter chart; its name is shown on hover."""

    name: str
    short: str
    x: float
    y: float


def interval_chart(title: str, marks: Sequence[Mark], *, x_title: str, width: int = 440) -> str:
    """One row per mark: a dot with its interval, and a line at 0; long labels make the chart wider."""
    left = 16 + LETTER * max(len(mark.label) for mark in marks)
    width = max(width, math.ceil(left) + LEAST_PLOT)
    right, top, tall = width - 18, 40, 24
    bottom = top + tall * len(marks)
    ticks = nice_ticks(min(0.0, *(mark.low for mark in marks)), max(0.0, *(mark.high for mark in marks)))

    def x(value: float) -> float:
        return left + (right - left) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    parts = [svg_text(8, 18, title, weight=600)]
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        ink = LIGHT if tick == 0 else GRID
        parts.append(f'<line x1="{x(tick):.1f}" y1="{top}" x2="{x(tick):.1f}" y2="{bottom}" stroke="{ink}"/>')
        parts.append(svg_text(x(tick), bottom + 16, label, anchor="middle", fill=LIGHT))
    for place, mark in enumerate(marks):
        y, ink = top + tall * (place + 0.5), STRONG if mark.strong else WEAK
        ends = f" ({mark.low:+.2f} to {mark.high:+.2f})" if mark.low < mark.high else ""
        hint = f"{mark.label}: {mark.value:+.2f}{ends}"
        parts.append(svg_text(left - 8, y + 4, mark.label, anchor="end"))
        parts.append(
            f'<line x1="{x(mark.low):.1f}" y1="{y:.1f}" x2="{x(mark.high):.1f}" y2="{y:.1f}" stroke="{ink}" '
            f'stroke-width="3"/>'
        )
        parts.append(_dot(x(mark.value), y, ink, hint))
    parts.append(svg_text((left + right) / 2, bottom + 34, x_title, anchor="middle", fill=LIGHT))
    return svg_document(width, bottom + 44, title, parts)


def scatter_chart(
    title: str, points: Sequence[Point], *, x_title: str, y_title: str, width: int = 440, height: int = 320
) -> str:
    """Points over a logarithmic axis; points that no other one beats in cost and value are highlighted and joined."""
    ticks = nice_ticks(min(one.y for one in points), max(one.y for one in points))
    labels = tick_labels(ticks)
    left = 22 + LETTER * max(map(len, labels)) + 8
    right, top, bottom = width - 18, 34, height - 46
    x_ticks, x = _log_axis([one.x for one in points], left + 12, right - 12)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    parts = [svg_text(4, 18, title, weight=600)]
    parts += grid_lines([y(tick) for tick in ticks], labels, left, right)
    parts += [svg_text(x(value), bottom + 16, label, anchor="middle", fill=LIGHT) for value, label in x_ticks]
    parts.append(svg_text((left + right) / 2, bottom + 36, x_title, anchor="middle", fill=LIGHT))
    turn = f"rotate(-90 13 {(top + bottom) / 2:.1f})"
    parts.append(svg_text(13, (top + bottom) / 2, y_title, anchor="middle", fill=LIGHT, turn=turn))
    front = unbeaten(points)
    if len(front) > 1:
        joined = " ".join(f"{x(one.x):.1f},{y(one.y):.1f}" for one in front)
        parts.append(f'<polyline fill="none" stroke="{STRONG}" stroke-width="1" points="{joined}"/>')
    taken = [(x(one.x) - DOT, y(one.y) - DOT, x(one.x) + DOT, y(one.y) + DOT) for one in points]
    for one in sorted(points, key=lambda one: one not in front):
        ink = STRONG if one in front else WEAK
        parts.append(_dot(x(one.x), y(one.y), ink, f"{one.name}: {one.x:,.6g}; {one.y:.2f}"))
        label = one.name if len(points) <= NAMED else one.short
        parts.append(_label(label, x(one.x), y(one.y), (left, top, right, bottom), taken))
    return svg_document(width, height, title, parts)


def unbeaten(points: Sequence[Point]) -> list[Point]:
    """The Pareto front: points for which no other one is both cheaper and better, from cheap to expensive."""
    return sorted(
        (
            one
            for one in points
            if not any(
                (other.x <= one.x and other.y > one.y) or (other.x < one.x and other.y >= one.y) for other in points
            )
        ),
        key=lambda one: (one.x, one.y),
    )


def difference_chart(
    title: str, names: Sequence[str], values: Sequence[Sequence[tuple[float, str, bool] | None]]
) -> str:
    """A matrix of differences with hints, coloured if significant; columns have the numbers of the rows."""
    left = 40 + LETTER * max(map(len, names))
    wide, tall, top = 46, 24, 52
    parts = [svg_text(8, 18, title, weight=600)]
    for place, name in enumerate(names):
        parts.append(svg_text(left + wide * (place + 0.5), top - 8, str(place + 1), anchor="middle", fill=LIGHT))
        parts.append(svg_text(left - 8, top + tall * place + 16, f"{name} {place + 1}", anchor="end"))
    for i, row in enumerate(values):
        for j, entry in enumerate(row):
            if entry is None:
                continue
            value, hint, differs = entry
            fill = (BETTER if value > 0 else WORSE) if differs else SAME
            ink = ink_on(fill) if differs else LIGHT
            parts.append(
                f'<rect x="{left + wide * j:.1f}" y="{top + tall * i}" width="{wide - 2}" height="{tall - 2}" '
                f'fill="{fill}"><title>{escape(hint)}</title></rect>'
            )
            text = f"{value:+.1f}" if abs(value) >= 0.05 else "0.0"
            bold = 600 if differs else 400
            middle = left + wide * (j + 0.5) - 1
            parts.append(svg_text(middle, top + tall * i + 15, text, anchor="middle", fill=ink, weight=bold))
    width = max(left + wide * len(names) + 8, 16 + 7.4 * len(title))
    return svg_document(math.ceil(width), top + tall * len(names) + 8, title, parts)


def _log_axis(
    values: Sequence[float], left: float, right: float
) -> tuple[list[tuple[float, str]], Callable[[float], float]]:
    """Labelled ticks, and the function from a value to its x coordinate; 0 has its own tick at the left."""
    some = [value for value in values if value > 0] or [1.0, 10.0]
    named = _log_ticks(min(some), max(some))
    low, high = math.log10(named[0]), math.log10(named[-1])
    room = 40 if any(value <= 0 for value in values) else 0

    def x(value: float) -> float:
        if value <= 0:
            return left
        return left + room + (right - left - room) * (math.log10(value) - low) / (high - low)

    return ([(0.0, "0")] if room else []) + [(value, _short(value)) for value in named], x


def _log_ticks(least: float, most: float) -> list[float]:
    """Round values that cover the range: powers of ten, or finer values if the range is at most two powers."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    if high - low > 2:
        step = math.ceil((high - low) / 6)
        return [10.0**power for power in range(low, high + step, step)]
    digits = (1, 1.5, 2, 3, 5, 7) if most < 5 * least else (1, 2, 5)
    fine = [digit * 10.0**power for power in range(low, high + 1) for digit in digits]
    first = max(place for place, value in enumerate(fine) if value <= least)
    last = next(place for place, value in enumerate(fine) if value >= most and place > first)
    return fine[first : last + 1]


def _short(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _dot(x: float, y: float, ink: str, hint: str) -> str:
    """A dot: filled if it is strong, else hollow, so that it can be recognised without colours."""
    look = f'fill="{ink}"' if ink == STRONG else f'fill="#fff" stroke="{ink}" stroke-width="2"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" {look}><title>{escape(hint)}</title></circle>'


def _label(text: str, x: float, y: float, frame: Bounds, taken: list[Bounds]) -> str:
    """The label of a point at the nearest position that is free and within the frame, joined to the dot if it is far.

    If no position is free, the one that covers the fewest dots and labels is used. The box of the label is added to
    `taken`.
    """
    wide = LETTER * len(text)
    inside = [box for away in AWAY for box in _around(x, y, wide, away) if _within(box, frame)]
    boxes = inside or _around(x, y, wide, AWAY[0])
    box = min(boxes, key=lambda one: sum(_overlap(one, other) for other in taken))  # the first one of equals
    taken.append(box)
    label = svg_text(box[0], box[3] - 2, text)
    near_x, near_y = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
    if math.hypot(near_x - x, near_y - y) <= 2 * AWAY[0]:
        return label
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{near_x:.1f}" y2="{near_y:.1f}" stroke="{WEAK}"/>{label}'


def _around(x: float, y: float, wide: float, away: float) -> list[Bounds]:
    """Boxes of a label around a point: right, left, above, below, and in the corners."""
    sides = (
        (away, 4),
        (-away - wide, 4),
        (-wide / 2, -away),
        (-wide / 2, away + 9),
        (away, -away),
        (away, away + 8),
        (-away - wide, -away),
        (-away - wide, away + 8),
    )
    return [(x + dx, y + dy - 10, x + dx + wide, y + dy + 2) for dx, dy in sides]


def _within(box: Bounds, frame: Bounds) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _overlap(one: Bounds, other: Bounds) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
