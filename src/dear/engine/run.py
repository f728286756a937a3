"""A run: a job, the folder it lives in, and training it to its end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from dear.backbone.clip import FrozenClip
from dear.backbone.frozen import PLAIN
from dear.config import whole_number
from dear.data.dataset import Dataset, Item
from dear.data.open import refuse_inside
from dear.data.splits import shots_to_json
from dear.engine.checkpoint import Progress
from dear.engine.feature_cache import cached_views, fixed_views
from dear.engine.feature_sets import Problems, draw_for, held_images, unread_classes
from dear.engine.feed import Feed, Read, live_views
from dear.engine.job import Job, describe, fingerprint, versions
from dear.engine.loop import Metrics, check_whole_batch, train
from dear.engine.ranks import Ranks, join
from dear.engine.run_record import RunRecord
from dear.errors import ArtefactError, ConfigError, DataError, DearError, TrainingError, option
from dear.methods.base import Draw
from dear.model.artefact import MANIFEST, TENSORS, files_of_adapter
from dear.model.model import Model
from dear.progress.stages import stage
from dear.roles.rolemap import MapRecord
from dear.storage import documents
from dear.storage.files import read_regular, sync_folder, write_atomic
from dear.storage.locks import LOCK, MARKER, check_ours, held, remove_leftovers, remove_ours

RUN, SHOTS, METRICS, CHECKPOINT = "run.json", "shots.json", "metrics.jsonl", "checkpoint.safetensors"
NEXT, MOVING = ".next", ".moving"
"""Where a run is made that will replace the one that is there."""
OURS = (MANIFEST, TENSORS, CHECKPOINT, METRICS, SHOTS, RUN)
"""What starting again removes, in this order: what is left by a kill in between still says what it belongs to."""
JUDGED = 64
"""Held-out images that are classified at once."""


def run_job(
    job: Job,
    clip: FrozenClip,
    folder: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    cache: Path | None = None,
    workers: int = 2,
    on_step: Callable[[Metrics], None] | None = None,
    on_cache: Callable[[int], None] | None = None,
) -> tuple[Model, Progress]:
    """Train a job to its end. With a folder, nothing is lost: stop it at any moment and resume.

    Under `torchrun` every process trains the same model; the first one writes.
    """
    whole_number("workers", workers)
    if job.cached_views and cache is None:
        raise ConfigError(f"Cached views need a folder: give {option(cache='FOLDER')}.")
    refuse_inside(job.dataset, folder, cache)
    model, ranks = job.build(clip), join(clip.device)
    if job.half != "all":  # the other half will be tested: what cannot be a prompt is found before training
        clip.text.tokenize(job.dataset.classes().prompts())
    check_whole_batch(model.method, job.train.micro_batch, ranks.world)
    how: dict[str, Any] = {"cache": cache, "workers": workers, "on_step": on_step, "on_cache": on_cache}
    if folder is None:
        return model, _to_its_end(job, model, None, ranks, resuming=False, **how)
    if ranks.is_first:
        with _one_sentence(folder):
            check_ours(folder, "run", resume=resume, overwrite=overwrite)
    with held(folder, "run") if ranks.is_first else nullcontext():
        if ranks.is_first:
            _finish_moving(folder)
        ranks.wait()
        work = folder / NEXT if _works_beside(folder, resume=resume, overwrite=overwrite) else folder
        if ranks.is_first:
            _begin(work, job, model, folder, resume=resume, overwrite=overwrite)
        ranks.wait()
        resuming = resume and (work / CHECKPOINT).is_file()
        progress = _to_its_end(job, model, work, ranks, resuming=resuming, **how)
        if ranks.is_first:
            with _one_sentence(folder):
                model.save_pretrained(work, overwrite=True)
                _put_in_place(work, folder)
        ranks.wait()
    return model, progress


def _live(job: Job, model: Model, items: Sequence[Item]) -> Read:
    """New views of the images in every epoch."""
    clip, needs, crop = model.clip, model.method.needs, job.resolved.crop
    plain = clip.preprocess_eval if any(name.startswith(PLAIN) for name in needs.training) else None
    transform = replace(clip.preprocess_train, scale=crop)
    return live_views(job.dataset, items, transform, job.seed, views=needs.views, plain=plain)


def _works_beside(folder: Path, *, resume: bool, overwrite: bool) -> bool:
    """Whether a run is made beside the one that is there, which stays whole until its successor is."""
    begun = (folder / NEXT / RUN).is_file()
    return begun if resume else overwrite and (folder / RUN).is_file()


def _finish_moving(folder: Path) -> None:
    """Finish what a killed process began: a run beside the old one that bears a manifest is whole."""
    work = folder / NEXT
    if (work / MANIFEST).is_file():
        _put_in_place(work, folder)
    elif work.is_dir() and not (work / RUN).is_file():
        shutil.rmtree(work)


def _put_in_place(work: Path, folder: Path) -> None:
    """Move a whole run to where the old one was; the manifest, which vouches for the rest, comes last."""
    if work == folder:
        return
    new = sorted((path for path in work.iterdir() if path.is_file()), key=lambda path: path.name == MANIFEST)
    if not (work / MOVING).exists():
        stale = {*OURS, *files_of_adapter(folder)}
        remove_ours(folder, sorted(stale - {path.name for path in new}))
        (work / MOVING).touch()  # from here on, a file that is not in `work` has been moved
    for path in new:
        if path.name not in (MARKER, LOCK, MOVING):
            path.replace(folder / path.name)
    shutil.rmtree(work)
    sync_folder(folder)


def _to_its_end(
    job: Job, model: Model, folder: Path | None, ranks: Ranks, *, resuming: bool, workers: int, **how: Any
) -> Progress:
    """Everything between an untrained model and a finished one: begin, steps, finish."""
    items, kept_back = job.split(model.method)
    problems: Problems = {}
    stored = {name: how[name] for name in ("cache", "on_cache")}
    draw = draw_for(job, model, items, ranks=ranks, workers=workers, problems=problems, **stored)
    held = held_images(model, job.dataset, kept_back, seed=job.seed, workers=workers, problems=problems)
    if draw is not None and not resuming:
        model.method.begin(model.clip, draw)
    judge = partial(_accuracy, model, held) if held is not None else None
    progress = _train(job, model, items, folder, ranks, resuming, judge=judge, workers=workers, **how)
    if draw is not None:
        model.method.finish(model.clip, draw, held)
    told = (*problems, *unread_classes(job, items, draw))
    return replace(progress, skipped=progress.skipped + len(problems), problems=told)


@torch.no_grad()
def _accuracy(model: Model, held: Draw) -> float:
    """Share of held-out images that the model gets right."""
    right = 0
    for first in range(0, held.labels.shape[0], JUDGED):
        part = {name: tensor[first : first + JUDGED] for name, tensor in held.image.items()}
        right += int((model(given=part).logits.argmax(1) == held.labels[first : first + JUDGED]).sum())
    return right / held.labels.shape[0]


def _views(
    job: Job,
    model: Model,
    items: Sequence[Item],
    ranks: Ranks,
    *,
    cache: Path | None,
    workers: int,
    on_cache: Callable[[int], None] | None,
) -> Read:
    """What is trained on of each image: always the same, stored views in turn, or new views in every epoch."""
    recipe = job.resolved
    if not recipe.augment:
        return fixed_views(model, job.dataset, items, workers=workers)
    if not job.cached_views or cache is None:
        return _live(job, model, items)
    how: dict[str, Any] = {"views": job.cached_views, "seed": job.seed, "crop": recipe.crop, "cache": cache}
    return cached_views(model, job.dataset, items, **how, workers=workers, ranks=ranks, progress=on_cache)


def _train(
    job: Job,
    model: Model,
    items: Sequence[Item],
    folder: Path | None,
    ranks: Ranks,
    resuming: bool,
    *,
    judge: Callable[[], float] | None,
    cache: Path | None,
    workers: int,
    on_step: Callable[[Metrics], None] | None,
    on_cache: Callable[[int], None] | None,
) -> Progress:
    recipe, own = job.resolved, model.method.recipe
    if not model.trainable() or not all(one.epochs or one.steps_per_shot for one in (recipe, own)):
        return Progress()  # a method without gradient steps has none by any recipe
    read = _views(job, model, items, ranks, cache=cache, workers=workers, on_cache=on_cache)
    feed = Feed(
        read,
        [item.label for item in items],
        batch_size=recipe.batch_size,
        seed=job.seed,
        workers=workers,
        ranks=ranks,
        drop_last=recipe.drop_last,
        one_class=recipe.one_class,
    )
    log = StepLog(folder / METRICS, resuming) if folder and ranks.is_first else None
    with stage("training", done=None) as advance:

        def tell(metrics: Metrics) -> None:
            for listener in (log, on_step):
                if listener:
                    listener(metrics)
            advance(metrics["step"], metrics, total=metrics["steps"])

        return train(
            model,
            feed,
            recipe,
            job.train,
            shots=job.shots,
            seed=job.seed,
            checkpoint=folder / CHECKPOINT if folder else None,
            owner=fingerprint(describe(job, model)),
            resume=resuming,
            judge=judge,
            on_step=tell,
        )


def _begin(work: Path, job: Job, model: Model, folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Write down what is being done, or see that it is the same as before."""
    description = describe(job, model)
    with _one_sentence(folder):
        check_ours(folder, "run", resume=resume, overwrite=overwrite)
        if work != folder and not resume and work.exists():
            shutil.rmtree(work)
        work.mkdir(exist_ok=True)
        remove_leftovers(work)
        if resume and (work / RUN).is_file():
            _check_same(work, description)
            return
        if overwrite and work == folder:
            remove_ours(folder, OURS)
    content = {
        "description": description,
        "fingerprint": fingerprint(description),
        "source": {"data": job.dataset.source, "root": job.dataset.root, **_changes(job.dataset)},
        "versions": versions(),
    }
    if (record := MapRecord.of(model.method.files)) is not None:
        content["role_map"] = record.model_dump(mode="json")
    with _one_sentence(work / SHOTS):
        write_atomic(work / SHOTS, shots_to_json(job.dataset, job.items, shots=job.shots, seed=job.seed).encode())
    with _one_sentence(work / RUN):
        write_atomic(work / RUN, documents.as_bytes(RunRecord.encode(content)))


