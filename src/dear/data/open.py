"""One function that opens any data set: the paper's or the world's by name, a folder, or a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from dear.data.catalog import declarations, open_declared, open_files
from dear.data.dataset import Dataset
from dear.data.descriptions import with_descriptions
from dear.data.names import with_class, with_names
from dear.errors import ConfigError, DataError, DearError, did_you_mean, option
from dear.storage.files import as_folder, is_file, is_folder

LISTS = (".csv", ".json")
PROVIDERS = ("dear.world.datasets",)
"""Modules of this package with named data sets: `dataset_names()`, `open_named(name)` and their `CLIP`."""
GROUP = "dear.datasets"
"""Entry points of other packages: NAME = "module:function"."""


def dataset_names() -> tuple[str, ...]:
    """Every data set that has a name: the paper's, those of added catalogues, the world's, and other packages'."""
    provided = [name for one in _providers() for name in one.dataset_names()]
    return (*declarations(), *provided, *(point.name for point in entry_points(group=GROUP)))


def open_dataset(
    source: str | Path,
    root: str | Path | None = None,
    *,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    names: str | Path | Mapping[str, str] | None = None,
    add_class: Sequence[str | Path] = (),
) -> Dataset:
    """Open a data set: a name (the paper's below `root`, or the world's), a folder of class folders, or a list.

    Args:
        source: which one.
        root: folder that holds the paper's data sets.
        template: the prompt around a class name.
        descriptions: sentences about every class, as a mapping or a JSON file.
        names: what classes are called whose folders are no words: a mapping, or a file with one per line.
        add_class: folders of images, each a further class by its name.
    """
    found = with_names(_opened(source, root, template), names)
    for folder in add_class:
        found = with_class(found, folder)
    return with_descriptions(found, descriptions)


def _opened(source: str | Path, root: str | Path | None, template: str | None) -> Dataset:
    if not isinstance(source, str | Path):
        raise DataError(
            f"The data set is of type {type(source).__name__}: give its name, a folder, or a .csv or .json list."
        )
    if template is not None and (not isinstance(template, str) or not template.strip()):
        raise DataError(f"The template is {template!r}: give a prompt such as 'a photo of a {{}}.', or leave it out.")
    name, path = str(source), Path(source)
    for provider in _providers():
        if name in provider.dataset_names():
            found: Dataset = provider.open_named(name)
            return replace(found, template=template or found.template)
    known = declarations()
    if name in known:
        if root is None and known[name].base is None:
            raise DataError(f"{name} lies below a data folder: say which with {option(data_root='FOLDER')}.")
        return open_declared(known[name], as_folder(root or "."), template)
    if is_folder(path) or (is_file(path) and path.suffix.lower() in LISTS):
        return open_files(path, template)
    for point in entry_points(group=GROUP, name=name):
        return _others(point, as_folder(root) if root is not None else None, template)
    near = did_you_mean(name, dataset_names()) or " See 'dear data list'."
    raise DataError(f"There is no data set {name[:80]!r}, nor a folder or a .csv or .json list of that name.{near}")


def _others(point: EntryPoint, root: Path | None, template: str | None) -> Dataset:
    """A data set of another package: its entry point names a function that takes the data folder, or None."""
    try:
        found = point.load()(root)
    except DearError:
        raise
    except Exception as error:
        raise DataError(
            f"The data set {point.name!r} cannot be opened by {point.value} ({type(error).__name__}: {error})."
        ) from error
    if not isinstance(found, Dataset):
        raise DataError(f"{point.value} gives no dear.data.dataset.Dataset, but an object of {type(found).__name__}.")
    return replace(found, name=point.name, source=point.name, template=template or found.template)


def opened(data: str | Path | Dataset, root: str | Path | None = None, template: str | None = None) -> Dataset:
    """A data set by name or place, or one that is open already, with another prompt if one is given."""
    if isinstance(data, Dataset):
        return replace(data, template=data.template if template is None else template)
    return open_dataset(data, root, template=template)


def refuse_inside(dataset: Dataset, *outputs: Path | None) -> None:
    """Refuse to write inside the data folder, where a folder becomes a class."""
    data = Path(dataset.source) if dataset.source else None
    if data is None or not is_folder(data):
        return
    for folder in outputs:
        if folder is not None and data.resolve() in folder.resolve().parents:
            raise ConfigError(
                f"{folder} lies inside the data folder {data} and would become a class: choose another folder."
            )


def own_clip(source: str | Path | Dataset) -> str | None:
    """The CLIP that a data set was made for, if it was made for one: the default backbone for it."""
    name = source.source if isinstance(source, Dataset) else str(source)
    return next((one.CLIP for one in _providers() if name in one.dataset_names()), None)


@cache
def _providers() -> tuple[Any, ...]:
    return tuple(import_module(name) for name in PROVIDERS)
