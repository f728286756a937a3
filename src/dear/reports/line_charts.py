"""Line charts as SVG text: curves over steps, shots or layers, with a legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from dear.reports.colors import LINES
from dear.reports.svg import (
    LETTER,
    LIGHT,
    grid_lines,
    nice_ticks,
    round_step,
    svg_document,
    svg_text,
    tick_labels,
)

DASHES = ("", "7 3", "2 2", "9 3 2 3", "12 4", "4 2")
"""Lines also differ in their dashes, for people and printers that do not distinguish their colours."""
SAMPLE = 22
"""Length of a line in the legend, in pixels."""


def line_chart(
    title: str,
    x_labels: Sequence[str],
    lines: Mapping[str, Sequence[float | None]],
    *,
    x_title: str,
    y_title: str = "",
    width: int = 440,
    height: int = 270,
    from_zero: bool = False,
) -> str:
    """Lines over evenly spaced labels; a line skips a label without a number.

    If all labels fit, each is printed and the points are marked; otherwise, as for many steps, some labels are printed.
    """
    values = [value for line in lines.values() for value in line if value is not None and math.isfinite(value)]
    values += [0.0] if from_zero else []
    ticks = nice_ticks(min(values, default=0.0), max(values, default=1.0))
    labels = tick_labels(ticks)
    left = (22 if y_title else 4) + LETTER * max(map(len, labels)) + 8
    right, top = width - 14, 34
    rows = _legend_rows(list(lines), right - left)
    bottom = height - 46 - 18 * len(rows)

    def x(index: int) -> float:
        return left + (right - left) * (index + 0.5) / max(1, len(x_labels))

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    parts = [svg_text(4, 18, title, weight=600)]
    parts += grid_lines([y(tick) for tick in ticks], labels, left, right)
    named = spread_labels(x_labels, right - left)
    parts += [svg_text(x(i), bottom + 16, x_labels[i], anchor="middle", fill=LIGHT) for i in named]
    parts.append(svg_text((left + right) / 2, bottom + 34, x_title, anchor="middle", fill=LIGHT))
    middle = (top + bottom) / 2
    turn = f"rotate(-90 13 {middle:.1f})"
    parts += [svg_text(13, middle, y_title, anchor="middle", fill=LIGHT, turn=turn)] if y_title else []
    for number, (name, line) in enumerate(lines.items()):
        points = [(x(i), y(value)) for i, value in enumerate(line) if value is not None and math.isfinite(value)]
        parts += _line(name, points, number, marked=len(named) == len(x_labels))
    parts += _legend(rows, list(lines), left, bottom + 50)
    return svg_document(width, height, title, parts)


def _line(name: str, points: Sequence[tuple[float, float]], number: int, *, marked: bool) -> list[str]:
    joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    ink = LINES[number % len(LINES)]
    parts = [f'<polyline fill="none" {_stroke(number)} stroke-width="{2 if marked else 1.5}" points="{joined}"/>']
    if marked or len(points) == 1:  # a line of one point cannot be seen
        hint = f"<title>{escape(name)}</title>"
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{ink}">{hint}</circle>' for a, b in points]
    return parts


def _stroke(number: int) -> str:
    """Colour and dashes of the line with this number."""
    dashes = DASHES[number % len(DASHES)]
    return f'stroke="{LINES[number % len(LINES)]}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def spread_labels(x_labels: Sequence[str], width: float) -> list[int]:
    """Indices of the labels to print: all if they fit side by side, else every 2nd, 5th, 10th, 20th … of them."""
    fit = max(1, int(width // (10 + LETTER * max(map(len, x_labels), default=1))))
    step = round_step(len(x_labels) / fit)
    return list(range(min(step, len(x_labels)) - 1, len(x_labels), step)) if x_labels else []


def _legend_rows(names: Sequence[str], width: float) -> list[list[int]]:
    """Indices of names, split into lines that fit the width."""
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
            parts.append(svg_text(x + SAMPLE + 5, y + 4, names[index]))
            x += SAMPLE + 22 + LETTER * len(names[index])
    return parts
