"""Names of classes for a prompt: folders that are no words get other names, and further classes can be added."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dear.data.dataset import Dataset, Item, in_order
from dear.data.images import ImageList, content_of, folder_images
from dear.data.prompts import is_wording
from dear.errors import DataError, did_you_mean
from dear.storage import documents
from dear.storage.files import as_folder, letters, sha256

FILLERS = {"class", "cls", "label", "category", "id", "no", "nr", "number", "folder", "img", "image", "n", "c"}
"""Words that say nothing about a class if a number follows."""
HELD = 4
"""One in so many images of an added class is tested, if the data set has test images of its own."""


def unspoken(names: Sequence[str]) -> list[str]:
    """The class names that say nothing to a text tower: numbers and codes, such as n01440764, 003 or class_12."""
    return [name for name in names if _is_code(name)]


def _is_code(name: str) -> bool:
    parts = re.findall(r"[^\W\d_]+", name)
    if not any(letter.isdecimal() for letter in name):
        return not parts
    return all(part.lower() in FILLERS or len(part) == 1 for part in parts)


def unspoken_sentence(names: Sequence[str]) -> str | None:
    """What to say of such names; None if there are none."""
    found = unspoken(names)
    if not found:
        return None
    return (
        f"{len(found)} of {len(names)} classes have no words for names, such as {found[0]!r}, and CLIP reads names: "
        f"say what they are with --names FILE (names=…), one line per class: {found[0]} golden retriever."
    )


def read_names(source: str | Path | Mapping[str, str]) -> dict[str, str]:
    """Names by folder, from a mapping, a JSON object, or a text file with a folder and its name per line."""
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
        raise DataError(f'{where} is no list of names: write one line per class, such as "n01440764 tench".')
    if bad := [name for pair in content.items() for name in pair if not is_wording(name)]:
        raise DataError(f"{where}: {bad[0]!r} cannot be the name of a class.")
    return {str(folder): str(name) for folder, name in content.items()}


def with_names(dataset: Dataset, names: str | Path | Mapping[str, str] | None) -> Dataset:
    """The data set with other names for some of its classes; a folder that it does not have is refused."""
    if names is None:
        return dataset
    told = {_words(folder): name for folder, name in read_names(names).items()}
    known = [_words(name) for name in dataset.class_names]
    if strange := [folder for folder in told if folder not in known]:
        raise DataError(f"{dataset.name} has no class {strange[0]!r} to name.{did_you_mean(strange[0], known)}")
    named = tuple(told.get(_words(name), name) for name in dataset.class_names)
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise DataError(f"Two classes of {dataset.name} would be called {twice!r}: give each a name of its own.")
    return replace(dataset, class_names=named, renamed={**(dataset.renamed or {}), **told})


def with_class(dataset: Dataset, folder: str | Path) -> Dataset:
    """The data set with one more class: the images of a folder, which bears its name; it comes last.

    All its images may be drawn for training; if the data set has test images, one in four of them is tested instead.
    """
    place = as_folder(folder)
    images, name = folder_images(place), _words(place.resolve().name)
    if name.lower() in (known.lower() for known in dataset.class_names):
        raise DataError(f"{dataset.name} has a class {name!r} already: put the images there, or rename the folder.")
    label, start = len(dataset.class_names), f"{place.resolve().name}/"
    items = [Item(start + one, label) for one in images.names]
    tested = [item for item in items if dataset.test and sha256(letters(item.id))[:8] < f"{2**32 // HELD:08x}"]
    train = [item for item in items if item not in set(tested)]
    return replace(
        dataset,
        class_names=(*dataset.class_names, name),
        train=in_order([*dataset.train, *train]),
        test=in_order([*dataset.test, *tested]),
        open=_either(dataset.open, images, start, lambda index: images.open(index)),
        fingerprint=_either(dataset.fingerprint, images, start, lambda index: _mark(place / images.names[index])),
        content=_either(dataset.content_of, images, start, lambda index: content_of(place / images.names[index])),
        added=(*dataset.added, str(place.resolve())),
    )


def _either(of_dataset: Any, images: ImageList, start: str, of_folder: Any) -> Any:
    """What the data set says of its own items, and the folder of its."""
    places = {start + name: index for index, name in enumerate(images.names)}
    return lambda item_id: of_folder(places[item_id]) if item_id in places else of_dataset(item_id)


def _mark(path: Path) -> str:
    try:
        facts = path.stat()
    except OSError:
        return "missing"
    return f"{facts.st_size} {facts.st_mtime_ns}"


def _words(name: str) -> str:
    return " ".join(name.replace("_", " ").split())
