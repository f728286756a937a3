"""Data sets in memory: pairs of an image and a label, as those of torchvision and datasets, which are not imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from PIL import Image

from dear.data.dataset import SPLITS, Dataset, Item
from dear.data.images import as_rgb, decode_image
from dear.data.inputs import named_image
from dear.data.prompts import DEFAULT_TEMPLATE
from dear.data.readers import spoken
from dear.errors import DataError, DearError, ImageError, InputError
from dear.storage.files import sha256, shown

NAME = "images"
IMAGE, LABEL = "image", "label"
SPLIT_NAMES = {"train": "train", "validation": "val", "val": "val", "test": "test"}
EXPECTED = "give pairs of an image and a label, or mappings with 'image' and 'label'"


class _Pairs(NamedTuple):
    """A split: its labels, how to get an image, and the names of classes, if they are known."""

    labels: list[str | int]
    image: Callable[[int], Any]
    names: tuple[str, ...] | None


def sequence_dataset(data: Any, template: str | None = None) -> Dataset:
    """A data set from a sequence of (image, label), of mappings with `image` and `label`, or from two such columns.

    A mapping of train, validation and test has one of these per split. Labels are names, or numbers of classes that
    `classes` or `features` of the sequence name. An image is converted when it is needed, and never opened by a path.
    """
    parts = {"train": data}
    if isinstance(data, Mapping) and data and set(data) <= set(SPLIT_NAMES):
        parts = {SPLIT_NAMES[name]: part for name, part in data.items()}
    splits = {name: _pairs(part) for name, part in parts.items()}
    known = {one.names for one in splits.values() if one.names is not None}
    if len(known) > 1:
        raise DataError("The splits name different classes: give splits of one data set.")
    folders = _folders({label for one in splits.values() for label in one.labels}, next(iter(known), None))
    items = {name: _items(name, one, folders) for name, one in splits.items()}

    def place(item_id: str) -> tuple[str, int]:
        split, _, number = item_id.partition("/")
        return split, int(number)

    def open_item(item_id: str) -> Image.Image:
        split, number = place(item_id)
        return _opened(lambda: splits[split].image(number), item_id)

    @cache
    def content(item_id: str) -> str:
        try:
            image = open_item(item_id)
        except ImageError:
            return "missing"
        return sha256(f"{image.size}\n".encode() + image.tobytes())

    train, val, test = (tuple(items.get(split, ())) for split in SPLITS)
    classes = spoken([str(folder) for folder in folders], "labels")
    return Dataset(NAME, classes, template or DEFAULT_TEMPLATE, train, val, test, open_item, content=content)


def _pairs(data: Any) -> _Pairs:
    """Labels first, from a column if there is one, so that images need not be decoded to list them."""
    names = _class_names(data)
    if isinstance(data, Mapping):
        if not {IMAGE, LABEL} <= set(data):
            raise DataError(f"The mapping has no {IMAGE!r} and {LABEL!r}: {EXPECTED}.")
        images, count = data[IMAGE], _length(data, IMAGE)
        if count != _length(data, LABEL):
            raise DataError(f"There are {count:,} images, but {_length(data, LABEL):,} labels: give one per image.")
        return _Pairs(_checked(data[LABEL]), lambda number: images[number], names)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise DataError(
            f"The data set is of type {type(data).__name__}: give its name, a folder, a .csv, .json, .tar or .parquet "
            f"file, or a sequence of images with labels."
        )
    if not len(data):
        raise DataError(f"The sequence is empty: {EXPECTED}.")
    if LABEL in (getattr(data, "column_names", None) or ()):
        labels: Iterable[Any] = data[LABEL]
    elif isinstance(getattr(data, "targets", None), list | tuple) and len(data.targets) == len(data):
        labels = data.targets
    else:
        labels = (_label_at(data, number) for number in range(len(data)))
    return _Pairs(_checked(labels), lambda number: _both(data[number], number)[0], names)


def _length(columns: Mapping[str, Any], name: str) -> int:
    """The number of rows of a column, which a generator does not have."""
    column = columns[name]
    if not hasattr(column, "__getitem__") or not hasattr(column, "__len__"):
        raise DataError(f"The column {name!r} is of type {type(column).__name__}: give it as a list.")
    return len(column)


def _label_at(data: Any, number: int) -> Any:
    """The label of a sequence that has no column of labels, so that its images are decoded as well."""
    try:
        one = data[number]
    except Exception as error:  # code of others and decoders raise many kinds of errors
        raise DataError(
            f"The label of number {number} of the sequence cannot be read ({_short(error)}): leave it out, or give "
            f"labels of their own, as a list called targets or a column called {LABEL}."
        ) from error
    return _both(one, number)[1]


def _both(one: Any, number: int) -> tuple[Any, Any]:
    if isinstance(one, Mapping) and IMAGE in one and LABEL in one:
        return one[IMAGE], one[LABEL]
    if isinstance(one, tuple | list) and len(one) == 2:
        return one[0], one[1]
    raise DataError(f"Number {number} of the sequence is of type {type(one).__name__}: {EXPECTED}.")


def _checked(labels: Iterable[Any]) -> list[str | int]:
    found: list[str | int] = []
    for label in labels:
        value = _single(label, len(found)) if hasattr(label, "item") and not isinstance(label, str) else label
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise DataError(f"Label {len(found)} is of type {type(value).__name__}: labels are names or whole numbers.")
        found.append(value)
    return found


def _single(label: Any, number: int) -> Any:
    """The number in an array or a tensor."""
    try:
        return label.item()
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"Label {number} is of type {type(label).__name__} and not a single number: give the number of the class, "
            f"for a one-hot label its argmax."
        ) from None


def _class_names(data: Any) -> tuple[str, ...] | None:
    """Names of classes, as `datasets` (features) and torchvision (classes) have them."""
    features = getattr(data, "features", None)
    label = features.get(LABEL) if isinstance(features, Mapping) else None
    names = getattr(label, "names", None) or getattr(data, "classes", None)
    if not isinstance(names, list | tuple) or len(names) < 2:
        return None
    first = [one[0] if isinstance(one, tuple) and one else one for one in names]  # several names of one class
    return tuple(first) if all(isinstance(one, str) and one.strip() for one in first) else None


def _folders(labels: set[str | int], names: tuple[str, ...] | None) -> list[str | int]:
    numbers = [label for label in labels if isinstance(label, int)]
    if names is not None and numbers and len(numbers) == len(labels):
        if not 0 <= min(numbers) <= max(numbers) < len(names):
            raise DataError(f"Labels go from {min(numbers)} to {max(numbers)}, but {len(names)} classes have names.")
        return list(names)
    if numbers and len(numbers) < len(labels):
        raise DataError("Some labels are names and others are numbers: give labels of one kind.")
    if len(labels) < 2:
        raise DataError(f"There are images of {len(labels)} class(es), but at least 2 are needed.")
    return sorted(labels, key=lambda label: (label if isinstance(label, int) else 0, str(label)))


def _items(split: str, pairs: _Pairs, folders: list[str | int]) -> list[Item]:
    """Items, sorted by class; with names, numbers are labels already."""
    number = {folder: label for label, folder in enumerate(folders)}
    width = len(str(len(pairs.labels)))
    found = [
        Item(f"{split}/{at:0{width}d}", number[label] if label in number else int(label))
        for at, label in enumerate(pairs.labels)
    ]
    return sorted(found, key=lambda item: (item.label, item.id))


def _opened(get: Callable[[], Any], item_id: str) -> Image.Image:
    """An image as RGB, or an `ImageError`; a path is refused, because data of others may contain it."""
    try:
        return _converted(get(), item_id)
    except InputError as error:
        raise ImageError(str(error)) from None
    except DearError:
        raise
    except Exception as error:  # code of others and decoders raise many kinds of errors
        raise ImageError(f"{item_id} cannot be read ({_short(error)}).") from error


def _converted(image: Any, item_id: str) -> Image.Image:
    if isinstance(image, Mapping):  # an image of datasets that was not decoded
        image = image.get("bytes")
    if isinstance(image, str) or hasattr(image, "__fspath__"):
        raise ImageError(f"{item_id} is a path, which is never opened: list paths and labels in a .csv file instead.")
    if isinstance(image, bytes | bytearray | memoryview):
        return decode_image(bytes(image), item_id)
    if isinstance(image, Image.Image):
        return as_rgb(image)
    return named_image(image, 0, f"{item_id} cannot be used: images are PIL images, arrays, tensors or bytes").open()


def _short(error: Exception) -> str:
    """What an exception says, in one line."""
    return shown(" ".join(f"{type(error).__name__}: {error}".split()))[:200].rstrip(": .")
