"""A grid of cells, one after the other or several at once, resumable: what is done is never done again."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache as remember
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.dataset import Dataset, Item
from dear.data.descriptions import with_descriptions
from dear.data.open import open_dataset, refuse_inside
from dear.data.splits import few_shot, labels_of
from dear.engine.job import Job, describe, fingerprint, make_job, prepared, told_settings, versions
from dear.engine.loop import Metrics
from dear.engine.run import CHECKPOINT, read_run, run_job
from dear.errors import REFUSALS, ConfigError, DataError, DearError, TrainingError, is_typed, option
from dear.evaluation.cells import Cell, Setting
from dear.evaluation.eta import RemainingTime
from dear.evaluation.evaluate import Evaluation, evaluate_items
from dear.evaluation.memory import watch_peak
from dear.evaluation.processes import begin_process
from dear.evaluation.results import Backbone, CellResult
from dear.evaluation.tables import to_csv, to_markdown
from dear.evaluation.test_data import items_to_test
from dear.methods.parts.class_identity import shares_classes
from dear.methods.plugins import added
from dear.model.artefact import TENSORS
from dear.model.model import Model
from dear.progress.stages import stage
from dear.roles.rolemap import MapRecord
from dear.storage.files import sha256, write_atomic
from dear.storage.locks import check_ours, held, remove_leftovers, remove_ours

CELLS, RUNS, OLD = "cells", "runs", ".old"
OURS = ("table.csv", "table.md", CELLS, RUNS)


def run_grid(
    cells: Sequence[Cell],
    setting: Setting,
    *,
    resume: bool = False,
    overwrite: bool = False,
    jobs: int = 1,
    on_cell: Callable[[int, CellResult], None] | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    refused: dict[Cell, str] | None = None,
) -> list[CellResult]:
    """Run the cells that are not done yet; tables are written after every cell.

    What cannot work, a missing data set or an impossible choice, is refused before anything is written or trained.
    With `refused`, a cell that its method refuses does not end the grid: its sentence is put there instead.
    """
    check_ours(setting.out, "grid", resume=resume, overwrite=overwrite)
    _check_data(cells, setting)
    cells = _check_methods(cells, setting, refused)
    with held(setting.out, "grid"):
        check_ours(setting.out, "grid", resume=resume, overwrite=overwrite)  # another one may just have ended
        _prepare(setting.out, overwrite=overwrite)
        found = _run_and_write(cells, setting, jobs, on_cell, on_step, refused)
        shutil.rmtree(setting.out / OLD, ignore_errors=True)
    return found


def _run_and_write(
    cells: Sequence[Cell],
    setting: Setting,
    jobs: int,
    on_cell: Callable[[int, CellResult], None] | None,
    on_step: Callable[[Metrics], None] | None,
    refused: dict[Cell, str] | None,
) -> list[CellResult]:
    """Run the cells in a folder that is held, writing tables after every one."""
    results: dict[int, CellResult] = {}
    pace, began = RemainingTime((cell.method for cell in cells), jobs), time.time()

    def keep(index: int, result: CellResult) -> None:
        results[index] = result
        new = _is_newer(setting.out / CELLS / f"{cells[index].slug}.json", began)
        pace.add(cells[index].method, result.seconds if new else None)
        advance(len(results), left=pace.left())
        ordered = [results[i] for i in sorted(results)]
        write_atomic(setting.out / "table.csv", to_csv(ordered).encode())
        write_atomic(setting.out / "table.md", to_markdown(ordered).encode())
        if on_cell:
            on_cell(len(results), result)

    with stage("cells", len(cells), outer=True) as advance:
        for index, run in _run_all(cells, setting, jobs, on_step):
            try:
                result = run()
            except REFUSALS as error:
                if refused is None:
                    raise
                refused[cells[index]] = str(error)
                pace.add(cells[index].method, None)
            else:
                keep(index, result)
    return [results[i] for i in sorted(results)]


def _is_newer(path: Path, than: float) -> bool:
    """Whether a file was written since then; a file system may count in whole seconds."""
    return path.is_file() and path.stat().st_mtime >= than - 1


def _run_all(
    cells: Sequence[Cell], setting: Setting, jobs: int, on_step: Callable[[Metrics], None] | None
) -> Iterator[tuple[int, Callable[[], CellResult]]]:
    """What gives each cell's result, or raises what it raised."""
    own = torch.get_num_threads()
    threads = setting.threads or max(1, own // jobs)
    if jobs > 1:
        yield from _in_processes(cells, setting, jobs, threads)
        return
    torch.set_num_threads(threads)
    try:
        for index, cell in enumerate(cells):
            yield index, partial(run_cell, cell, setting, on_step=on_step)
    finally:
        torch.set_num_threads(own)


def _in_processes(
    cells: Sequence[Cell], setting: Setting, jobs: int, threads: int
) -> Iterator[tuple[int, Callable[[], CellResult]]]:
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=get_context("spawn"),
        initializer=begin_process,
        initargs=(threads, os.getpid(), is_typed(), added()),
    )
    waiting = {pool.submit(run_cell, cell, setting): index for index, cell in enumerate(cells)}
    try:
        for done in as_completed(waiting):
            if isinstance(done.exception(), BrokenProcessPool):
                done.result()
            yield waiting[done], done.result
    except BrokenProcessPool:
        raise TrainingError(
            f"A process of the grid died, perhaps for want of memory: resume with {option(resume=True)}, and fewer "
            f"cells at a time, such as {option(jobs=1)}."
        ) from None
    except KeyboardInterrupt:
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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
    remove_leftovers(out / CELLS)


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
        refuse_inside(dataset, setting.out, setting.cache)
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


