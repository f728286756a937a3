"""Data sets as declarations, and one function that opens any of them: by name, by folder or by list.

The declarations follow CoOp's directory layout and split files; prompts are those of the paper's supplement, Table 4.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Literal

from PIL import Image
from pydantic import ConfigDict, Field

from dear.config import Settings
from dear.data.dataset import Dataset
from dear.data.images import open_image
from dear.data.readers import (
    Read,
    read_aircraft,
    read_class_folders,
    read_imagenet,
    read_imagenet_numbered,
    read_imagenet_variant,
    read_list,
    read_split_file,
)
from dear.errors import DataError, did_you_mean
from dear.methods.base import DEFAULT_TEMPLATE

Layout = Literal["split file", "imagenet", "imagenet folders", "imagenet numbers", "aircraft"]


class Declaration(Settings):
    """One of the paper's data sets: where it lies, how it is read, what it should hold, where it comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    name: str
    title: str
    folder: str
    images: str
    layout: Layout
    split_file: str | None = None
    template: str
    classes: int
    train: int
    val: int
    test: int
    rename: dict[str, str] = Field(default_factory=dict)
    licence: str
    citation: str
    get: str


def declarations() -> dict[str, Declaration]:
    """The paper's fifteen data sets, by name."""
    text = (resources.files("dear") / "assets" / "datasets" / "catalog.json").read_text(encoding="utf-8")
    rows = [Declaration(**row) for row in json.loads(text)]
    return {row.name: row for row in rows}


def dataset_names() -> tuple[str, ...]:
    """Every data set that has a name: the paper's and the world's."""
    from dear.data.world.datasets import world_dataset_names

    return (*declarations(), *world_dataset_names())


def open_dataset(source: str | Path, root: str | Path | None = None, *, template: str | None = None) -> Dataset:
    """Open a data set: a name (the paper's below `root`, or the world's), a folder of class folders, or a list."""
    from dear.data.world.datasets import world_dataset_names

    if not isinstance(source, str | Path):
        raise DataError(
            f"The data set is of type {type(source).__name__}: give its name, a folder, or a .csv or .json list."
        )
    name = str(source)
    if name in world_dataset_names():
        return _world(name, template)
    known = declarations()
    if name in known:
        if root is None:
            raise DataError(f"{name} lies below a data folder: say which with root=FOLDER or --root FOLDER.")
        return _declared(known[name], Path(root), template)
    path = Path(source)
    if path.is_dir():
        read, images = read_class_folders(path), path
    elif path.is_file() and path.suffix.lower() in (".csv", ".json"):
        read, images = read_list(path), path.parent
    else:
        near = did_you_mean(name, dataset_names()) or " See 'dear ls datasets'."
        raise DataError(f"There is no data set {name!r}, nor a folder or a .csv or .json list of that name.{near}")
    where = path.resolve()
    return replace(_dataset(where.name, read, template or DEFAULT_TEMPLATE, images), source=str(where))


def read_declared(one: Declaration, root: Path) -> Read:
    """Read a declared data set's lists, without opening any image."""
    folder = root / one.folder
    if not folder.is_dir():
        raise DataError(f"{one.title} is not in {root}: {one.get} It belongs into {folder}.")
    readers: dict[str, Callable[[], Read]] = {
        "split file": lambda: read_split_file(folder / (one.split_file or ""), one.rename),
        "imagenet": lambda: read_imagenet(folder),
        "imagenet folders": lambda: read_imagenet_variant(folder, one.images),
        "imagenet numbers": lambda: read_imagenet_numbered(folder, one.images),
        "aircraft": lambda: read_aircraft(folder),
    }
    return readers[one.layout]()


def _declared(one: Declaration, root: Path, template: str | None) -> Dataset:
    found = _dataset(one.name, read_declared(one, root), template or one.template, root / one.folder / one.images)
    return replace(found, source=one.name, root=str(root.resolve()))


def _dataset(name: str, read: Read, template: str, images: Path) -> Dataset:
    def open_item(item_id: str) -> Image.Image:
        return open_image(images / item_id)

    def fingerprint(item_id: str) -> str:
        try:
            facts = (images / item_id).stat()
        except OSError:
            return "missing"
        return f"{facts.st_size} {facts.st_mtime_ns}"

    return Dataset(name, read.class_names, template, read.train, read.val, read.test, open_item, fingerprint)


def _world(name: str, template: str | None) -> Dataset:
    from dear.data.dataset import Item
    from dear.data.world.datasets import load_world_dataset
    from dear.data.world.render import RENDERER_VERSION

    world = load_world_dataset(name)

    def items(split: str) -> tuple[Item, ...]:
        labels = range(len(world.class_names))
        return tuple(Item(f"{split}/{label}/{i}", label) for label in labels for i in range(world.count(split)))

    def open_item(item_id: str) -> Image.Image:
        split, label, index = item_id.split("/")
        return Image.fromarray(world.item(split, int(label), int(index)).render())

    def fingerprint(item_id: str) -> str:
        split, label, index = item_id.split("/")
        item = world.item(split, int(label), int(index))
        return f"renderer {RENDERER_VERSION} {item.scene} {item.look} {item.key}"

    return Dataset(
        name,
        world.class_names,
        template or world.template,
        train=items("train"),
        val=items("val"),
        test=items("test"),
        open=open_item,
        fingerprint=fingerprint,
        source=name,
    )
