"""Declarations of the paper's data sets, and data sets of the user: folders, lists, catalogues.

The declarations follow CoOp's directory layout and split files; prompts are those of the paper's supplement, Table 4.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from pydantic import ConfigDict, Field, field_validator

from dear.config import Settings
from dear.data.dataset import Dataset
from dear.data.images import content_of, open_image
from dear.data.packed import image_mark
from dear.data.prompts import DEFAULT_TEMPLATE
from dear.data.readers import (
    ReaderResult,
    read_aircraft,
    read_class_folders,
    read_imagenet,
    read_imagenet_numbered,
    read_imagenet_variant,
    read_list,
    read_split_file,
)
from dear.data.shards import absolute, read_packed, shard_files
from dear.errors import ConfigError, DataError
from dear.storage import documents
from dear.storage.files import is_folder, shown

Layout = Literal["split file", "imagenet", "imagenet folders", "imagenet numbers", "aircraft", "class folders", "list"]
_ADDED: dict[Path, dict[str, Declaration]] = {}
"""Catalogues that the user added."""


class Declaration(Settings):
    """Declaration of a data set: its folder, its layout, the number of its images, and how to obtain it.

    The built-in declarations fill in every field; an entry of a user's catalogue needs only name, folder and layout.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    name: str = Field(pattern=r"^[\w.-]+$")
    title: str = ""
    folder: str = Field(min_length=1)
    """Path below the data folder; in a user's catalogue, below the folder of the catalogue."""
    images: str = ""
    layout: Layout
    split_file: str | None = None
    """The split file, or the list of paths and labels, below `folder`."""
    template: str = DEFAULT_TEMPLATE
    classes: int | None = None
    train: int | None = None
    val: int | None = None
    test: int | None = None
    rename: dict[str, str] = Field(default_factory=dict)
    licence: str = ""
    citation: str = ""
    get: str = ""
    url: str = ""
    """Its page."""
    base: Path | None = None
    """The folder that contains `folder`, if it is not the data folder."""

    @field_validator("folder", "images", "split_file")
    @classmethod
    def _stays_below(cls, path: str | None) -> str | None:
        if path is not None and (Path(path).is_absolute() or ".." in Path(path).parts):
            raise ValueError("it must be below the data folder")
        return path

    @property
    def how_to_get(self) -> str:
        """Instructions for obtaining the data set."""
        return f"{self.get} Its page: {self.url}" if self.url else self.get

    def files(self) -> list[str]:
        """Its files and folders below the data folder, one line each."""
        inside = {
            "split file": [f"{self.images or '.'}/…, as the split file names them", self.split_file or ""],
            "imagenet": [f"{self.images}/train/n01440764/….JPEG", f"{self.images}/val/n01440764/….JPEG"],
            "imagenet folders": [f"{self.images}/n01440764/…"],
            "imagenet numbers": [f"{self.images}/0/… to {self.images}/999/…"],
            "aircraft": [f"{self.images}/….jpg", "variants.txt", "images_variant_{train,val,test}.txt"],
            "class folders": [f"{self.images or '.'}/CLASS/…"],
            "list": [f"{self.images or '.'}/…, as the list names them", self.split_file or ""],
        }[self.layout]
        names = ["classnames.txt"] if self.layout.startswith("imagenet") else []
        return [f"{self.folder}/{part.removeprefix('./')}" for part in (*inside, *names)]

    @property
    def counts(self) -> str:
        """The expected number of classes and of images by split, as far as the declaration has them."""
        splits = {"train": self.train, "val": self.val, "test": self.test}
        images = ", ".join(f"{number:,} {name}" for name, number in splits.items() if number is not None)
        known = [f"{self.classes:,} classes" if self.classes is not None else "", f"{images} images" if images else ""]
        return ", ".join(filter(None, known))


def declarations() -> dict[str, Declaration]:
    """The paper's fifteen data sets and those of added catalogues, by name."""
    text = (resources.files("dear") / "assets" / "datasets" / "catalog.json").read_text(encoding="utf-8")
    rows = [Declaration(**row) for row in json.loads(text)]
    return {row.name: row for row in rows} | {name: row for one in _ADDED.values() for name, row in one.items()}


