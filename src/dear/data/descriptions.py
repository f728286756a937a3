"""Class descriptions: sentences about each class, read from a JSON file or a mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dear.data.dataset import Dataset
from dear.data.prompts import is_wording
from dear.errors import DataError, did_you_mean
from dear.storage import documents
from dear.storage.files import MEGABYTE

LARGEST = 64 * MEGABYTE
MOST = 1000
"""Largest number of sentences per class."""
WHAT = "a file of class descriptions"

Descriptions = Mapping[str, tuple[str, ...]]


def read_descriptions(source: str | Path | Mapping[str, Sequence[str]]) -> Descriptions:
    """Read sentences by class name, from a JSON file such as {"cat": ["A cat has whiskers."]} or from a mapping.

    Underscores in class names are read as spaces.
    """
    if isinstance(source, Mapping):
        return _checked(source, "descriptions")
    path = Path(source)
    try:
        data = documents.read_bytes(path, error=DataError, most=LARGEST)
    except FileNotFoundError:
        raise DataError(f"There is no file {path}: give a JSON file with a list of sentences per class name.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    return _checked(documents.parse(data, where=str(path), what=WHAT, error=DataError), str(path))


def _checked(content: Any, where: str) -> Descriptions:
    if not isinstance(content, Mapping) or not content:
        raise DataError(f'{where} is not {WHAT}: write an object, such as {{"cat": ["A cat has whiskers."]}}.')
    checked: dict[str, tuple[str, ...]] = {}
    for key, sentences in content.items():
        name = str(key).replace("_", " ")
        if name in checked:
            raise DataError(f"{where} describes the class {name!r} twice: merge the two lists.")
        if not isinstance(sentences, list | tuple) or not 1 <= len(sentences) <= MOST:
            raise DataError(f"{where}: {name!r} needs a list of 1 to {MOST} sentences.")
        if bad := [one for one in sentences if not is_wording(one)]:
            raise DataError(f"{where}: {bad[0]!r}, in the list of {name!r}, is not a sentence.")
        checked[name] = tuple(sentences)
    return checked


def with_descriptions(
    dataset: Dataset, descriptions: str | Path | Mapping[str, Sequence[str]] | None, *, required: bool = True
) -> Dataset:
    """The data set with descriptions of its classes; either all classes are described, or none.

    Descriptions that contain none of the classes are ignored unless they are `required`.
    """
    if descriptions is None:
        return dataset
    by_class = read_descriptions(descriptions)
    spoken = {name: name.replace("_", " ") for name in dataset.class_names}  # some data sets' names have underscores
    missing = [name for name, key in spoken.items() if key not in by_class]
    if len(missing) == len(dataset.class_names) and not required:
        return dataset
    if missing:
        raise DataError(
            f"The descriptions lack {len(missing)} of the {len(dataset.class_names)} classes of {dataset.name}, "
            f"such as {missing[0]!r}: add a list of sentences for each.{did_you_mean(missing[0], by_class)}"
        )
    return replace(dataset, descriptions={name: by_class[key] for name, key in spoken.items()})
