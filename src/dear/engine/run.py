"""Train a job: build its model, feed it images, take the steps, save the adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from dear.backbone.clip import FrozenClip, content_hash
from dear.backbone.frozen import PLAIN
from dear.config import whole_number
from dear.data.dataset import Item
from dear.data.open import refuse_inside
from dear.engine.checkpoint import Progress
from dear.engine.feature_cache import cached_views, fixed_views
from dear.engine.feature_sets import Problems, draw_for, held_images, unread_classes
from dear.engine.feed import Feed, Read, live_views
from dear.engine.job import Job, describe, fingerprint
from dear.engine.loop import Metrics, check_whole_batch, train
from dear.engine.outcome import SeenViews, check_outcome, drawn_states, has_steps
from dear.engine.ranks import Ranks, join
from dear.engine.run_folder import (
    CHECKPOINT,
    METRICS,
    NEXT,
    StepLog,
    begin_run,
    finish_moving,
    one_sentence,
    put_in_place,
    works_beside,
)
from dear.errors import ArtefactError, ConfigError, option
from dear.methods.base import Draw
from dear.model.artefact import MANIFEST, read_adapter
from dear.model.calibration import Calibration
from dear.model.model import Model
from dear.options.fields import IfExists
from dear.progress.stages import stage
from dear.storage.locks import check_ours, locked

JUDGED = 64
"""Held-out images that are classified at once."""


@dataclass(frozen=True)
class Reading:
    """How training images are read: loading threads, the cache folder, and what to call as it is filled."""

    workers: int = 2
    cache: Path | None = None
    on_cache: Callable[[int], None] | None = None


def run_job(
    job: Job,
    clip: FrozenClip,
    folder: Path | None = None,
    *,
    if_exists: IfExists = "refuse",
    cache: Path | None = None,
    workers: int = 2,
    on_step: Callable[[Metrics], None] | None = None,
    on_cache: Callable[[int], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> tuple[Model, Progress]:
    """Build a job's model and train it; see `train_model`."""
    model, reading = job.build(clip), Reading(workers, cache, on_cache)
    progress = train_model(
        job, model, folder, if_exists=if_exists, reading=reading, on_step=on_step, on_warning=on_warning
    )
    return model, progress


