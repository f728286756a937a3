"""`open_dataset`: open any data set by name, from folders, lists, tar or Parquet files, or from images in memory."""

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
from dear.data.sequences import sequence_dataset
from dear.data.shards import refuse_compressed, shard_files
from dear.errors import ConfigError, DataError, DearError, did_you_mean, option
from dear.storage.files import as_folder, is_file, is_folder

LISTS = (".csv", ".json")
PROVIDERS = ("dear.world.datasets",)
"""Modules of this package that provide named data sets by `dataset_names()`, `open_named(name)` and `CLIP`."""
GROUP = "dear.datasets"
"""Entry point group in which other packages register data sets: NAME = "module:function"."""


def dataset_names() -> tuple[str, ...]:
    """Names of all data sets: the paper's, those of added catalogues, the world's, and those of other packages."""
    return (*_own_names(), *packaged_datasets())


def packaged_datasets() -> dict[str, EntryPoint]:
    """Data sets of installed packages by name; a name that this package or a catalogue has means that one."""
    own = set(_own_names())
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name not in own:
            found.setdefault(point.name, point)
    return found


def _own_names() -> list[str]:
    return [*declarations(), *(name for one in _providers() for name in one.dataset_names())]


def open_dataset(
    source: str | Path | Any,
    root: str | Path | None = None,
    *,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    names: str | Path | Mapping[str, str] | None = None,
    add_class: Sequence[str | Path] = (),
) -> Dataset:
    """Open a data set: by name (the paper's below `root`, or the world's), from files, or from images in memory.

    Args:
        source: its name, a folder of class folders, a .csv or .json list, tar or Parquet files (one, a pattern, or
            their folder), or a sequence of (image, label) or of mappings with `image` and `label`.
        root: folder that contains the paper's data sets.
        template: the prompt around a class name.
        descriptions: sentences about every class, as a mapping or a JSON file.
        names: class names for folders that are named by codes: a mapping, or a file with one per line.
        add_class: folders of images, each added as a class with the folder's name.
    """
    dataset = with_names(_opened(source, root, template), names)
    for folder in add_class:
        dataset = with_class(dataset, folder)
    return with_descriptions(dataset, descriptions)


def _opened(source: Any, root: str | Path | None, template: str | None) -> Dataset:
    if template is not None and (not isinstance(template, str) or not template.strip()):
        raise DataError(f"The template is {template!r}: give a prompt such as 'a photo of a {{}}.', or leave it out.")
    if not isinstance(source, str | Path):
        return sequence_dataset(source, template)
    name, path = str(source), Path(source)
    for provider in _providers():
        if name in provider.dataset_names():
            dataset: Dataset = provider.open_named(name)
            return replace(dataset, template=template or dataset.template)
    known = declarations()
    if name in known:
        if root is None and known[name].base is None:
            raise DataError(f"{name} is read from a data folder: name it with {option(data_root='FOLDER')}.")
        return open_declared(known[name], as_folder(root or "."), template)
    refuse_compressed(source)
    if is_folder(path) or (is_file(path) and path.suffix.lower() in LISTS) or shard_files(path):
        return open_files(path, template)
    for point in entry_points(group=GROUP, name=name):
        return _others(point, as_folder(root) if root is not None else None, template)
    near = did_you_mean(name, dataset_names()) or " See 'dear data list'."
    raise DataError(
        f"There is no data set {name[:80]!r}, nor a folder or a .csv, .json, .tar or .parquet file of that name.{near}"
    )


def _others(point: EntryPoint, root: Path | None, template: str | None) -> Dataset:
    """Open a data set of another package; its entry point is a function of the data folder, which may be None."""
    try:
        dataset = point.load()(root)
    except DearError:
        raise
    except Exception as error:
        raise DataError(
            f"The data set {point.name!r} cannot be opened by {point.value} ({type(error).__name__}: {error})."
        ) from error
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"{point.value} must return a dear.data.dataset.Dataset, but returns a {type(dataset).__name__}."
        )
    return replace(dataset, name=point.name, source=point.name, template=template or dataset.template)


def opened(data: str | Path | Dataset | Any, root: str | Path | None = None, template: str | None = None) -> Dataset:
    """Open a data set by name or path, or take one that is open; `template` replaces its prompt template."""
    if isinstance(data, Dataset):
        return replace(data, template=data.template if template is None else template)
    return open_dataset(data, root, template=template)


def refuse_inside(dataset: Dataset, *outputs: Path | None) -> None:
    """Raise `DataError` for an output folder inside the data folder, where it would become a class."""
    data = Path(dataset.source) if dataset.source else None
    if data is None or not is_folder(data):
        return
    for folder in outputs:
        if folder is not None and data.resolve() in folder.resolve().parents:
            raise ConfigError(
                f"{folder} is inside the data folder {data} and would become a class: choose another folder."
            )


def own_clip(source: str | Path | Dataset) -> str | None:
    """The default backbone of a data set that was made for one CLIP; None for all others."""
    name = source.source if isinstance(source, Dataset) else str(source)
    return next((one.CLIP for one in _providers() if name in one.dataset_names()), None)


@cache
def _providers() -> tuple[Any, ...]:
    return tuple(import_module(name) for name in PROVIDERS)