def add_catalog(file: str | Path) -> tuple[str, ...]:
    """Register the data sets of a JSON file, and return their names; folders are relative to the file.

    The file is a list of declarations: name, folder, layout and, optionally, the other fields of `Declaration`.
    """
    path = Path(file).resolve()
    context: dict[str, Any] = {"where": str(file), "what": "a catalogue of data sets", "error": DataError}
    try:
        rows = documents.parse(documents.read_bytes(path, error=DataError), **context)
    except OSError as error:
        raise DataError(f"The catalogue {file} cannot be read ({error.strerror or error}).") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{file} is not a catalogue of data sets: it must be a list of objects with name and folder.")
    added: dict[str, Declaration] = {}
    for number, row in enumerate(rows, start=1):
        try:
            one = Declaration(**{**row, "base": path.parent})
        except ConfigError as error:
            raise DataError(f"Entry {number} of {file} cannot be used. {error}") from None
        if one.name in added or any(one.name in known for at, known in _catalogs().items() if at != path):
            raise DataError(f"The data set name {one.name!r} in {file} is taken: choose another name.")
        added[one.name] = one.model_copy(update={"title": one.title or one.name})
    _ADDED[path] = added
    return tuple(added)


def added_catalogs() -> tuple[Path, ...]:
    """The catalogues that have been added in this process."""
    return tuple(_ADDED)


def _catalogs() -> dict[Path, dict[str, Declaration]]:
    added = {name for one in _ADDED.values() for name in one}
    return {Path(): {name: row for name, row in declarations().items() if name not in added}, **_ADDED}


def open_files(path: Path, template: str | None = None) -> Dataset:
    """Open a folder of class folders, a .csv or .json list, or tar or Parquet files by name, pattern or folder."""
    if files := shard_files(path):
        read, paths = read_packed(files)
        where = absolute(path)
        name = where.stem if len(files) == 1 else where.name if is_folder(where) else where.parent.name
        return replace(_dataset(shown(name), read, template or DEFAULT_TEMPLATE, paths.__getitem__), source=str(where))
    read, images = (read_class_folders(path), path) if path.is_dir() else (read_list(path), path.parent)
    where = path.resolve()
    return replace(_dataset(shown(where.name), read, template or DEFAULT_TEMPLATE, images.joinpath), source=str(where))


def read_declared(one: Declaration, root: Path) -> ReaderResult:
    """Read the image lists of a declared data set, without opening any image."""
    folder = (one.base or root) / one.folder
    if not is_folder(folder):
        raise DataError(f"{one.title} is not in {one.base or root}: put it in {folder}. {one.how_to_get}".rstrip())
    readers: dict[str, Callable[[], ReaderResult]] = {
        "split file": lambda: read_split_file(folder / (one.split_file or ""), one.rename),
        "imagenet": lambda: read_imagenet(folder),
        "imagenet folders": lambda: read_imagenet_variant(folder, one.images),
        "imagenet numbers": lambda: read_imagenet_numbered(folder, one.images),
        "aircraft": lambda: read_aircraft(folder),
        "class folders": lambda: read_class_folders(folder / one.images),
        "list": lambda: read_list(folder / (one.split_file or "")),
    }
    return readers[one.layout]()


def open_declared(one: Declaration, root: Path, template: str | None = None) -> Dataset:
    """Open a declared data set below the folder `root`."""
    read, images = read_declared(one, root), (one.base or root) / one.folder / one.images
    if one.base is not None and one.layout != "split file":  # a split file contains its own class names
        read = read._replace(class_names=tuple(one.rename.get(name, name) for name in read.class_names))
    dataset = _dataset(one.name, read, template or one.template, images.joinpath)
    return replace(dataset, source=one.name, root=None if one.base else str(root.resolve()))


def _dataset(name: str, read: ReaderResult, template: str, path_of: Callable[[str], Path]) -> Dataset:
    def open_item(item_id: str) -> Image.Image:
        return open_image(path_of(item_id))

    def fingerprint(item_id: str) -> str:
        try:
            _, size, changed, _ = image_mark(path_of(item_id))
        except OSError:
            return "missing"
        return f"{size} {changed}"

    known: dict[str, tuple[tuple[int, ...], str]] = {}

    def content(item_id: str) -> str:
        """Hash of a file, computed again only if its status changed; the status change time cannot be set by users."""
        try:
            mark = image_mark(path_of(item_id))
        except OSError:
            return "missing"
        if item_id not in known or known[item_id][0] != mark:
            known[item_id] = mark, content_of(path_of(item_id))
        return known[item_id][1]

    splits = read.train, read.val, read.test
    return Dataset(name, read.class_names, template, *splits, open_item, fingerprint, content)
