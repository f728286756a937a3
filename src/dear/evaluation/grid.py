"""A grid of cells, one after the other or several at once, resumable: what is done is never done again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache as remember
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from dear import documents
from dear.artefact import TENSORS
from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.dataset import Dataset, Item
from dear.data.descriptions import with_descriptions
from dear.data.splits import few_shot, labels_of
from dear.datasets import open_dataset
from dear.engine.job import Job, describe, fingerprint, make_job, versions
from dear.engine.loop import Metrics
from dear.engine.run import CHECKPOINT, read_run, run_job
from dear.engine.settings import TrainSettings
from dear.errors import DataError, DearError, TrainingError
from dear.evaluation.cells import Cell
from dear.evaluation.evaluate import Evaluation, evaluate_items
from dear.evaluation.results import Backbone, CellResult
from dear.evaluation.tables import to_csv, to_markdown
from dear.evaluation.tested import items_to_test
from dear.files import sha256, write_atomic
from dear.folders import check_ours, held, remove_ours
from dear.loading import make_method
from dear.methods.recipe import RecipeName
from dear.methods.registry import get_method
from dear.model import Model

CELLS, RUNS, OLD = "cells", "runs", ".old"
WATCH = 0.5
"""Seconds between looks at whether the parent lives."""
OURS = ("table.csv", "table.md", CELLS, RUNS)


@dataclass(frozen=True)
class Setting:
    """What all cells of a grid share."""

    out: Path
    clip: str
    pretrained: str | None = None
    data_root: Path | None = None
    descriptions: Path | None = None
    """File with sentences about the classes of the data sets, for methods that read them."""
    device: str = "cpu"
    recipe: RecipeName = "own"
    train: TrainSettings = field(default_factory=TrainSettings)
    cached_views: int = 0
    cache: Path | None = None
    """Folder for the frozen layers' outputs, or None to compute them every time."""
    workers: int = 2
    validate: bool = False
    """Test on images of the training split that were not drawn (and on the validation split), not on test images."""
    threads: int | None = None
    """Threads that each cell computes with on a CPU; by default PyTorch's own number, shared by the jobs.

    Sums in another order differ in their last bits, so only the same number of threads gives the same bytes, be it
    with one job or with several.
    """


def run_grid(
    cells: Sequence[Cell],
    setting: Setting,
    *,
    resume: bool = False,
    overwrite: bool = False,
    jobs: int = 1,
    on_cell: Callable[[int, CellResult], None] | None = None,
    on_step: Callable[[Metrics], None] | None = None,
) -> list[CellResult]:
    """Run the cells that are not done yet; tables are written after every cell.

    What cannot work, a missing data set or an impossible choice, is refused before anything is written or trained.
    """
    check_ours(setting.out, "grid", resume=resume, overwrite=overwrite)
    _check_data(cells, setting)
    _check_methods(cells, setting)
    with held(setting.out, "grid"):
        _prepare(setting.out, overwrite=overwrite)
        found = _run_and_write(cells, setting, jobs, on_cell, on_step)
        shutil.rmtree(setting.out / OLD, ignore_errors=True)
    return found


