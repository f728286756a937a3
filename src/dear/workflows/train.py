"""From a folder of photos, or any data set, to an adapted CLIP in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.dataset import Dataset
from dear.data.descriptions import with_descriptions
from dear.data.open import opened
from dear.data.splits import Half
from dear.engine.job import Job, make_job, prepared
from dear.engine.loop import Metrics
from dear.engine.ranks import local_device
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from dear.errors import ConfigError
from dear.evaluation.defaults import clip_for
from dear.methods.recipe import RecipeName
from dear.model.model import Model
from dear.progress.display import watched
from dear.progress.stages import checked
from dear.storage.files import as_folder
from dear.storage.locks import check_ours


def fit(
    data: str | Path | Dataset,
    clip: str | FrozenClip | None = None,
    *,
    pretrained: str | None = None,
    out: str | Path | None = None,
    method: str = "dear",
    shots: int = 16,
    seed: int = 1,
    half: Half = "all",
    data_root: str | Path | None = None,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    recipe: RecipeName = "own",
    train: TrainSettings | None = None,
    cached_views: int = 0,
    cache: str | Path | None = None,
    workers: int = 2,
    device: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_step: Callable[[Metrics], None] | None = None,
    progress: bool | Callable[[str, int, int], None] | None = None,
    **config: Any,
) -> Model:
    """Adapt a CLIP to a data set and return the model, ready for `model.predict(paths)`.

    Args:
        data: a folder of class folders, a .csv or .json list, a data set's name, or an opened data set.
        clip: a backbone's name, or one from `dear.load_clip`; the world's data sets use the world's by default.
        pretrained: tag of the weights, if the name needs one ("openai").
        out: folder of the run; without it nothing is written.
        method: "dear", or any other method, see `dear.list_methods`.
        shots: training images per class, or all of them if there are fewer.
        seed: random seed.
        half: train on all classes, or on the base or the novel half of them.
        data_root: folder that holds the paper's data sets.
        template: the prompt around a class name, such as "a photo of a {}.".
        descriptions: sentences about each class, for methods that read them: a mapping, or a JSON file.
        recipe: "own", as the method was published, or "shared", the same for all methods.
        train: epochs, batch size, learning rate and so on.
        cached_views: views per image to keep in `cache` instead of drawing new ones every epoch (faster).
        cache: folder for the frozen layers' outputs.
        workers: number of image-loading threads.
        device: "cpu", "cuda"; by default a GPU if there is one.
        resume: resume an interrupted run in `out`.
        overwrite: start over, and replace the run in `out` when the new one is whole.
        on_step: called with every step's metrics.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
        **config: the method's own, such as roles="ROLES" (or "auto"), mask="all_mixed", beta=0.9.
    """
    _check_types(train, on_step, progress)
    dataset = with_descriptions(opened(data, data_root, template), descriptions)
    how: dict[str, Any] = {"method": method, "config": config, "train": train or TrainSettings(), "recipe": recipe}
    job = make_job(dataset, shots=shots, seed=seed, half=half, cached_views=cached_views, **how)
    how = {"resume": resume, "overwrite": overwrite, "workers": workers, "on_step": on_step}
    how["cache"] = as_folder(cache) if cache is not None else None
    folder = _folder(out, resume=resume, overwrite=overwrite)
    with watched(progress):
        return _run(job, _load(dataset, clip, pretrained, device), folder, how)


def _run(job: Job, clip: FrozenClip, folder: Path | None, how: dict[str, Any]) -> Model:
    return run_job(prepared(job, clip, logging.getLogger("dear").info), clip, folder, **how)[0]


def _folder(out: str | Path | None, *, resume: bool, overwrite: bool) -> Path | None:
    """The run's folder, if it can be used."""
    folder = as_folder(out) if out is not None else None
    if folder is not None:
        check_ours(folder, "run", resume=resume, overwrite=overwrite)
    return folder


def _load(dataset: Dataset, clip: str | FrozenClip | None, pretrained: str | None, device: str | None) -> FrozenClip:
    if isinstance(clip, FrozenClip):
        return clip
    return load_clip(*clip_for(dataset, clip, pretrained), local_device(device))


def _check_types(train: object, on_step: object, progress: object) -> None:
    checked(progress)
    if train is not None and not isinstance(train, TrainSettings):
        raise ConfigError(f"train is of type {type(train).__name__}: give dear.TrainSettings(epochs=…, …).")
    if on_step is not None and not callable(on_step):
        raise ConfigError(f"on_step is of type {type(on_step).__name__}: give a function that takes a step's metrics.")
