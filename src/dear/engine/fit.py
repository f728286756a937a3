"""From a folder of photos, or any data set, to an adapted CLIP in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.dataset import Dataset, Item
from dear.data.splits import base_and_novel, few_shot, left_over, restrict
from dear.datasets import open_dataset
from dear.engine.loop import Metrics, TrainSettings
from dear.engine.ranks import local_device
from dear.engine.run import Job, run_job
from dear.errors import ConfigError, DataError

Half = Literal["all", "base", "novel"]


def fit(
    data: str | Path | Dataset,
    clip: str | FrozenClip = "world",
    *,
    pretrained: str | None = None,
    out: str | Path | None = None,
    method: str = "dear",
    shots: int = 16,
    seed: int = 1,
    classes: Half = "all",
    root: str | Path | None = None,
    template: str | None = None,
    train: TrainSettings | None = None,
    cached_views: int = 0,
    cache: str | Path | None = None,
    workers: int = 2,
    device: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_step: Callable[[Metrics], None] | None = None,
    **choices: Any,
) -> Any:
    """Adapt a CLIP to a data set and return the model, ready for `model.predict(paths)`.

    Args:
        data: a folder of class folders, a .csv or .json list, a data set's name, or an opened data set.
        clip: a backbone's name, such as "world" or "ViT-B-16-quickgelu", or one from `dear.load_clip`.
        pretrained: tag of the weights, where the name needs one ("openai").
        out: folder of the run; without it nothing is written.
        method: "dear", or any other registered method.
        shots: images a class to learn from; a class with fewer gives all it has.
        seed: decides the draw of shots, the start, the order and the views.
        classes: learn all classes, or only the base or the novel half of them.
        root: folder that holds the paper's data sets.
        template: the prompt around a class name, such as "a photo of a {}.".
        train: epochs, batch, learning rate and so on.
        cached_views: keep so many views an image in `cache` instead of drawing new ones every epoch (faster).
        cache: folder for what the frozen layers make of images.
        workers: threads that read images.
        device: "cpu", "cuda"; by default a GPU where there is one.
        resume: go on where a run in `out` was stopped.
        overwrite: start again in `out`.
        on_step: called with every step's metrics.
        **choices: the method's own, such as roles="ROLES", mask="all_mixed", beta=0.9.
    """
    if train is not None and not isinstance(train, TrainSettings):
        raise ConfigError(f"train is of type {type(train).__name__}: give dear.TrainSettings(epochs=…, …).")
    how: dict[str, Any] = {"method": method, "choices": choices, "train": train or TrainSettings()}
    dataset = _opened(data, root, template)
    job = make_job(dataset, shots=shots, seed=seed, half=classes, cached_views=cached_views, **how)
    backbone = clip if isinstance(clip, FrozenClip) else load_clip(clip, pretrained, local_device(device))
    folder, kept = (Path(one) if one is not None else None for one in (out, cache))
    model, _ = run_job(
        job, backbone, folder, resume=resume, overwrite=overwrite, cache=kept, workers=workers, on_step=on_step
    )
    return model


def _opened(data: str | Path | Dataset, root: str | Path | None, template: str | None) -> Dataset:
    if isinstance(data, Dataset):
        return replace(data, template=template or data.template)
    return open_dataset(data, root, template=template)


def make_job(dataset: Dataset, *, shots: int, seed: int, half: Half = "all", **others: Any) -> Job:
    """A job on some shots of all classes of a data set, or of one half of them.

    Shots are drawn for all classes before the half is taken.
    """
    for name, value, least in (("shots", shots, 1), ("seed", seed, 0)):
        if type(value) is not int or value < least:
            raise ConfigError(f"{name} is {value!r}, but must be a whole number from {least} on.")
    labels = labels_of(dataset, half)
    if not dataset.train:
        raise DataError(f"{dataset.name} has no training images: it can only be tested on.")
    items = restrict(few_shot(dataset.train, shots, seed), labels)
    names = dataset.class_names[labels.start : labels.stop]
    return Job(dataset=dataset, items=items, class_names=names, shots=shots, seed=seed, **others)


def items_to_test(dataset: Dataset, half: Half, *, drawn: Iterable[Item], validate: bool = False) -> tuple[Item, ...]:
    """The test images of a half; where a data set has no test split, the images that were not drawn for training.

    `validate` leaves the test split alone, for choosing settings: it gives the validation split and what was not drawn.
    """
    undrawn = left_over(dataset.train, drawn)
    found = restrict((*dataset.val, *undrawn) if validate else dataset.test or undrawn, labels_of(dataset, half))
    if not found:
        raise DataError(
            f"{dataset.name} has no images left to test on, as training drew them all: use fewer shots, or give it a "
            f"test folder."
            if dataset.train
            else f"{dataset.name} has no {'validation' if validate else 'test'} images."
        )
    return found


def labels_of(dataset: Dataset, half: Half) -> range:
    """The labels of all classes, or of one half of them."""
    count = len(dataset.class_names)
    if half == "all":
        return range(count)
    if half not in ("base", "novel"):
        raise ConfigError(f"classes is {half!r}, but can be 'all', 'base' or 'novel'.")
    return base_and_novel(count)[half == "novel"]
