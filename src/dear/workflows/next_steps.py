"""What to type after a training: commands that work with the run as it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear.data.dataset import Dataset
from dear.engine.job import Job
from dear.errors import DataError
from dear.evaluation.test_data import items_to_test
from dear.methods.plugins import added
from dear.methods.registry import get_method
from dear.model.artefact import MANIFEST, read_manifest

IMAGE = "IMAGE"
"""Placeholder for a file if none is known, as with data sets that are rendered."""


def next_commands(job: Job, out: Path) -> str:
    """The next commands as they can be typed, each with a shell comment."""
    run, tested = f"{_word(out)}{_extended()}", _tested(job)
    image = IMAGE if tested is None else _word(_file(job.dataset, tested.id) or IMAGE)
    rows = [(f"dear predict {run} {image}", "what an image shows")]
    if tested is not None:
        half = "" if job.half == "all" or get_method(job.method).needs.novel else f" --half {job.half}"
        rows = [
            (f"dear eval {run}{half}", "how good it is, beside plain CLIP"),
            (f"dear report {run}", "a page about it, with images"),
            *rows,
        ]
    elif job.dataset.train:
        rows = [(f"dear eval {run} DATA", "how good it is, on a folder of other images"), *rows]
        return "All images were trained on, so none is left to test it with.\nnext:\n" + _remarked(rows)
    return "next:\n" + _remarked(rows)


def _extended() -> str:
    """The options by which methods and data sets of others were added."""
    files, catalogs = added()
    words = [("--import", file) for file in files] + [("--catalog", file) for file in catalogs]
    return "".join(f" {name} {_word(Path(file))}" for name, file in words)


def _remarked(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(command) for command, _ in rows)
    return "\n".join(f"  {command:<{width}}  # {remark}" for command, remark in rows)


def _word(path: Path | str) -> str:
    """A path as a shell takes it."""
    return shlex.quote(str(path))


def _tested(job: Job) -> Any:
    """The first image that `dear eval` would test; None if there is none."""
    try:
        return items_to_test(job.dataset, "all", trained_items=job.items)[0]
    except DataError:
        return None


def _file(dataset: Dataset, item_id: str) -> Path | None:
    """The file of an image, as it is reached from here."""
    places = (Path(dataset.source), Path(dataset.source).parent) if dataset.source else ()
    found = next((place / item_id for place in places if (place / item_id).is_file()), None)
    here = Path.cwd()
    return found.relative_to(here) if found and found.is_relative_to(here) else found


def _adapter_bytes(folder: Path) -> int:
    return (folder / MANIFEST).stat().st_size + sum(entry.bytes for entry in read_manifest(folder).files.values())


def adapter_size(folder: Path) -> str:
    """The size of a saved adapter, for people."""
    size = _adapter_bytes(folder)
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:,.0f} kB"
