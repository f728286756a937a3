"""One cell of a grid: train, test, record the result; a cell that is done is read instead."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dear.data.dataset import Item
from dear.data.splits import Half, labels_of, training_shots
from dear.engine.feature_cache import encoding_clock
from dear.engine.job import Job, changed_settings, describe, fingerprint, same_config, versions
from dear.engine.loop import Metrics, resolve_precision
from dear.engine.ranks import local_device
from dear.engine.run import Reading, train_model
from dear.engine.run_folder import CHECKPOINT, NEXT, RUN, read_run
from dear.engine.step_logs import step_log
from dear.engine.workspace import Prepared, Workspace
from dear.errors import DearError
from dear.evaluation.cells import Cell, fit_options
from dear.evaluation.evaluate import Evaluation, evaluate_items
from dear.evaluation.memory import watch_peak
from dear.evaluation.results import Backbone, CellResult, TrainingRecord
from dear.evaluation.shared_model import CELLS as CELLS
from dear.evaluation.shared_model import RUNS as RUNS
from dear.evaluation.shared_model import shared_model
from dear.evaluation.test_data import items_to_test
from dear.model.artefact import TENSORS
from dear.model.model import Model
from dear.options.fields import IfExists
from dear.options.parts import Bench
from dear.roles.rolemap import MapRecord
from dear.storage.files import sha256, shown, write_atomic


class Tested(NamedTuple):
    """The images that a cell tests, and a hash of them and their classes."""

    items: tuple[Item, ...]
    sha256: str


OnStep = Callable[[Metrics], None]
Place = Callable[[Path, str], AbstractContextManager[Path]]
"""Where a run is made: yields the folder to work in, and puts it in its place when it is whole."""


def in_place(folder: Path, mark: str) -> AbstractContextManager[Path]:
    """Make a run where it belongs."""
    return nullcontext(folder)


def run_cell(
    cell: Cell, options: Bench, workspace: Workspace, on_step: OnStep | None = None, *, place: Place = in_place
) -> CellResult:
    """Train and test one cell, or read its result if it is done; `place` says where to make the run."""
    prepared = _prepared(cell, options, workspace)
    trained = describe(*prepared)
    path, mark = options.out / CELLS / f"{cell.slug}.json", _mark(trained, cell, options, workspace)
    job, folder, what = prepared.job, options.out / RUNS / cell.slug, fingerprint(trained)
    if (done := _done(path, mark, trained)) is not None:
        if _was_begun(folder, what, trained):
            (folder / CHECKPOINT).unlink(missing_ok=True)  # left if the process died after it had written the result
        return _renamed(done, *prepared)
    start, peak = time.monotonic(), watch_peak(local_device(options.device))
    with encoding_clock() as encoding, place(folder, what) as work, step_log(options.log, work, on_step) as each_step:
        made = _trained(prepared, trained, cell.slug, work, options, each_step)
        begun = time.monotonic() - encoding()
        model, training_seconds = made.model, begun - start if made.seconds is None else made.seconds
        tests = [_test(model, cell, test, options, workspace) for test in cell.tests]
    adapter, clip, memory = folder / TENSORS, model.clip, peak()
    result = CellResult(
        protocol=cell.protocol,
        method=cell.method,
        variant=cell.variant,
        data=job.dataset.name,
        seed=cell.seed,
        shots=cell.shots,
        tested_on="validation" if options.validation else "test",
        recipe=options.recipe,
        epochs=job.resolved.epochs if made.steps else None,
        training_images=job.images_per_class,
        shots_file="" if options.shots_file is None else shown(options.shots_file.name),
        cached_views=job.cached_views,
        training=_training(job, model),
        readouts=dict(model.method.readouts),  # type: ignore[arg-type]
        scores=tuple(found.scores for found in tests),
        weights=tests[0].weights,
        parameters=made.parameters,
        peak_memory_mb=None if memory is None else round(max(memory, made.memory), 1),
        artefact_bytes=adapter.stat().st_size,
        seconds=round(training_seconds + time.monotonic() - encoding() - begun, 2),
        encoding_seconds=round(encoding(), 2),
        training_seconds=round(training_seconds, 2),
        shared=made.seconds is not None,
        steps=made.steps,
        skipped=made.skipped,
        adapter_sha256=sha256(adapter.read_bytes()) if model.method.state_dict() else None,
        threads=torch.get_num_threads(),
        versions=versions(),
        backbone=Backbone(name=clip.name, pretrained=clip.pretrained, weights_sha256=clip.weights_sha256),
        settings=changed_settings(trained),
        files=trained["files_sha256"],
        resources=model.method.resources(),
        role_map=MapRecord.of(model.method.files),
        config_sha256=trained["backbone"]["config_sha256"],
        fingerprint=mark,
    )
    write_atomic(path, result.to_json().encode())
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


class _Trained(NamedTuple):
    """A trained model, and what is known of its training."""

    model: Model
    steps: int
    skipped: int
    parameters: int
    seconds: float | None = None
    """Seconds that another grid of the same paper spent on it; None if it was trained now."""
    memory: float = 0.0
    """Peak memory there in MB."""


def _trained(
    prepared: Prepared,
    trained: Mapping[str, Any],
    slug: str,
    folder: Path,
    options: Bench,
    on_step: Callable[[Metrics], None] | None,
) -> _Trained:
    """Train a cell's model in a folder, unless another grid of the same paper has trained the same one."""
    job, model = prepared
    work = folder / NEXT if (folder / NEXT / RUN).is_file() else folder
    mark = fingerprint(trained)
    begun = _was_begun(work, mark, trained)
    shared = None if begun else shared_model(options.out, slug, mark, model.clip, folder)
    if shared is not None:
        one = shared.result
        counts = one.steps, one.skipped, one.parameters or 0
        return _Trained(shared.model, *counts, one.training_seconds, one.peak_memory_mb or 0.0)
    reading = Reading(options.workers, options.cache_folder(options.out))
    how: IfExists = "resume" if begun else "overwrite"
    progress = train_model(job, model, folder, if_exists=how, reading=reading, on_step=on_step)
    parameters = sum(parameter.numel() for parameter in model.trainable().values())
    return _Trained(model, progress.step, progress.skipped, parameters)