def _run_and_write(
    cells: Sequence[Cell],
    setting: Setting,
    jobs: int,
    on_cell: Callable[[int, CellResult], None] | None,
    on_step: Callable[[Metrics], None] | None,
) -> list[CellResult]:
    """Run the cells in a folder that is held, writing tables after every one."""
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
    own = torch.get_num_threads()
    threads = setting.threads or max(1, own // jobs)
    if jobs > 1:
        yield from _in_processes(cells, setting, jobs, threads)
        return
    torch.set_num_threads(threads)
    try:
        for index, cell in enumerate(cells):
            yield index, run_cell(cell, setting, on_step=on_step)
    finally:
        torch.set_num_threads(own)


def _in_processes(cells: Sequence[Cell], setting: Setting, jobs: int, threads: int) -> Iterator[tuple[int, CellResult]]:
    pool = ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_begin_process, initargs=(threads, os.getpid())
    )
    waiting = {pool.submit(run_cell, cell, setting): index for index, cell in enumerate(cells)}
    try:
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    except BrokenProcessPool:
        raise TrainingError(
            "A process of the grid died, perhaps for want of memory: resume with --resume and fewer --jobs."
        ) from None
    except KeyboardInterrupt:
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_process(threads: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(threads)


def _end_with(parent: int) -> None:
    """End this process soon after the one that started it, whatever ended that."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)


def _prepare(out: Path, *, overwrite: bool) -> None:
    """Make a grid's folders; starting over sets the old grid aside until the new one is whole."""
    if overwrite:
        remove_ours(out, (OLD,))
        (out / OLD).mkdir()
        for name in OURS:
            if (out / name).exists():
                (out / name).replace(out / OLD / name)
    for part in (CELLS, RUNS):
        (out / part).mkdir(exist_ok=True)


def _check_data(cells: Sequence[Cell], setting: Setting) -> None:
    """Open all data sets; name every problem at once."""
    forget_data()
    problems: list[str] = []
    called: dict[str, str] = {}
    for source in dict.fromkeys(name for cell in cells for name in (cell.data, *(test[0] for test in cell.tests))):
        try:
            dataset = _dataset(source, setting.data_root, setting.descriptions)
            if any(cell.data == source for cell in cells):
                with_descriptions(dataset, setting.descriptions)
        except DataError as error:
            problems.append(str(error))
            continue
        if not dataset.train and any(cell.data == source for cell in cells):
            problems.append(f"{dataset.name} has no training images: it can only be tested on.")
        if (other := called.setdefault(dataset.name, source)) != source:
            problems.append(f"{other} and {source} would both be called {dataset.name}: rename one of them.")
    if not problems:
        problems = list(dict.fromkeys(_untestable(cells, setting)))
    if len(problems) == 1:
        raise DataError(problems[0])
    if problems:
        raise DataError(f"{len(problems)} data sets cannot be used:\n- " + "\n- ".join(problems))


def _untestable(cells: Sequence[Cell], setting: Setting) -> Iterator[str]:
    for cell in cells:
        for name, half in cell.tests:
            try:
                _tested(name, half, setting.data_root, setting.validate, cell.shots, cell.seed)
            except DataError as error:
                yield str(error)


def _check_methods(cells: Sequence[Cell], setting: Setting) -> None:
    """Build every method with every choice once."""
    clip = _clip(setting.clip, setting.pretrained, setting.device)
    for cell in {(cell.method, cell.choices): cell for cell in reversed(cells)}.values():
        if get_method(cell.method).needs.companions:
            _job(cell, setting).build(clip)
        else:
            make_method(cell.method, clip, dict(cell.choices), seed=cells[0].seed)


def run_cell(cell: Cell, setting: Setting, *, on_step: Callable[[Metrics], None] | None = None) -> CellResult:
    """Train and test one cell, or read what was found when it was done before."""
    clip = _clip(setting.clip, setting.pretrained, setting.device)
    job = _job(cell, setting)
    trained = describe(job, job.build(clip))
    path, mark = setting.out / CELLS / f"{cell.slug}.json", _mark(trained, cell, setting)
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
    tests = [_test(model, cell, test, setting) for test in cell.tests]
    adapter = folder / TENSORS
    result = CellResult(
        protocol=cell.protocol,
        method=cell.method,
        variant=cell.variant,
        data=job.dataset.name,
        seed=cell.seed,
        shots=cell.shots,
        tested_on="validation" if setting.validate else "test",
        recipe=setting.recipe,
        epochs=job.resolved.epochs if progress.step else None,
        cached_views=setting.cached_views,
        readouts=dict(model.method.readouts),  # type: ignore[arg-type]
        scores=tuple(found.scores for found in tests),
        weights=tests[0].weights,
        parameters=sum(parameter.numel() for parameter in model.trainable().values()),
        artefact_bytes=adapter.stat().st_size,
        seconds=round(time.monotonic() - start, 2),
        steps=progress.step,
        skipped=progress.skipped,
        adapter_sha256=sha256(adapter.read_bytes()) if model.method.state_dict() else None,
        threads=torch.get_num_threads(),
        versions=versions(),
        backbone=Backbone(name=clip.name, pretrained=clip.pretrained, weights_sha256=clip.weights_sha256),
        fingerprint=mark,
    )
    write_atomic(path, result.to_json().encode())
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


def forget_data() -> None:
    """Look at data sets anew: files may have changed since they were looked at."""
    _dataset.cache_clear()
    _tested.cache_clear()


def done_before(cell: Cell, setting: Setting) -> CellResult | None:
    """What a cell found when it was run with exactly this setting, on these images; None where it has to be run."""
    job = _job(cell, setting)
    trained = describe(job, job.build(_clip(setting.clip, setting.pretrained, setting.device)))
    return _done(setting.out / CELLS / f"{cell.slug}.json", _mark(trained, cell, setting))


def _job(cell: Cell, setting: Setting) -> Job:
    return make_job(
        with_descriptions(_dataset(cell.data, setting.data_root), setting.descriptions),
        shots=cell.shots,
        seed=cell.seed,
        half=cell.half,
        method=cell.method,
        config=dict(cell.choices),
        recipe=setting.recipe,
        protocol=cell.protocol,
        train=setting.train,
        cached_views=setting.cached_views,
        validate=setting.validate,
    )


def _mark(trained: dict[str, Any], cell: Cell, setting: Setting) -> str:
    """Changes with everything that decides a cell's scores: the training, and what is tested among which classes."""
    place = setting.data_root, setting.validate, cell.shots, cell.seed
    tests = [[name, half, _tested(name, half, *place)[1]] for name, half in cell.tests]
    marked = {**trained, "protocol": cell.protocol, "tests": tests, "validate": setting.validate}
    if setting.descriptions is not None:
        told = [_dataset(name, setting.data_root, setting.descriptions).descriptions for name, _ in cell.tests]
        marked["descriptions"] = sha256(json.dumps(told, sort_keys=True).encode())
    return fingerprint(marked)


@remember
def _tested(
    name: str, half: Any, root: Path | None, validate: bool, shots: int, seed: int
) -> tuple[tuple[Item, ...], str]:
    """What a cell tests, and a hash of that; what was drawn matters only where training images are tested."""
    dataset = _dataset(name, root)
    if dataset.test and not validate and (shots or seed):
        return _tested(name, half, root, validate, 0, 0)
    items = items_to_test(dataset, half, drawn=few_shot(dataset.train, shots, seed) if shots else (), validate=validate)
    labels = labels_of(dataset, half)
    images = [(item.id, item.label, dataset.fingerprint(item.id)) for item in items]
    content = [dataset.class_names[labels.start : labels.stop], dataset.template, images]
    return items, sha256(json.dumps(content).encode())


def _test(model: Model, cell: Cell, test: tuple[str, Any], setting: Setting) -> Evaluation:
    name, half = test
    dataset = _dataset(name, setting.data_root, setting.descriptions)
    items, _ = _tested(name, half, setting.data_root, setting.validate, cell.shots, cell.seed)
    labels = labels_of(dataset, half)
    names = dataset.class_names[labels.start : labels.stop]
    view = model.for_classes(dataset.classes(names))
    return evaluate_items(view, dataset, items, half=half, cache=setting.cache, workers=setting.workers)


def _done(path: Path, mark: str) -> CellResult | None:
    """What was found before, if it was found with the same settings."""
    try:
        found = CellResult.from_json(documents.read_text(path, error=DataError), where=str(path))
    except (OSError, UnicodeDecodeError, DearError):
        return None
    return found if found.fingerprint == mark else None


@remember
def _clip(name: str, pretrained: str | None, device: str) -> FrozenClip:
    return load_clip(name, pretrained, device)


@remember
def _dataset(name: str, root: Path | None, descriptions: Path | None = None) -> Dataset:
    return with_descriptions(open_dataset(name, root), descriptions, required=False)


def _was_begun(folder: Path, mark: str) -> bool:
    """Whether a folder holds a run of the same job, to be resumed."""
    try:
        return bool(read_run(folder)["fingerprint"] == mark)
    except DearError:
        return False
