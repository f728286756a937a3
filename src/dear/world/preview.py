"""Contact sheets: overview images of the world."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from dear.errors import ConfigError, option
from dear.storage.files import write_result
from dear.world.datasets import dataset_names, load_world_dataset
from dear.world.raster import Bytes
from dear.world.render import Look, Scene, render
from dear.world.samples import draw_scene
from dear.world.styles import STYLES
from dear.world.vocabulary import ATTRIBUTES, NAMES

_STREAM = 9


def _sheet(rows: list[list[Bytes]]) -> Bytes:
    """Arrange rows of images on white, with gaps of two pixels."""
    width = max(len(row) for row in rows)
    out = np.full((66 * len(rows) + 2, 66 * width + 2, 3), 255, dtype=np.uint8)
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            out[2 + 66 * r : 66 + 66 * r, 2 + 66 * c : 66 + 66 * c] = image
    return out


def _scene(index: int, **fixed: str) -> Scene:
    return draw_scene((_STREAM, index), held_out_pairs=True)._replace(**fixed)


def contact_sheet(what: str) -> Bytes:
    """A sheet of an attribute, of "styles" (one row each), of "scenes", or of a data set (four images per class)."""
    if what in ATTRIBUTES:
        values = NAMES[what]
        cells = [
            [render(_scene(8 * i + j, **{what: v}), (_STREAM, i, j)) for j in range(4)] for i, v in enumerate(values)
        ]
        half = (len(cells) + 1) // 2  # two values per row
        return _sheet([cells[i] + (cells[half + i] if half + i < len(cells) else []) for i in range(half)])
    if what == "styles":
        return _sheet([[render(_scene(j), (_STREAM, j), Look(style=style)) for j in range(10)] for style in STYLES])
    if what == "scenes":
        return _sheet([[render(_scene(10 * i + j), (_STREAM, i, j)) for j in range(12)] for i in range(6)])
    if what in dataset_names():
        data = load_world_dataset(what)
        count = min(len(data.class_names), 24)
        cells = [[data.item("train", label, j).render() for j in range(4)] for label in range(count)]
        third = (count + 2) // 3
        return _sheet([[image for cell in cells[i::third] for image in cell] for i in range(third)])
    choices = ", ".join([*ATTRIBUTES, "styles", "scenes", *dataset_names()])
    raise ConfigError(f"There is no sheet {what!r}: choose one of {choices}.")


def check_png(path: Path) -> None:
    """Refuse a file name that does not end in .png."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{option(out=str(path))} is not a PNG file: use a name in .png.")


def write_png(image: Bytes, path: Path, zoom: int) -> None:
    """Write an image, enlarged without smoothing."""
    from PIL import Image

    big, content = image.repeat(zoom, axis=0).repeat(zoom, axis=1), io.BytesIO()
    Image.fromarray(big).save(content, "PNG", optimize=True)
    write_result(path, content.getvalue())
