"""List and verify data sets."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NamedTuple

from dear.data.catalog import declarations
from dear.data.check import Health, check_dataset, is_present
from dear.data.open import dataset_names, open_dataset, packaged_datasets
from dear.errors import DataError, did_you_mean
from dear.options.reading import check_values
from dear.options.tools import DATA, CheckData, ListData
from dear.progress.display import watched
from dear.progress.stages import stage
from dear.storage.files import as_folder
from dear.world.catalog import DATASETS

LIST = " See 'dear data list'."
OPENING = "opening images"


class DatasetEntry(NamedTuple):
    """A data set that has a name."""

    name: str
    present: bool | None
    """Whether it can be read now; None for one of an installed package, which only opening it can tell."""
    classes: int | None
    """Number of classes; None if its catalogue does not say."""
    title: str


def list_datasets(data_root: str | Path = DATA) -> list[DatasetEntry]:
    """List every data set that has a name: the paper's, those of catalogues, the world's, those of installed packages.

    Args:
        data_root: folder that contains the paper's data sets, in CoOp's layout.
    """
    root = as_folder(data_root)
    found = [DatasetEntry(one.name, is_present(one, root), one.classes, one.title) for one in declarations().values()]
    found += [
        DatasetEntry(one.name, True, len(one.classes), f"stands for {one.stands_for}") for one in DATASETS.values()
    ]
    return found + [DatasetEntry(name, None, None, _package(point)) for name, point in packaged_datasets().items()]


def describe_dataset(name: str, data_root: str | Path = DATA) -> list[tuple[str, str]]:
    """Describe a data set: what it is, its page, license and layout, as pairs of a word and a text.

    Args:
        name: name of a data set, see `dear.list_datasets`.
        data_root: folder that contains the paper's data sets, in CoOp's layout.
    """
    check_values(ListData, name=name)
    root = as_folder(data_root)
    if (rendered := DATASETS.get(name)) is not None:
        what = f"{len(rendered.classes)} classes, rendered when they are read; stands for {rendered.stands_for}"
        return [("data set", name), ("what", what), ("license", "as this package"), ("get", "nothing to get")]
    if (point := packaged_datasets().get(name)) is not None:
        opening = f"known when it is opened, as by 'dear data check {name}'"
        return [("data set", name), ("what", _package(point)), ("opened by", point.value), ("present", opening)]
    if (one := declarations().get(name)) is None:
        raise DataError(f"No data set is called {name!r}.{did_you_mean(name, dataset_names()) or LIST}")
    where = one.base or root
    return [
        ("data set", one.name),
        ("what", ": ".join(filter(None, (one.title, one.counts)))),
        ("page", one.url or "-"),
        ("license", one.licence or "-"),
        ("cite", one.citation or "-"),
        ("get", one.get or "-"),
        *[("layout" if place == 0 else "", f"{where / part}") for place, part in enumerate(one.files())],
        ("present", "yes" if is_present(one, root) else f"no, not below {where}"),
    ]


def _package(point: EntryPoint) -> str:
    """Which installed package has a data set, as far as its metadata say so."""
    return "from an installed package" + (f", {point.dist.name} {point.dist.version}" if point.dist else "")


def check_data(
    name: str | Path,
    data_root: str | Path = DATA,
    *,
    quick: bool = False,
    progress: bool | Callable[[str, int, int], None] | None = None,
) -> Health:
    """Verify a data set: compare it with what it should contain, and open every image once.

    Args:
        name: a data set's name, a folder of class folders, a .csv or .json list, or tar or Parquet files.
        data_root: folder that contains the paper's data sets, in CoOp's layout.
        quick: only read the lists; do not open the images.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    check_values(CheckData, name=str(name) if isinstance(name, Path) else name, quick=quick)
    named, root = str(name), as_folder(data_root)
    declared = declarations().get(named)
    total = sum(count or 0 for count in (declared.train, declared.val, declared.test)) if declared else 0
    with watched(progress), stage(OPENING, total) as advance:
        return check_dataset(named, lambda: open_dataset(named, root), declared, decode=not quick, progress=advance)
