"""Contact sheets: labelled rows of pictures, as an HTML page or as one PNG image."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from dear.data.images import open_image
from dear.errors import ConfigError, ImageError, OverwriteError
from dear.reports.render import Picture, render
from dear.retrieval.search import Ask, Found, Hit, open_hit
from dear.storage.files import write_atomic, write_result

SIDE, GAP, LINE, COLUMNS = 160, 8, 16, 6
TEXT, QUIET, FRAME = "#1d2630", "#5b6672", "#237a4b"
LETTER = 7
"""Maximal width of a letter in a PNG sheet, in pixels."""


@dataclass(frozen=True)
class SheetRow:
    """A row of pictures with a label."""

    pictures: tuple[Picture, ...]
    label: str = ""
    note: str = ""
    """A sentence about the row, for the page."""


@dataclass(frozen=True)
class Sheet:
    """Rows of pictures under a title, with the query image if there is one."""

    rows: tuple[SheetRow, ...]
    title: str = ""
    subtitle: str = ""
    query: Picture | None = None
    others: tuple[Picture, ...] = ()
    """Further query images."""


def write_found(path: Path, ask: Ask, found: Sequence[Found]) -> None:
    """Write the results of a search, one row per kind of feature, under the query."""
    kind = _kind(path)
    asked = [_query(ask.image)] if ask.image is not None else []
    asked += [_query(image, f"{name} of ") for name, image in ask.swap.items()]
    words = f"“{ask.text}”" if ask.text else ""
    several = len(found) > 1
    rows = [
        SheetRow(
            _pictures(one.hits, kind),
            (one.title if kind == ".html" else one.by + ("*" if one.remark else "")) if several else "",
            " ".join(filter(None, (one.remark, _below(one)))),
        )
        for one in found
    ]
    title = "Nearest by each feature" if several else found[0].title
    if kind == ".png" and any(one.remark for one in found):
        title += " (*: misleading name, see the page)" if several else ""
    head = (words, title) if words and kind == ".html" else (title, words)
    _write(path, Sheet(tuple(rows), *head, asked[0] if asked else None, tuple(asked[1:])))


def _kind(path: Path) -> str:
    kind = path.suffix.lower()
    if kind not in (".html", ".png"):
        raise ConfigError(f"A contact sheet is a .html or a .png file, not {path.name!r}.")
    return kind


def _below(found: Found) -> str:
    if not found.hits:
        return f"No image reaches a score of {found.least:.3f}."
    below = sum(not hit.matches for hit in found.hits)
    return f"{below} of {len(found.hits)} are below {found.least:.3f}, the suggested minimum score." if below else ""


def _pictures(hits: Sequence[Hit], kind: str) -> tuple[Picture, ...]:
    def caption(hit: Hit) -> str:
        score = f"{hit.score:.3f}" if hit.matches else f"({hit.score:.3f})"
        return f"{score} {hit.path.name}" if kind == ".html" else score

    return tuple(Picture(_shown(hit), caption(hit)) for hit in hits)


def _shown(hit: Hit) -> Image.Image:
    """The image of a hit, or a grey square if its file no longer exists."""
    try:
        return open_hit(hit, SIDE)
    except ImageError:
        return Image.new("RGB", (SIDE, SIDE), "#dfe3e8")


def _query(image: object, before: str = "") -> Picture:
    if isinstance(image, Image.Image):
        small = image.convert("RGB")
        small.thumbnail((SIDE, SIDE))
        return Picture(small, f"{before}the image")
    path = Path(str(image))
    return Picture(_small(path), f"{before}{path.name}")


def _write(path: Path, sheet: Sheet) -> None:
    if path.suffix.lower() == ".html":
        write_result(path, sheet_html(sheet))
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, sheet_png(sheet))
    except OSError as error:
        raise OverwriteError(f"{path} cannot be written ({error.strerror}).") from None


def sheet_html(sheet: Sheet) -> str:
    """Return the sheet as an HTML page."""
    return render("sheet.html", title=sheet.title, subtitle=sheet.subtitle, sheet=sheet)


def sheet_png(sheet: Sheet, *, side: int = SIDE, gap: int = GAP, columns: int = COLUMNS) -> bytes:
    """Return the sheet as the bytes of a PNG: title, labels at the left, then the query, then columns of pictures."""
    rows = [
        (row.label if start == 0 else "", row.pictures[start : start + columns])
        for row in sheet.rows
        for start in range(0, max(1, len(row.pictures)), columns)
    ]
    labels = max((LETTER * len(label) + gap for label, _ in rows if label), default=0)
    first = gap + labels + (side + 3 * gap if sheet.query else 0)
    head = " ".join(filter(None, (sheet.title, sheet.subtitle)))
    top = gap + (LINE + gap if head else 0)
    captions = any(picture.caption for _, row in rows for picture in row)
    step = side + gap + (LINE if captions else 0)
    wide = first + (side + gap) * max((len(row) for _, row in rows), default=0)
    tall = top + step * len(rows) + (LINE if sheet.query and not captions and len(rows) == 1 else 0)
    canvas = Image.new("RGB", (max(wide, 2 * gap + LETTER * len(head)), tall), "white")
    draw = ImageDraw.Draw(canvas)
    draw.text((gap, gap), head, fill=TEXT)
    if sheet.query:
        _paste(canvas, Picture(sheet.query.image, "query"), gap + labels, top, side)
    for line, (label, pictures) in enumerate(rows):
        draw.text((gap, top + step * line + side // 2 - 6), label, fill=TEXT)
        for column, picture in enumerate(pictures):
            _paste(canvas, picture, first + (side + gap) * column, top + step * line, side)
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG")
    return buffer.getvalue()


def _paste(canvas: Image.Image, picture: Picture, left: int, top: int, side: int) -> None:
    draw = ImageDraw.Draw(canvas)
    if picture.framed:
        draw.rectangle((left - 2, top - 2, left + side + 1, top + side + 1), fill=FRAME)
    small = picture.image.convert("RGB")
    small.thumbnail((side, side))
    canvas.paste(small, (left + (side - small.width) // 2, top + (side - small.height) // 2))
    draw.text((left, top + side + 2), picture.caption, fill=QUIET)


def _small(path: Path) -> Image.Image:
    image = open_image(path)
    image.thumbnail((SIDE, SIDE))
    return image
