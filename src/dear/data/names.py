"""Class names: replace folder names that are codes by words, and add folders as further classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dear.data.dataset import SPLITS, Dataset, Item, in_order
from dear.data.images import ImageList, content_of, folder_images
from dear.data.prompts import is_wording
from dear.errors import DataError, did_you_mean
from dear.storage import documents
from dear.storage.files import as_folder, letters, sha256, shown

FILLERS = {"class", "cls", "label", "category", "id", "no", "nr", "number", "folder", "img", "image", "n", "c"}
"""Words that say nothing about a class if a number follows."""
TEST_EVERY = 4
"""One in four images of an added class becomes a test image, if the data set has test images."""


def unspoken(names: Sequence[str]) -> list[str]:
    """Class names without meaning for a text tower: numbers and codes, such as n01440764, 003 or class_12."""
    return [name for name in names if _is_code(name)]


def _is_code(name: str) -> bool:
    parts = re.findall(r"[^\W\d_]+", name)
    if not any(letter.isdecimal() for letter in name):
        return not parts
    return all(part.lower() in FILLERS or len(part) == 1 for part in parts)


def unspoken_sentence(names: Sequence[str]) -> str | None:
    """A hint about class names that are codes; None if there are none."""
    codes = unspoken(names)
    if not codes:
        return None
    return (
        f"{len(codes)} of {len(names)} class names are codes, such as {codes[0]!r}, but CLIP needs words: "
        f"give the names with --names FILE (names=…), one line per class, as in '{codes[0]} golden retriever'."
    )


def read_names(source: str | Path | Mapping[str, str]) -> dict[str, str]:
    """Read class names by folder, from a mapping, a JSON file, or a text file with a folder and a name per line."""
    if isinstance(source, Mapping):
        return _checked(source, "names")
    path = Path(source)
    try:
        text = documents.read_bytes(path, error=DataError).decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"The names {path} cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file in UTF-8.") from None
    if path.suffix.lower() == ".json":
        return _checked(documents.parse(text, where=str(path), what="a file of names", error=DataError), str(path))
    rows = [re.split(r"[\t,;]|\s+", line.strip(), maxsplit=1) for line in text.splitlines() if line.strip()]
    if bad := [row for row in rows if len(row) != 2]:
        raise DataError(f"{path} needs a folder and its name in every line, but one is {bad[0][0][:80]!r} alone.")
    return _checked({folder: name.strip() for folder, name in rows}, str(path))


def _checked(content: Any, where: str) -> dict[str, str]:
    if not isinstance(content, Mapping) or not content:
        raise DataError(f'{where} is not a list of names: write one line per class, such as "n01440764 tench".')
    if bad := [name for pair in content.items() for name in pair if not is_wording(name)]:
        raise DataError(f"{where}: {bad[0]!r} cannot be the name of a class.")
    return {str(folder): str(name) for folder, name in content.items()}


def with_names(dataset: Dataset, names: str | Path | Mapping[str, str] | None) -> Dataset:
    """The data set with new names for some of its classes; raises `DataError` for an unknown class."""
    if names is None:
        return dataset
    new_names = {_words(folder): name for folder, name in read_names(names).items()}
    known = [_words(name) for name in dataset.class_names]
    if unknown := [folder for folder in new_names if folder not in known]:
        raise DataError(f"{dataset.name} has no class {unknown[0]!r} to rename.{did_you_mean(unknown[0], known)}")
    named = tuple(new_names.get(_words(name), name) for name in dataset.class_names)
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise DataError(f"Two classes of {dataset.name} would be called {twice!r}: give each a name of its own.")
    return replace(dataset, class_names=named, renamed={**(dataset.renamed or {}), **new_names})


def with_class(dataset: Dataset, folder: str | Path) -> Dataset:
    """The data set with the images of a folder as a further class, which is last and has the folder's name.

    All its images are training images; if the data set has a test split, one in four becomes a test image. (Without
    one, test images are set aside when shots are sampled.)
    """
    path = as_folder(folder)
    images, name = folder_images(path), _words(path.resolve().name)
    if name.lower() in (known.lower() for known in dataset.class_names):
        raise DataError(f"{dataset.name} already has a class {name!r}: put the images there, or rename the folder.")
    label, start = len(dataset.class_names), f"{path.resolve().name}/"
    items = [Item(start + one, label) for one in images.names]
    known = {item.id for split in SPLITS for item in dataset.split(split)}
    if same := next((item.id for item in items if item.id in known), None):
        raise DataError(f"{dataset.name} already has an image {shown(same)}: rename the folder {shown(path)}.")
    tested = {item for item in items if dataset.test and sha256(letters(item.id))[:8] < f"{2**32 // TEST_EVERY:08x}"}
    if len(tested) == len(items):
        tested.discard(items[0])  # a class needs an image to train on
    train = [item for item in items if item not in tested]
    return replace(
        dataset,
        class_names=(*dataset.class_names, name),
        train=in_order([*dataset.train, *train]),
        test=in_order([*dataset.test, *tested]),
        open=_either(dataset.open, images, start, lambda index: images.open(index)),
        fingerprint=_either(dataset.fingerprint, images, start, lambda index: _mark(path / images.names[index])),
        content=_either(dataset.content_of, images, start, lambda index: content_of(path / images.names[index])),
        added=(*dataset.added, str(path.resolve())),
    )


def _either(of_dataset: Any, images: ImageList, start: str, of_folder: Any) -> Any:
    """A function of an item's id that uses `of_folder` for the added images and `of_dataset` for all others."""
    added = {start + name: index for index, name in enumerate(images.names)}
    return lambda item_id: of_folder(added[item_id]) if item_id in added else of_dataset(item_id)


def _mark(path: Path) -> str:
    try:
        facts = path.stat()
    except OSError:
        return "missing"
    return f"{facts.st_size} {facts.st_mtime_ns}"


def _words(name: str) -> str:
    return " ".join(name.replace("_", " ").split())
