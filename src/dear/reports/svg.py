"""Building blocks of the SVG charts: text, the document around a chart, and round tick values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from dear.storage.files import visible

TEXT, GRID, LIGHT = "#1d2630", "#dfe3e8", "#5b6672"
LETTER = 6.6
"""Width of a letter in pixels at the font size of the charts, rounded up."""


def svg_text(
    x: float, y: float, text: str, anchor: str = "start", fill: str = TEXT, *, weight: int = 400, turn: str = ""
) -> str:
    """A text element at a position."""
    turned = f' transform="{turn}"' if turn else ""
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{bold}{turned}>{escape(text)}</text>'


def svg_box(x: float, y: float, width: float, height: float, fill: str, hint: str = "") -> str:
    """A filled rectangle with an optional tooltip."""
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}">{title}</rect>'


def grid_lines(heights: Sequence[float], labels: Sequence[str], left: float, right: float) -> list[str]:
    """A horizontal line per height, with its label at the left."""
    parts = []
    for y, label in zip(heights, labels, strict=True):
        parts.append(f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(svg_text(left - 6, y + 4, label, anchor="end", fill=LIGHT))
    return parts


def svg_document(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """A complete SVG document from its elements."""
    body, title = visible("\n".join(parts)), visible(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui,sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def shortened(text: str, width: float) -> str:
    """Text, cut with an ellipsis if it is wider than `width` pixels."""
    fit = int(width // LETTER)
    return text if len(text) <= fit else f"{text[: fit - 1]}…"


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At least two round, evenly spaced numbers that cover the range from `low` to `high`.

    Values that differ by rounding only count as equal.
    """
    span = high - low
    if span <= 1e-9 * max(abs(low), abs(high), 1.0):
        span = max(abs(high), 1.0) * 0.1
    rough = span / (most - 1)
    size = 10 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10, 20) if factor * size >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(first, max(last, first + 1) + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Ticks as text, with the fewest decimals that show each of them exactly."""
    size = ticks[1] - ticks[0]
    exact = (d for d in range(12) if all(abs(round(tick, d) - tick) < 1e-6 * size for tick in ticks))
    digits = next(exact, 12)
    return [f"{tick + 0.0:.{digits}f}" for tick in ticks]


def round_step(least: float) -> int:
    """The first of 1, 2, 5, 10, 20, 50 … that is at least `least`."""
    steps: Iterator[int] = (factor * int(10**power) for power in range(19) for factor in (1, 2, 5))
    return next(step for step in steps if step >= least)