def done_before(cell: Cell, options: Bench, workspace: Workspace) -> CellResult | None:
    """The result of a cell that was run with the same options on the same images; None if it has to be run."""
    prepared = _prepared(cell, options, workspace)
    trained = describe(*prepared)
    mark = _mark(trained, cell, options, workspace)
    done = _done(options.out / CELLS / f"{cell.slug}.json", mark, trained)
    return done and _renamed(done, *prepared)


def tested(cell: Cell, name: str, half: Half, options: Bench, workspace: Workspace) -> Tested:
    """What a cell tests of a data set; which images were sampled matters only if training images are tested."""
    dataset = workspace.dataset(name, options.data_root)
    matters = options.validation or not dataset.test
    shots, seed = (cell.shots, cell.seed) if matters else (0, 0)

    def find() -> Tested:
        sampled: tuple[Item, ...] = ()
        if shots:
            file = options.shots_file if name == cell.data else None
            listed = workspace.listed(dataset, file, shots, seed, cell.half)
            sampled = training_shots(dataset, shots, seed, options.test_share) if listed is None else listed
        items = items_to_test(dataset, half, trained_items=sampled, validate=options.validation)
        labels = labels_of(dataset, half)
        images = [(item.id, item.label, dataset.content_of(item.id)) for item in items]
        content = [dataset.names_in(labels), dataset.template, images]
        return Tested(items, sha256(json.dumps(content).encode()))

    asked = (options.data_root, options.validation, options.test_share, options.shots_file)
    return workspace.remember(("tested", name, half, asked, shots, seed), find)


def _renamed(done: CellResult, job: Job, model: Model) -> CellResult:
    """A result under the recipe's name that is asked for now: its fingerprint says that all values are the same."""
    return done.model_copy(
        update={
            "recipe": job.recipe,
            "training": _training(job, model),
            "role_map": MapRecord.of(model.method.files),
            "resources": model.method.resources(),
        }
    )


def _training(job: Job, model: Model) -> TrainingRecord:
    """How a job is trained, for its result."""
    used, named = job.resolved, job.named
    precision = resolve_precision(job.train.precision, model.clip.device)
    return TrainingRecord(recipe=used, changed_from=None if used == named else named, precision=precision)


def _prepared(cell: Cell, options: Bench, workspace: Workspace) -> Prepared:
    wanted = fit_options(cell, options)
    return workspace.prepare(wanted, protocol=cell.protocol, validate=options.validation)


def _mark(trained: dict[str, Any], cell: Cell, options: Bench, workspace: Workspace) -> str:
    """Changes with everything that decides a cell's scores: the training, and what is tested among which classes."""
    tests = [[name, half, tested(cell, name, half, options, workspace).sha256] for name, half in cell.tests]
    marked = {**trained, "protocol": cell.protocol, "tests": tests, "validate": options.validation}
    if options.descriptions is not None:
        described = [workspace.dataset(name, options.data_root, options.descriptions) for name, _ in cell.tests]
        sentences = [dataset.descriptions for dataset in described]
        marked["descriptions"] = sha256(json.dumps(sentences, sort_keys=True).encode())
    return fingerprint(marked)


def _test(model: Model, cell: Cell, test: tuple[str, Half], options: Bench, workspace: Workspace) -> Evaluation:
    name, half = test
    dataset = workspace.dataset(name, options.data_root, options.descriptions)
    items = tested(cell, name, half, options, workspace).items
    labels = labels_of(dataset, half)
    view = model.for_classes(dataset.classes(dataset.names_in(labels)))
    cache = options.cache_folder(options.out)
    return evaluate_items(view, dataset, items, half=half, cache=cache, workers=options.workers, also=cell.also)


def _done(path: Path, mark: str, trained: Mapping[str, Any]) -> CellResult | None:
    """The result in a file, if it was found with the same settings."""
    try:
        found = CellResult.read(path)
    except (OSError, UnicodeDecodeError, DearError):
        return None
    return found if found.fingerprint == mark and same_config(found.config_sha256, trained) else None


def _was_begun(folder: Path, mark: str, trained: Mapping[str, Any]) -> bool:
    """Whether a folder contains a run of the same job, to be resumed."""
    try:
        begun = read_run(folder)
    except DearError:
        return False
    return bool(begun["fingerprint"] == mark) and same_config(
        begun["description"]["backbone"].get("config_sha256"), trained
    )
