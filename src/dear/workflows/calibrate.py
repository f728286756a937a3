"""Fit the probabilities of a run on images that were held out, and store the fit in its adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.data.dataset import Item
from dear.data.splits import few_shot, folds, labels_of, restrict
from dear.engine.feature_cache import evaluation_states
from dear.engine.job import UNLABELLED, Job, describe, fingerprint
from dear.engine.run import Reading, train_model
from dear.engine.run_folder import read_run
from dear.engine.workspace import Say, Workspace, log
from dear.errors import ConfigError, DataError
from dear.model.calibration import FEWEST_IMAGES, Calibration, fit_calibration
from dear.model.load import load
from dear.model.model import Model
from dear.options import reading
from dear.options.commands import Calibrate
from dear.options.parts import Fit
from dear.progress.display import watched
from dear.storage.files import as_folder
from dear.storage.locks import locked
from dear.workflows.machine import using_threads

FOLDS, ENOUGH = 4, 100
"""Trainings that hold out a part of the shots, at most, and the number of held-out images after which they stop."""
MOST_PER_CLASS = 16
"""Validation images per class that are used."""
BATCH = 100


def calibrate(
    run: str | Path,
    *,
    workers: int = 2,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
    progress: bool | Callable[[str, int, int], None] | None = None,
) -> Calibration:
    """Fit temperature and thresholds of a run, and store them in its adapter: `predict` then uses them.

    They are fitted on validation images of the data set if it has some. Otherwise the method is trained again without
    a quarter of the shots and classifies that quarter: up to four times, until there are 100 such images. Test images
    are never used.

    Args:
        run: folder of a run of `dear train` or `dear.fit`.
        workers: number of image-loading threads.
        device: "cpu", "cuda"; by default a GPU if there is one.
        threads: threads to compute with on a CPU; by default all.
        allow_pickled: also read a backbone's weights from a pickled file (tensors only, never code).
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    folder = as_folder(run)
    options = reading.check(
        Calibrate,
        {"run": folder, "workers": workers, "device": device, "threads": threads, "allow_pickled": allow_pickled},
    )
    with watched(progress):
        return calibrate_run(options)


def calibrate_run(options: Calibrate, say: Say = log) -> Calibration:
    """What `dear.calibrate` and `dear calibrate` do."""
    folder = options.run
    trained_as = _training_options(folder, options)
    with using_threads(options.threads), locked(folder, "run"):
        model = load(folder, device=options.device, allow_pickled=options.allow_pickled)
        workspace = Workspace()
        job, _ = workspace.prepare(trained_as, clip=model.clip)
        _check_same(folder, job, model)
        reader = Reading(options.workers, trained_as.cache_folder(folder))
        logits, labels, source = _held_out_logits(job, model, reader, say)
        if len(labels) < FEWEST_IMAGES:
            raise DataError(
                f"Only {len(labels)} images of {folder} can be held out, which is too few to fit probabilities: "
                f"{FEWEST_IMAGES} are needed, so train with more photos per class."
            )
        model.calibration = fit_calibration(logits, labels, source)
        model.save_pretrained(folder, overwrite=True)
        return model.calibration


def _training_options(folder: Path, options: Calibrate) -> Fit:
    """The options that the run was trained with, on this machine."""
    file = folder / reading.FILE
    source = read_run(folder).get("source") or {}  # one sentence if it is not a run
    if not file.is_file():
        raise ConfigError(
            f"{folder} has no {reading.FILE}, so it cannot be trained again without some of its photos: train it with "
            f"'dear train', or by dear.fit with a folder or name as data."
        )
    content, _ = reading.read_file(file, Fit)
    trained_as = reading.check(Fit, reading.renamed(Fit, content, repr))
    changes: dict[str, Any] = {"workers": options.workers, "device": options.device}
    if not Path(trained_as.data).exists() and source.get("data"):  # a relative path, from another folder
        changes |= {"data": source["data"], "data_root": as_folder(root) if (root := source.get("root")) else None}
    return trained_as.model_copy(update=changes)


def _check_same(folder: Path, job: Job, model: Model) -> None:
    """Raise `DataError` if the photos are no longer those of the run."""
    if fingerprint(describe(job, model)) != read_run(folder)["fingerprint"]:
        raise DataError(f"The photos or options of {folder} have changed since it was trained: train it again.")


def _held_out_logits(job: Job, model: Model, reader: Reading, say: Say) -> tuple[Tensor, Tensor, str]:
    """Logits and labels of images that the classifying model was not trained on, and where they are from."""
    validation = restrict(job.dataset.val, labels_of(job.dataset, job.half))
    if validation:
        return *_logits(model, job, few_shot(validation, MOST_PER_CLASS, job.seed), reader), "validation"
    if any(item.label == UNLABELLED for item in job.items):
        raise DataError(
            f"{job.method} is trained without labels, so probabilities need validation images: add a val folder."
        )
    parts: list[tuple[Tensor, Tensor]] = []
    for number, (rest, held) in enumerate(folds(job.items, FOLDS, job.seed), 1):
        if not held or sum(len(labels) for _, labels in parts) >= ENOUGH:
            break
        say(f"training without {len(held)} of {len(job.items)} photos, to test on these ({number} of at most {FOLDS})")
        part = replace(job, items=rest, validate=True)  # the method chooses nothing on the photos of this fold
        fold = part.build(model.clip)
        train_model(part, fold, None, reading=reader)
        parts.append(_logits(fold, job, held, reader))
    if not parts:
        return torch.zeros(0, 1), torch.zeros(0, dtype=torch.long), "shots"
    return torch.cat([one for one, _ in parts]), torch.cat([one for _, one in parts]), "shots"


@torch.inference_mode()
def _logits(model: Model, job: Job, items: Sequence[Item], reader: Reading) -> tuple[Tensor, Tensor]:
    """Logits of the default readout, and labels, of the images that can be read."""
    model = model.for_classes(job.dataset.classes(job.class_names))
    logits, labels = [torch.zeros(0, len(job.class_names))], []  # perhaps no image can be read
    batches = evaluation_states(
        model, job.dataset, items, cache=None, batch_size=BATCH, workers=reader.workers, problems={}
    )
    for one in batches:
        logits.append(model(given=one.states).logits.float().cpu())
        labels += [items[index].label for index in one.indices]
    return torch.cat(logits), torch.tensor(labels)