def train_model(
    job: Job,
    model: Model,
    folder: Path | None = None,
    *,
    if_exists: IfExists = "refuse",
    reading: Reading | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> Progress:
    """Train a job's untrained model. With a folder, nothing is lost: stop it at any moment and resume.

    Under `torchrun` every process trains the same model; the first one writes. A model whose scores are not finite is
    not saved. `on_warning` is called if the model is clearly worse than plain CLIP on its training images.
    """
    reading, ranks = reading or Reading(), join(model.clip.device)
    whole_number("workers", reading.workers)
    if job.cached_views and reading.cache is None:
        raise ConfigError(f"Cached views need a folder: give {option(cache='FOLDER')}.")
    refuse_inside(job.dataset, folder, reading.cache)
    if job.half != "all":  # the other half will be tested: what cannot be a prompt is found before training
        model.clip.text.tokenize(job.dataset.classes().prompts())
    check_whole_batch(model.method, job.train.micro_batch, ranks.world)
    if folder is None:
        return _train_whole(job, model, None, ranks, reading, resuming=False, on_step=on_step, on_warning=on_warning)
    if ranks.is_first:
        with one_sentence(folder):
            check_ours(folder, "run", resume=if_exists == "resume", overwrite=if_exists == "overwrite")
    with locked(folder, "run") if ranks.is_first else nullcontext():
        if ranks.is_first:
            finish_moving(folder)
        ranks.wait()
        work = folder / NEXT if works_beside(folder, if_exists) else folder
        if ranks.is_first:
            begin_run(work, job, model, folder, if_exists)
        ranks.wait()
        resuming = if_exists == "resume" and (work / CHECKPOINT).is_file()
        progress = _train_whole(
            job, model, work, ranks, reading, resuming=resuming, on_step=on_step, on_warning=on_warning
        )
        if ranks.is_first:
            with one_sentence(folder):
                if if_exists == "resume":
                    model.calibration = _calibration(work, model)
                model.save_pretrained(work, overwrite=True)
                put_in_place(work, folder)
        ranks.wait()
    return progress


def _calibration(folder: Path, model: Model) -> Calibration | None:
    """The calibration of the adapter in a folder, if it is this one: then nothing was left to train."""
    with suppress(ArtefactError):
        saved = read_adapter(folder)
        if content_hash(saved.tensors) == content_hash(dict(model.method.state_dict())):
            return saved.manifest.calibration
    return None


def _live(job: Job, model: Model, items: Sequence[Item]) -> Read:
    """New views of the images in every epoch."""
    clip, needs, crop = model.clip, model.method.needs, job.resolved.crop
    plain = clip.preprocess_eval if any(name.startswith(PLAIN) for name in needs.training) else None
    transform = replace(clip.preprocess_train, scale=crop)
    return live_views(job.dataset, items, transform, job.seed, views=needs.views, plain=plain)


def _train_whole(
    job: Job,
    model: Model,
    folder: Path | None,
    ranks: Ranks,
    reading: Reading,
    *,
    resuming: bool,
    on_step: Callable[[Metrics], None] | None,
    on_warning: Callable[[str], None] | None,
) -> Progress:
    """Everything between an untrained model and a trained one: begin, steps, finish."""
    items, held_back = job.split(model.method)
    problems: Problems = {}
    draw = draw_for(
        job,
        model,
        items,
        ranks=ranks,
        workers=reading.workers,
        cache=reading.cache,
        on_cache=reading.on_cache,
        problems=problems,
    )
    chosen_on = held_images(model, job.dataset, held_back, seed=job.seed, workers=reading.workers, problems=problems)
    if draw is not None and not resuming:
        model.method.begin(model.clip, draw)
    judge = partial(_accuracy, model, chosen_on) if chosen_on is not None else None
    seen = SeenViews()
    progress = _train_steps(
        job, model, items, folder, ranks, reading, seen, resuming=resuming, judge=judge, on_step=on_step
    )
    if draw is not None:
        model.method.finish(model.clip, draw, chosen_on)
    was_checked = resuming and folder is not None and (folder / MANIFEST).is_file()
    if not was_checked and (draw is not None or has_steps(job, model)):
        states = seen.states(model, len(items)) or drawn_states(model, draw)
        check_outcome(job, model, items, ranks, states, workers=reading.workers, on_warning=on_warning)
    unread = (*problems, *unread_classes(job, items, draw))
    return replace(progress, skipped=progress.skipped + len(problems), problems=unread)


@torch.no_grad()
def _accuracy(model: Model, held: Draw) -> float:
    """Share of held-out images that the model gets right."""
    right = 0
    for first in range(0, held.labels.shape[0], JUDGED):
        part = {name: tensor[first : first + JUDGED] for name, tensor in held.image.items()}
        right += int((model(given=part).logits.argmax(1) == held.labels[first : first + JUDGED]).sum())
    return right / held.labels.shape[0]


def _views(job: Job, model: Model, items: Sequence[Item], ranks: Ranks, reading: Reading) -> Read:
    """What is trained on of each image: always the same view, cached views in turn, or new views in every epoch."""
    recipe = job.resolved
    if not recipe.augment:
        return fixed_views(model, job.dataset, items, workers=reading.workers)
    if not job.cached_views or reading.cache is None:
        return _live(job, model, items)
    return cached_views(
        model,
        job.dataset,
        items,
        views=job.cached_views,
        seed=job.seed,
        crop=recipe.crop,
        cache=reading.cache,
        workers=reading.workers,
        ranks=ranks,
        progress=reading.on_cache,
    )


def _train_steps(
    job: Job,
    model: Model,
    items: Sequence[Item],
    folder: Path | None,
    ranks: Ranks,
    reading: Reading,
    seen: SeenViews,
    *,
    resuming: bool,
    judge: Callable[[], float] | None,
    on_step: Callable[[Metrics], None] | None,
) -> Progress:
    """The gradient steps, if the method has any."""
    recipe = job.resolved
    if not has_steps(job, model):
        return Progress()
    feed = Feed(
        seen.through(_views(job, model, items, ranks, reading)),
        [item.label for item in items],
        batch_size=recipe.batch_size,
        seed=job.seed,
        workers=reading.workers,
        ranks=ranks,
        drop_last=recipe.drop_last,
        one_class=recipe.one_class,
    )
    log = StepLog(folder / METRICS, resuming) if folder and ranks.is_first else None
    with stage("training", done=None) as advance:

        def report(metrics: Metrics) -> None:
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
            on_step=report,
        )
