"""Descriptions of classes: a JSON file from class names to lists of sentences."""

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
"""Sentences per class."""
WHAT = "a file of class descriptions"

Descriptions = Mapping[str, tuple[str, ...]]


def read_descriptions(source: str | Path | Mapping[str, Sequence[str]]) -> Descriptions:
    """Sentences by class name, from a JSON file such as {"cat": ["A cat has whiskers."]} or from a mapping.

    An underscore in a class name is a space.
    """
    if isinstance(source, Mapping):
        return _checked(source, "descriptions")
    path = Path(source)
    try:
        data = documents.read_bytes(path, error=DataError, most=LARGEST)
    except FileNotFoundError:
        raise DataError(f"There is no file {path}: give {WHAT}, class name to list of sentences, as JSON.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    return _checked(documents.parse(data, where=str(path), what=WHAT, error=DataError), str(path))


def _checked(content: Any, where: str) -> Descriptions:
    if not isinstance(content, Mapping) or not content:
        raise DataError(f'{where} is not {WHAT}: write an object, such as {{"cat": ["A cat has whiskers."]}}.')
    found: dict[str, tuple[str, ...]] = {}
    for key, sentences in content.items():
        name = str(key).replace("_", " ")
        if name in found:
            raise DataError(f"{where} describes the class {name!r} twice.")
        if not isinstance(sentences, list | tuple) or not 1 <= len(sentences) <= MOST:
            raise DataError(f"{where}: {name!r} needs a list of 1 to {MOST} sentences.")
        if bad := [one for one in sentences if not is_wording(one)]:
            raise DataError(f"{where}: {bad[0]!r}, said of {name!r}, is not a sentence.")
        found[name] = tuple(sentences)
    return found


def with_descriptions(
    dataset: Dataset, descriptions: str | Path | Mapping[str, Sequence[str]] | None, *, required: bool = True
) -> Dataset:
    """The data set with sentences about its classes, all or none of them.

    If the descriptions are of other classes only, they are refused, or, unless they are `required`, left out.
    """
    if descriptions is None:
        return dataset
    told = read_descriptions(descriptions)
    missing = [name for name in dataset.class_names if name not in told]
    if len(missing) == len(dataset.class_names) and not required:
        return dataset
    if missing:
        raise DataError(
            f"The descriptions are without {len(missing)} of the {len(dataset.class_names)} classes of {dataset.name}, "
            f"such as {missing[0]!r}: add a list of sentences for each.{did_you_mean(missing[0], told)}"
        )
    return replace(dataset, descriptions={name: told[name] for name in dataset.class_names})
