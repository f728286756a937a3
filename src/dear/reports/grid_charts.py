"""Heat maps of numbers as SVG text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dear.reports.colors import heat_fill, ink_on, two_way_fill
from dear.reports.svg import GRID, LETTER, LIGHT, svg_document, svg_text


def heat_chart(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    digits: int = 3,
    middle: float | None = None,
) -> str:
    """A heat map: darker blue for larger values, white for values below zero.

    With a `middle`, cells are blue above it and orange below it, and darker further away.
    """
    left = 16 + LETTER * max(map(len, rows), default=0)
    wide = max(58.0, *(14 + LETTER * len(name) for name in columns)) if columns else 58.0
    tall, top = 28, 54
    largest = max((abs(value - middle) if middle else value for row in values for value in row), default=0.0) or 1.0
    parts = [svg_text(8, 18, title, weight=600)]
    for j, name in enumerate(columns):
        parts.append(svg_text(left + wide * (j + 0.5), top - 8, name, anchor="middle", fill=LIGHT))
    for i, (name, row) in enumerate(zip(rows, values, strict=True)):
        parts.append(svg_text(left - 8, top + tall * i + 19, name, anchor="end"))
        for j, value in enumerate(row):
            fill = two_way_fill((value - middle) / largest) if middle else heat_fill(value / largest)
            parts.append(
                f'<rect x="{left + wide * j:.1f}" y="{top + tall * i}" width="{wide - 2:.1f}" height="{tall - 2}" '
                f'fill="{fill}" stroke="{GRID}"/>'
            )
            x = left + wide * (j + 0.5) - 1
            parts.append(svg_text(x, top + tall * i + 18, f"{value:.{digits}f}", anchor="middle", fill=ink_on(fill)))
    width = max(left + wide * len(columns) + 8, 16 + 7.4 * len(title))
    return svg_document(math.ceil(width), top + tall * len(rows) + 8, title, parts)
