"""Training images from a file instead of a sample: the `shots.json` of a run, or a few-shot sample of CoOp."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dear.data.coop_shots import read_coop_shots
from dear.data.dataset import Dataset, Item, in_order
from dear.data.splits import Shots, labels_of
from dear.errors import DataError, option
from dear.storage import documents
from dear.storage.files import MEGABYTE, shown

LARGEST = 64 * MEGABYTE
"""CoOp's sample of 16 images of each of ImageNet's classes has about 2 MB."""


class ListedImage(NamedTuple):
    """One image of a list: its path, its hash ("" if unknown), and its label and class name if the list has them."""

    path: str
    content: str = ""
    label: int | None = None
    class_name: str | None = None


class ShotList(NamedTuple):
    """The images of a file, and the number of shots that they were sampled with."""

    images: tuple[ListedImage, ...]
    shots: int


def filled_path(file: Path, dataset: Dataset, shots: int, seed: int) -> Path:
    """The path with {data}, {shots} and {seed} filled in."""
    text = str(file)
    for place, value in {"{data}": dataset.name, "{shots}": str(shots), "{seed}": str(seed)}.items():
        text = text.replace(place, value)
    return Path(text)


def listed_shots(dataset: Dataset, file: Path, *, shots: int, half: str = "all") -> tuple[Item, ...]:
    """The training images of a data set that a file lists; they must include every class of the half."""
    found = read_shot_list(file)
    if found.shots != shots:
        raise DataError(f"{shown(file)} was sampled with {found.shots} shots: add {option(shots=found.shots)}.")
    items = _matched(dataset, found.images, shown(file))
    labels = labels_of(dataset, half)
    listed, trained = {item.label for item in items}, {item.label for item in dataset.train}
    if missing := [label for label in labels if label in trained - listed]:
        raise DataError(
            f"{shown(file)} lists no image of {len(missing)} class(es) of {dataset.name}, such as "
            f"{dataset.class_names[missing[0]]!r}: use a list of all classes to train on."
        )
    return items


def read_shot_list(file: Path) -> ShotList:
    """Read a `shots.json`, or a sample of CoOp (any other file)."""
    where = shown(file)
    try:
        content = documents.read_bytes(file, error=DataError, most=LARGEST)
    except OSError as error:
        raise DataError(f"The list of shots {where} cannot be read ({error.strerror or error}).") from None
    if file.suffix.lower() == ".json":
        sample = Shots.from_json(content, where=where)
        return ShotList(tuple(ListedImage(path, hashed) for path, _, hashed in sample.items), sample.shots)
    images = tuple(
        ListedImage(one.path.replace("\\", "/"), "", one.label, one.class_name)
        for one in read_coop_shots(content, where=where)
    )
    if not images:
        raise DataError(f"{where} lists no images.")
    named = re.search(r"shot_(\d{1,6})", file.name)
    return ShotList(images, int(named[1]) if named else max(Counter(one.label for one in images).values()))


def _matched(dataset: Dataset, images: tuple[ListedImage, ...], where: str) -> tuple[Item, ...]:
    """The data set's own items of these images."""
    by_id = {item.id: item for item in dataset.train}
    ends = _ends(by_id)
    found = {one: _find(one.path, by_id, ends) for one in images}
    if lost := [one.path for one, item in found.items() if item is None]:
        raise DataError(
            f"{where} lists {len(lost)} image(s) that are not training images of {dataset.name}, such as "
            f"{shown(lost[0])}: use the data set that the list was made from."
        )
    items = {one: item for one, item in found.items() if item is not None}
    for one, item in items.items():
        _check(dataset, one, item, where)
    return in_order(tuple(dict.fromkeys(items.values())))


def _ends(by_id: Mapping[str, Item]) -> Mapping[str, list[Item]]:
    """Items by every end of their path: b/c.jpg and c.jpg for a/b/c.jpg."""
    ends: dict[str, list[Item]] = defaultdict(list)
    for item_id, item in by_id.items():
        parts = item_id.split("/")
        for start in range(1, len(parts)):
            ends["/".join(parts[start:])].append(item)
    return ends


def _find(path: str, by_id: Mapping[str, Item], ends: Mapping[str, list[Item]]) -> Item | None:
    """The item whose path is the longest end of this path, or else the only one whose path ends with it."""
    parts = path.split("/")
    for start in range(len(parts)):
        if item := by_id.get("/".join(parts[start:])):
            return item
    longer = ends.get(path, [])
    return longer[0] if len(longer) == 1 else None


def _check(dataset: Dataset, one: ListedImage, item: Item, where: str) -> None:
    """Refuse an image that the list and the data set describe differently."""
    ours = dataset.class_names[item.label]
    if one.label not in (None, item.label) and _plain(one.class_name or "") != _plain(ours):
        raise DataError(
            f"{where} lists {shown(item.id)} as {one.class_name!r}, but in {dataset.name} it is of class {ours!r}: use "
            f"the data set that the list was made from."
        )
    if one.content and dataset.content is not None and dataset.content_of(item.id) != one.content:
        raise DataError(f"{shown(item.id)} is not the image that {where} lists: its content differs.")


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())
