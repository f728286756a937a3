"""Contact sheets of search results, as a page or as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from dear.data.images import open_image
from dear.errors import ConfigError
from dear.files import write_atomic, write_result
from dear.reports.html import page, section, strip
from dear.retrieval.index import Hit, open_hit

SIDE, GAP, LINE = 160, 8, 16


def write_sheet(path: Path, title: str, query: Path | None, hits: Sequence[Hit]) -> None:
    """Write a sheet; the file's ending decides its kind."""
    if path.suffix.lower() == ".html":
        found = strip([(open_hit(hit), f"{hit.score:.3f} {hit.path.name}") for hit in hits])
        asked = section("Query", strip([(_small(query), query.name)])) if query else ""
        write_result(path, page(title, asked + section("Found", found)))
    elif path.suffix.lower() == ".png":
        _write_png(path, [(open_hit(hit), f"{hit.score:.3f}") for hit in hits], query)
    else:
        raise ConfigError(f"A contact sheet is a .html or a .png file, not {path.name!r}.")


def _small(path: Path) -> Image.Image:
    image = open_image(path)
    image.thumbnail((SIDE, SIDE))
    return image


def _write_png(path: Path, pictures: Sequence[tuple[Image.Image, str]], query: Path | None) -> None:
    import io

    tiles = [(_small(query), "query"), *pictures] if query else list(pictures)
    columns = min(len(tiles), 6)
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * (SIDE + GAP) + GAP, rows * (SIDE + LINE + GAP) + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (image, text) in enumerate(tiles):
        left, top = GAP + place % columns * (SIDE + GAP), GAP + place // columns * (SIDE + LINE + GAP)
        sheet.paste(image, (left + (SIDE - image.width) // 2, top + (SIDE - image.height) // 2))
        draw.text((left, top + SIDE + 2), text, fill="#1d2630")
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())
