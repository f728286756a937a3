"""A grid of cells, one after the other or several at once, resumable: what is done is never done again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache as remember
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from dear.artefact import TENSORS
from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.catalog import open_dataset
from dear.data.dataset import Dataset
from dear.engine.evaluate import evaluate
from dear.engine.fit import items_to_test, labels_of, make_job
from dear.engine.run import CHECKPOINT, describe, fingerprint, read_run, run_job, versions
from dear.engine.train import Metrics, TrainSettings
from dear.errors import DearError
from dear.files import sha256, write_atomic
from dear.methods.base import Method
from dear.protocols.cells import Cell
from dear.protocols.results import Backbone, CellResult, Scores
from dear.protocols.tables import to_csv, to_markdown

CELLS, RUNS = "cells", "runs"


@dataclass(frozen=True)
class Setting:
    """What all cells of a grid share."""

    out: Path
    clip: str
    pretrained: str | None = None
    root: Path | None = None
    device: str = "cpu"
    train: TrainSettings = field(default_factory=TrainSettings)
    cached_views: int = 0
    cache: Path | None = None
    """Folder for prefixes, or None to compute them every time."""
    workers: int = 2
    validate: bool = False
    """Test on images of the training split that were not drawn (and on the validation split), not on test images."""


def run_grid(
    cells: Sequence[Cell],
    setting: Setting,
    *,
    jobs: int = 1,
    on_cell: Callable[[int, CellResult], None] | None = None,
    on_step: Callable[[Metrics], None] | None = None,
) -> list[CellResult]:
    """Run the cells that are not done yet; tables are written after every cell.

    With several jobs each is a process with an equal share of the cores.
    """
    for folder in (CELLS, RUNS):
        (setting.out / folder).mkdir(parents=True, exist_ok=True)
    results: dict[int, CellResult] = {}

    def keep(index: int, result: CellResult) -> None:
        results[index] = result
        ordered = [results[i] for i in sorted(results)]
        write_atomic(setting.out / "table.csv", to_csv(ordered).encode())
        write_atomic(setting.out / "table.md", to_markdown(ordered).encode())
        if on_cell:
            on_cell(len(results), result)

    for index, result in _run_all(cells, setting, jobs, on_step):
        keep(index, result)
    return [results[i] for i in sorted(results)]


def _run_all(
    cells: Sequence[Cell], setting: Setting, jobs: int, on_step: Callable[[Metrics], None] | None
) -> Iterator[tuple[int, CellResult]]:
    if jobs == 1:
        for index, cell in enumerate(cells):
            yield index, run_cell(cell, setting, on_step=on_step)
        return
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        waiting = {pool.submit(run_cell, cell, setting): index for index, cell in enumerate(cells)}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run_cell(cell: Cell, setting: Setting, *, on_step: Callable[[Metrics], None] | None = None) -> CellResult:
    """Train and test one cell, or read what was found when it was done before."""
    clip, dataset = _clip(setting.clip, setting.pretrained, setting.device), _dataset(cell.data, setting.root)
    job = make_job(
        dataset,
        shots=cell.shots,
        seed=cell.seed,
        half=cell.half,
        method=cell.method,
        choices=dict(cell.choices),
        train=setting.train,
        cached_views=setting.cached_views,
    )
    trained = describe(job, job.build(clip))
    description = {
        **trained,
        "protocol": cell.protocol,
        "tests": [list(test) for test in cell.tests],
        "validate": setting.validate,
    }
    path, mark = setting.out / CELLS / f"{cell.slug}.json", fingerprint(description)
    if (done := _done(path, mark)) is not None:
        return done
    start = time.monotonic()
    folder = setting.out / RUNS / cell.slug
    same = _was_begun(folder, fingerprint(trained))
    model, progress = run_job(
        job,
        clip,
        folder,
        resume=same,
        overwrite=not same,
        cache=setting.cache,
        workers=setting.workers,
        on_step=on_step,
    )
    result = CellResult(
        protocol=cell.protocol,
        method=cell.method,
        variant=cell.variant,
        data=cell.data,
        seed=cell.seed,
        shots=cell.shots,
        scores=tuple(_test(model, cell, test, setting) for test in cell.tests),
        alpha=_alpha(model),
        attributes=tuple(getattr(model, "attributes", ())),
        seconds=round(time.monotonic() - start, 2),
        steps=progress.step,
        skipped=progress.skipped,
        adapter_sha256=sha256((folder / TENSORS).read_bytes()) if model.trainable() else None,
        versions=versions(),
        backbone=Backbone(name=clip.name, pretrained=clip.pretrained, weights_sha256=clip.weights_sha256),
        fingerprint=mark,
    )
    write_atomic(path, result.to_json().encode())
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


def _test(model: Method, cell: Cell, test: tuple[str, Any], setting: Setting) -> Scores:
    name, half = test
    dataset = _dataset(name, setting.root)
    items = items_to_test(dataset, half, shots=cell.shots, seed=cell.seed, validate=setting.validate)
    labels = labels_of(dataset, half)
    model.set_classes(dataset.class_names[labels.start : labels.stop], dataset.template)
    found = evaluate(model, dataset, items, part=half, cache=setting.cache, workers=setting.workers)
    return found.scores


def _alpha(model: Method) -> tuple[float, ...]:
    alpha = getattr(model, "alpha", None)
    return tuple(round(value, 6) for value in alpha.tolist()) if alpha is not None else ()


def _done(path: Path, mark: str) -> CellResult | None:
    """What was found before, if it was found with the same settings."""
    try:
        found = CellResult.from_json(path.read_text(encoding="utf-8"), where=str(path))
    except (OSError, UnicodeDecodeError, DearError):
        return None
    return found if found.fingerprint == mark else None


@remember
def _clip(name: str, pretrained: str | None, device: str) -> FrozenClip:
    return load_clip(name, pretrained, device)


@remember
def _dataset(name: str, root: Path | None) -> Dataset:
    return open_dataset(name, root)


def _was_begun(folder: Path, mark: str) -> bool:
    """Whether a folder holds a run of the same job, to be gone on with."""
    try:
        return bool(read_run(folder)["fingerprint"] == mark)
    except DearError:
        return False
