"""Pictures of evidence: where in an image something spoke for or against a class, and bars of how much."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from dear.reports.charts import GRID, LETTER, LIGHT, drawing, words
from dear.reports.colors import AGAINST, FOR, LINES

SIDE = 224
STRONGEST = 0.85
"""How much of the picture the strongest evidence covers."""


def overlay(heat: Tensor, largest: float) -> bytes:
    """A PNG with one pixel per patch, tinted by what it said, to lay over the picture: (rows, columns) of logits."""
    shares = np.clip(heat.numpy() / (largest or 1.0), -1, 1)[..., None]
    tint = np.where(shares > 0, _rgb(FOR), _rgb(AGAINST))
    cover = (255 * STRONGEST * np.abs(shares)).round()
    return png(Image.fromarray(np.concatenate([tint, cover], axis=-1).astype(np.uint8), "RGBA"))


def faded(picture: Image.Image, side: int = SIDE) -> Image.Image:
    """The picture in light gray, to lay tints over."""
    gray = picture.convert("L").resize((side, side), Image.Resampling.BICUBIC)
    return gray.point([90 + 0.6 * level for level in range(256)]).convert("RGB")


def png(picture: Image.Image) -> bytes:
    """The bytes of a PNG file."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def heat_legend(largest: float) -> str:
    """What the tints mean, with numbers."""
    width, left, wide, steps = 300, 60, 180, 36
    parts = [words(left - 8, 18, "against", anchor="end", fill=LIGHT), words(left + wide + 8, 18, "for", fill=LIGHT)]
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
        parts.append(words(left + wide * (share + 1) / 2, 36, label, anchor="middle", fill=LIGHT))
    return drawing(width, 44, "scale of the heat maps: against, for", parts)


def bar_chart(title: str, names: Sequence[str], series: Mapping[str, Sequence[float]], width: int = 480) -> str:
    """Bars left and right of zero: one group for each name, in it one bar with its number for each of the series."""
    thin, gap = 13, 9
    tall = thin * max(1, len(series)) + gap
    values = [value for one in series.values() for value in one]
    high, low = max(0.0, *values), min(0.0, *values)
    digits = _digits(max(high, -low))
    number = LETTER * (digits + 4)
    left, right = 14 + LETTER * max(map(len, names)) + (number if low else 0), width - 8 - number
    top = 34 + 18 * len(series)

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / ((high - low) or 1)

    parts = [words(4, 18, title, weight=600)]
    for at, (name, ink) in enumerate(zip(series, LINES * 9, strict=False)):
        parts.append(f'<rect x="8" y="{29 + 18 * at}" width="10" height="10" rx="2" fill="{ink}"/>')
        parts.append(words(23, 38 + 18 * at, _cut(name, width - 30)))
    bottom = top + tall * len(names)
    parts.append(f'<line x1="{x(0):.1f}" y1="{top}" x2="{x(0):.1f}" y2="{bottom}" stroke="{LIGHT}"/>')
    for row, name in enumerate(names):
        y = top + tall * row + gap / 2
        parts.append(words(8, y + tall / 2, name))
        parts.append(f'<line x1="8" y1="{y - gap / 2:.1f}" x2="{width - 8}" y2="{y - gap / 2:.1f}" stroke="{GRID}"/>')
        for place, (one, ink) in enumerate(zip(series.values(), LINES * 9, strict=False)):
            value, y_bar = one[row], y + thin * place
            start, end = sorted((x(0), x(value)))
            parts.append(
                f'<rect x="{start:.1f}" y="{y_bar:.1f}" width="{end - start:.1f}" height="{thin - 2}" fill="{ink}"/>'
            )
            anchor, at_x = ("start", end + 4) if value >= 0 else ("end", start - 4)
            parts.append(
                words(at_x, y_bar + thin - 3, f"{round(value, digits) + 0.0:+.{digits}f}", anchor=anchor, fill=LIGHT)
            )
    return drawing(width, math.ceil(bottom + 8), title, parts)


def _digits(largest: float) -> int:
    """Digits after the point that show numbers of this size."""
    return min(6, max(1, 2 - math.floor(math.log10(largest)))) if largest > 0 else 1


def _cut(text: str, width: float) -> str:
    fit = int(width // LETTER)
    return text if len(text) <= fit else f"{text[: fit - 1]}…"


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
