"""Charts of an explanation as SVG text: bars for and against a class, and the scale of its heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dear.reports.colors import AGAINST, FOR, LINES, STRONGEST
from dear.reports.svg import GRID, LETTER, LIGHT, shortened, svg_document, svg_text


def bar_chart(title: str, names: Sequence[str], series: Mapping[str, Sequence[float]], width: int = 480) -> str:
    """Bars left and right of zero: one group per name, with one bar and its number per series."""
    thin, gap = 13, 9
    tall = thin * max(1, len(series)) + gap
    values = [value for one in series.values() for value in one]
    high, low = max([0.0, *values]), min([0.0, *values])
    digits = _digits(max(high, -low))
    number = LETTER * (digits + 4)
    left, right = 14 + LETTER * max(map(len, names)) + (number if low else 0), width - 8 - number
    top = 34 + 18 * len(series)

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / ((high - low) or 1)

    parts = [svg_text(4, 18, title, weight=600)]
    for at, (name, ink) in enumerate(zip(series, LINES * 9, strict=False)):
        parts.append(f'<rect x="8" y="{29 + 18 * at}" width="10" height="10" rx="2" fill="{ink}"/>')
        parts.append(svg_text(23, 38 + 18 * at, shortened(name, width - 30)))
    bottom = top + tall * len(names)
    parts.append(f'<line x1="{x(0):.1f}" y1="{top}" x2="{x(0):.1f}" y2="{bottom}" stroke="{LIGHT}"/>')
    for row, name in enumerate(names):
        y = top + tall * row + gap / 2
        parts.append(svg_text(8, y + tall / 2, name))
        parts.append(f'<line x1="8" y1="{y - gap / 2:.1f}" x2="{width - 8}" y2="{y - gap / 2:.1f}" stroke="{GRID}"/>')
        for place, (one, ink) in enumerate(zip(series.values(), LINES * 9, strict=False)):
            value, y_bar = one[row], y + thin * place
            start, end = sorted((x(0), x(value)))
            parts.append(
                f'<rect x="{start:.1f}" y="{y_bar:.1f}" width="{end - start:.1f}" height="{thin - 2}" fill="{ink}"/>'
            )
            anchor, at_x = ("start", end + 4) if value >= 0 else ("end", start - 4)
            parts.append(
                svg_text(at_x, y_bar + thin - 3, f"{round(value, digits) + 0.0:+.{digits}f}", anchor=anchor, fill=LIGHT)
            )
    return svg_document(width, math.ceil(bottom + 8), title, parts)


def heat_legend(largest: float) -> str:
    """The colour scale of the heat maps, with numbers."""
    width, left, wide, steps = 300, 60, 180, 36
    parts = [
        svg_text(left - 8, 18, "against", anchor="end", fill=LIGHT),
        svg_text(left + wide + 8, 18, "for", fill=LIGHT),
    ]
    for step in range(steps):
        share = 2 * (step + 0.5) / steps - 1
        tint = FOR if share > 0 else AGAINST
        place = left + wide * step / steps
        parts.append(
            f'<rect x="{place:.1f}" y="8" width="{wide / steps + 0.3:.1f}" height="12" fill="{tint}" '
            f'fill-opacity="{STRONGEST * abs(share):.2f}"/>'
        )
    for share in (-1, 0, 1):
        label = f"{share * largest:+.{_digits(largest)}f}" if share else "0"
        parts.append(svg_text(left + wide * (share + 1) / 2, 36, label, anchor="middle", fill=LIGHT))
    return svg_document(width, 44, "scale of the heat maps: against, for", parts)


def _digits(largest: float) -> int:
    """Number of decimals for values of this size."""
    return min(6, max(1, 2 - math.floor(math.log10(largest)))) if largest > 0 else 1