def _changes(dataset: Dataset) -> dict[str, Any]:
    """What was done to a data set since it was opened, if anything was."""
    told = {"renamed": dict(dataset.renamed or {}), "added": list(dataset.added)}
    return {name: value for name, value in told.items() if value}


def _check_same(folder: Path, description: Mapping[str, Any]) -> None:
    """Refuse to resume a run that was begun in another way."""
    before = read_run(folder)["description"]
    if fingerprint(before) == fingerprint(description):
        return
    old, new = _flat(before), _flat(json.loads(json.dumps(description)))
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if differing == ["images_sha256"]:
        raise ConfigError(
            f"{folder} was begun with other training images under the same names: put those back, or start over with "
            f"{option(overwrite=True)}."
        )
    raise ConfigError(
        f"{folder} was begun with other settings ({', '.join(differing)}): resume with the same ones, "
        f"or start over with {option(overwrite=True)}."
    )


def _flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by names such as train.lr."""
    flat: dict[str, Any] = {}
    for key, value in description.items():
        flat |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
    return flat


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Turn a disk's refusal into one sentence."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DearError):
            raise
        raise TrainingError(
            f"{path} cannot be written ({error.strerror or error}); what was written before is whole: "
            f"fix that and resume with {option(resume=True)}."
        ) from error
    except ArtefactError as error:
        told = f"{error} The checkpoint is whole: fix that and resume with {option(resume=True)}."
        raise TrainingError(told) from error


def read_run(folder: Path) -> dict[str, Any]:
    """The entries of a run's record."""
    try:
        content = RunRecord.read(folder / RUN).model_dump(exclude_unset=True)
    except OSError:
        raise DataError(f"{folder} is not a run of 'dear train': it has no {RUN}.") from None
    return {**content, "fingerprint": fingerprint(content["description"])}


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The steps that a run logged, [] if it logged none."""
    path = folder / METRICS
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = []
    for line in documents.read_text(path, error=DataError).splitlines():
        with suppress(DataError):  # a torn line tells of no step
            row = documents.parse(line, where=str(path), what="a log", error=DataError)
            if isinstance(row, dict):
                rows.append({name: value for name, value in row.items() if _is_finite(value)})
    return rows


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or isfinite(value)


class StepLog:
    """Writes one JSON line per step; on resuming, forgets the steps after the checkpoint."""

    def __init__(self, path: Path, resuming: bool) -> None:
        self._path, self._fresh, self._trimmed = path, not resuming, False

    def __call__(self, metrics: Metrics) -> None:
        """Log one step."""
        line = json.dumps(metrics) + "\n"
        with _one_sentence(self._path):
            if not self._trimmed:
                self._trim(before=metrics["step"])
            with self._path.open("ab", buffering=0) as file:
                rest = memoryview(line.encode())
                while rest:
                    rest = rest[file.write(rest) :]

    def _trim(self, before: int) -> None:
        known = b"" if self._fresh or not self._path.exists() else read_regular(self._path)
        kept = [line for line in known.split(b"\n") if _step_of(line) < before]
        write_atomic(self._path, b"".join(line + b"\n" for line in kept))
        self._trimmed = True


def _step_of(line: bytes) -> float:
    """The step a line tells of; a torn line tells of none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")
