"""From a folder of photos, or any data set, to an adapted CLIP in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.catalog import open_dataset
from dear.data.dataset import Dataset, Item
from dear.data.splits import base_and_novel, few_shot, left_over, restrict
from dear.engine.distributed import local_device
from dear.engine.run import Job, run_job
from dear.engine.train import Metrics, TrainSettings
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
    backbone = clip if isinstance(clip, FrozenClip) else load_clip(clip, pretrained, local_device(device))
    dataset = data if isinstance(data, Dataset) else open_dataset(data, root, template=template)
    job = make_job(
        dataset, shots=shots, seed=seed, half=classes, method=method, choices=choices, train=train or TrainSettings()
    )
    job = replace(job, cached_views=cached_views)
    folder, kept = (Path(one) if one is not None else None for one in (out, cache))
    ways: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "workers": workers}
    model, _ = run_job(job, backbone, folder, cache=kept, on_step=on_step, **ways)
    return model


def make_job(dataset: Dataset, *, shots: int, seed: int, half: Half = "all", **others: Any) -> Job:
    """A job on some shots of all classes of a data set, or of one half of them.

    Shots are drawn for all classes before the half is taken.
    """
    labels = labels_of(dataset, half)
    if not dataset.train:
        raise DataError(f"{dataset.name} has no training images: it can only be tested on.")
    items = restrict(few_shot(dataset.train, shots, seed), labels)
    names = dataset.class_names[labels.start : labels.stop]
    return Job(dataset=dataset, items=items, class_names=names, shots=shots, seed=seed, **others)


def items_to_test(dataset: Dataset, half: Half, *, shots: int, seed: int, validate: bool = False) -> tuple[Item, ...]:
    """The test images of a half; where a data set has no test split, the images that training did not draw.

    `validate` leaves the test split alone, for choosing settings: it gives the validation split and what training did
    not draw.
    """
    undrawn = left_over(dataset.train, few_shot(dataset.train, shots, seed)) if dataset.train else ()
    chosen = (*dataset.val, *undrawn) if validate else dataset.test or undrawn
    return restrict(chosen, labels_of(dataset, half))


def labels_of(dataset: Dataset, half: Half) -> range:
    """The labels of all classes, or of one half of them."""
    count = len(dataset.class_names)
    if half == "all":
        return range(count)
    if half not in ("base", "novel"):
        raise ConfigError(f"classes is {half!r}, but can be 'all', 'base' or 'novel'.")
    return base_and_novel(count)[half == "novel"]