def _check_methods(cells: Sequence[Cell], setting: Setting, refused: dict[Cell, str] | None) -> list[Cell]:
    """The cells that can be run: every method with every choice is built once and shown classes that it must know."""
    clip = _clip(setting.clip, setting.pretrained, setting.device)
    for name, half in dict.fromkeys(test for cell in cells for test in cell.tests):  # every tested class is a prompt
        dataset = _dataset(name, setting.data_root)
        labels = labels_of(dataset, half)
        clip.text.tokenize(dataset.classes(dataset.names_in(labels)).prompts())
    first: dict[Any, Cell] = {}
    for cell in cells:
        first.setdefault((cell.method, cell.choices), cell)
    why: dict[Any, str] = {}
    for key, cell in first.items():
        try:
            _try_classes(cell, prepared(_job(cell, setting), clip).build(clip), setting)
        except REFUSALS as error:
            if refused is None or len(why) == len(first) - 1:
                raise
            why[key] = str(error)
    refusals = {cell: why[cell.method, cell.choices] for cell in cells if (cell.method, cell.choices) in why}
    if refused is not None:
        refused |= refusals
    return [cell for cell in cells if cell not in refusals]


def _try_classes(cell: Cell, model: Model, setting: Setting) -> None:
    """Show a method two classes of each list that it will be tested on: one that knows only its own says so now."""
    for name, half in cell.tests:
        dataset = _dataset(name, setting.data_root)
        labels = labels_of(dataset, half)
        few = dataset.classes(dataset.names_in(labels)[:2])
        if all(one in model.trained_on for one in few.names) and shares_classes(cell.data, name):
            continue
        if not model.method.needs.novel:
            knows = f"{cell.method} knows only the classes it was trained on"
            raise ConfigError(f"{knows}, but {cell.protocol} tests others: leave it out.")
        model.for_classes(few).frozen_parts()


def run_cell(cell: Cell, setting: Setting, *, on_step: Callable[[Metrics], None] | None = None) -> CellResult:
    """Train and test one cell, or read what was found when it was done before."""
    clip = _clip(setting.clip, setting.pretrained, setting.device)
    job = prepared(_job(cell, setting), clip)
    trained = describe(job, job.build(clip))
    path, mark = setting.out / CELLS / f"{cell.slug}.json", _mark(trained, cell, setting)
    if (done := _done(path, mark)) is not None:
        return done.model_copy(update={"recipe": setting.recipe})  # by another name, but with the same values
    start, peak = time.monotonic(), watch_peak(setting.device)
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
        peak_memory_mb=None if (memory := peak()) is None else round(memory, 1),
        artefact_bytes=adapter.stat().st_size,
        seconds=round(time.monotonic() - start, 2),
        steps=progress.step,
        skipped=progress.skipped,
        adapter_sha256=sha256(adapter.read_bytes()) if model.method.state_dict() else None,
        threads=torch.get_num_threads(),
        versions=versions(),
        backbone=Backbone(name=clip.name, pretrained=clip.pretrained, weights_sha256=clip.weights_sha256),
        settings=told_settings(trained),
        files=trained["files_sha256"],
        role_map=MapRecord.of(model.method.files),
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
    job = prepared(_job(cell, setting), clip := _clip(setting.clip, setting.pretrained, setting.device))
    trained = describe(job, job.build(clip))
    done = _done(setting.out / CELLS / f"{cell.slug}.json", _mark(trained, cell, setting))
    return done and done.model_copy(update={"recipe": setting.recipe})


def _job(cell: Cell, setting: Setting) -> Job:
    other = {"epochs": setting.epochs[cell.method]} if cell.method in setting.epochs else {}
    return make_job(
        with_descriptions(_dataset(cell.data, setting.data_root), setting.descriptions),
        shots=cell.shots,
        seed=cell.seed,
        half=cell.half,
        method=cell.method,
        config=dict(cell.choices),
        recipe=setting.recipe,
        protocol=cell.protocol,
        train=setting.train.model_copy(update=other),
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
    trained_items = few_shot(dataset.train, shots, seed) if shots else ()
    items = items_to_test(dataset, half, trained_items=trained_items, validate=validate)
    labels = labels_of(dataset, half)
    images = [(item.id, item.label, dataset.content_of(item.id)) for item in items]
    content = [dataset.names_in(labels), dataset.template, images]
    return items, sha256(json.dumps(content).encode())


def _test(model: Model, cell: Cell, test: tuple[str, Any], setting: Setting) -> Evaluation:
    name, half = test
    dataset = _dataset(name, setting.data_root, setting.descriptions)
    items, _ = _tested(name, half, setting.data_root, setting.validate, cell.shots, cell.seed)
    labels = labels_of(dataset, half)
    view = model.for_classes(dataset.classes(dataset.names_in(labels)))
    return evaluate_items(view, dataset, items, half=half, cache=setting.cache, workers=setting.workers)


def _done(path: Path, mark: str) -> CellResult | None:
    """What was found before, if it was found with the same settings."""
    try:
        found = CellResult.read(path)
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
