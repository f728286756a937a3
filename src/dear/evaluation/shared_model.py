"""A model that several grids of one paper need: cross-dataset, domain and few-shot cells train the same source model.

A cell takes the model of another grid if its training has the same fingerprint, and was done by the same versions with
the same number of threads, so that training it again would give the same bytes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import torch

from dear.backbone.clip import FrozenClip
from dear.engine.job import versions
from dear.engine.run_folder import CHECKPOINT, NEXT, OURS, read_run
from dear.errors import DearError
from dear.evaluation.results import CellResult
from dear.model.artefact import MANIFEST, TENSORS, files_of_adapter
from dear.model.load import load
from dear.model.model import Model
from dear.storage.files import read_regular, sha256, write_atomic
from dear.storage.locks import LOCK, locked, remove_ours

GRIDS, CELLS, RUNS = "grids", "cells", "runs"
"""The folder of a paper's grids; in each grid, the folders of results and of runs."""


class SharedModel(NamedTuple):
    """A trained model, and the result of the cell that trained it."""

    model: Model
    result: CellResult


def shared_model(out: Path, slug: str, fingerprint: str, clip: FrozenClip, folder: Path) -> SharedModel | None:
    """The model that a cell of the same name in another grid of the paper has trained; it is copied to `folder`."""
    if out.parent.name != GRIDS:
        return None
    for grid in sorted(one for one in out.parent.iterdir() if one != out):
        try:
            result, run = CellResult.read(grid / CELLS / f"{slug}.json"), grid / RUNS / slug
            if _is_same(result, run, fingerprint):
                _copy(run, folder)
                return SharedModel(load(folder, clip), result)
        except (OSError, UnicodeDecodeError, DearError):
            continue  # not done, or not readable: it is trained here
    return None


def _is_same(result: CellResult, run: Path, fingerprint: str) -> bool:
    """Whether training again would give the same bytes as the run has."""
    return (
        result.training_seconds is not None
        and result.adapter_sha256 is not None
        and (result.versions, result.threads) == (versions(), torch.get_num_threads())
        and read_run(run)["fingerprint"] == fingerprint
        and result.adapter_sha256 == sha256(read_regular(run / TENSORS))
    )


def _copy(run: Path, folder: Path) -> None:
    """Copy a finished run; the manifest, which vouches for the rest, comes last."""
    with locked(folder, "run"):
        shutil.rmtree(folder / NEXT, ignore_errors=True)
        remove_ours(folder, sorted({*OURS, *files_of_adapter(folder)}))
        files = sorted((one for one in run.iterdir() if one.is_file()), key=lambda one: one.name == MANIFEST)
        for path in files:
            if path.name not in (LOCK, CHECKPOINT):
                write_atomic(folder / path.name, read_regular(path))
