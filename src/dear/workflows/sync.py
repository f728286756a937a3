"""Copy the results of a grid, or an adapter, to and from storage such as s3://, so that several machines share them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dear.errors import DataError
from dear.progress.display import watched
from dear.progress.stages import stage
from dear.storage.files import as_folder
from dear.storage.remote import Copied, copy_both_ways


def sync(
    folder: str | Path,
    url: str,
    *,
    overwrite: bool = False,
    progress: bool | Callable[[str, int, int], None] | None = None,
) -> Copied:
    """Copy cells and adapters that only one of both places has to the other one, and tables to the storage.

    Runs in progress, checkpoints and caches stay where they are. After `sync`, a grid can be continued on another
    machine: `sync` into a new folder there, then run it with `resume`.

    Args:
        folder: a grid of `dear bench` or `dear compare`, one of the grids of a paper, or a run; a new folder is filled.
        url: an address that fsspec knows, such as "s3://bucket/grid" or "file:///shared/grid".
        overwrite: replace files in the storage that differ from those of the folder.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    place = as_folder(folder)
    if place.exists() and not place.is_dir():
        raise DataError(f"{place} is not a folder: give the folder of a grid or of a run.")
    with watched(progress), stage("copying files", done=None) as advance:
        return copy_both_ways(place, url, lambda done, total: advance(done, total=total), overwrite=overwrite)
