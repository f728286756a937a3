"""The paper's data sets as declarations, and folders and lists of one's own.

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
from dear.data.images import content_of, open_image
from dear.data.prompts import DEFAULT_TEMPLATE
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
from dear.errors import DataError
from dear.files import shown

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
    url: str = ""
    """Its page."""

    @property
    def how_to_get(self) -> str:
        """Where it comes from, in sentences."""
        return f"{self.get} Its page: {self.url}" if self.url else self.get

    def files(self) -> list[str]:
        """How it lies below the data folder, one line per part."""
        inside = {
            "split file": [f"{self.images or '.'}/…, as the split file names them", self.split_file or ""],
            "imagenet": [f"{self.images}/train/n01440764/….JPEG", f"{self.images}/val/n01440764/….JPEG"],
            "imagenet folders": [f"{self.images}/n01440764/…"],
            "imagenet numbers": [f"{self.images}/0/… to {self.images}/999/…"],
            "aircraft": [f"{self.images}/….jpg", "variants.txt", "images_variant_{train,val,test}.txt"],
        }[self.layout]
        names = ["classnames.txt"] if self.layout.startswith("imagenet") else []
        return [f"{self.folder}/{part.removeprefix('./')}" for part in (*inside, *names)]


def declarations() -> dict[str, Declaration]:
    """The paper's fifteen data sets, by name."""
    text = (resources.files("dear") / "assets" / "datasets" / "catalog.json").read_text(encoding="utf-8")
    rows = [Declaration(**row) for row in json.loads(text)]
    return {row.name: row for row in rows}


def open_files(path: Path, template: str | None = None) -> Dataset:
    """Open a folder of class folders, or a .csv or .json list."""
    read, images = (read_class_folders(path), path) if path.is_dir() else (read_list(path), path.parent)
    where = path.resolve()
    return replace(_dataset(shown(where.name), read, template or DEFAULT_TEMPLATE, images), source=str(where))


def read_declared(one: Declaration, root: Path) -> Read:
    """Read a declared data set's lists, without opening any image."""
    folder = root / one.folder
    if not folder.is_dir():
        raise DataError(f"{one.title} is not in {root}: put it in {folder}. {one.how_to_get}")
    readers: dict[str, Callable[[], Read]] = {
        "split file": lambda: read_split_file(folder / (one.split_file or ""), one.rename),
        "imagenet": lambda: read_imagenet(folder),
        "imagenet folders": lambda: read_imagenet_variant(folder, one.images),
        "imagenet numbers": lambda: read_imagenet_numbered(folder, one.images),
        "aircraft": lambda: read_aircraft(folder),
    }
    return readers[one.layout]()


def open_declared(one: Declaration, root: Path, template: str | None = None) -> Dataset:
    """Open a declared data set below the folder `root`."""
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

    known: dict[str, tuple[tuple[int, ...], str]] = {}

    def content(item_id: str) -> str:
        """Read once, and again if the file was touched in any way: nobody can set the time of the last change."""
        try:
            facts = (images / item_id).stat()
        except OSError:
            return "missing"
        mark = facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
        if item_id not in known or known[item_id][0] != mark:
            known[item_id] = mark, content_of(images / item_id)
        return known[item_id][1]

    splits = read.train, read.val, read.test
    return Dataset(name, read.class_names, template, *splits, open_item, fingerprint, content)
