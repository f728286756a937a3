"""Score a run, or a loaded model, on test images in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dear.config import whole_number
from dear.data.dataset import Dataset, Item
from dear.data.descriptions import with_descriptions
from dear.data.open import opened
from dear.data.splits import Half
from dear.engine.feature_cache import TESTING
from dear.engine.ranks import local_device
from dear.errors import ConfigError
from dear.evaluation.duplicates import duplicates_sentence, near_duplicates
from dear.evaluation.evaluate import Evaluation, evaluate_items
from dear.evaluation.test_data import TestData, data_of_run
from dear.model.load import load
from dear.model.model import Model
from dear.progress.display import watched
from dear.progress.stages import counting
from dear.storage.files import as_folder


def evaluate(
    run: str | Path | Model,
    data: str | Path | Dataset | None = None,
    *,
    half: Half = "all",
    data_root: str | Path | None = None,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    cache: str | Path | None = None,
    workers: int = 2,
    batch_size: int = 250,
    device: str | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score a run on test images, by every readout of its method and beside plain CLIP.

    Images that the run was trained on are never tested; if some are nearly the same as one of those, a sentence in
    `warnings` says so. A loaded model does not know them: give the run's folder if the data set has no test images.

    Args:
        run: folder of a run or adapter, or a loaded model.
        data: the data set to test on; by default the one that the run was made from.
        half: test all classes, or the base or the novel half of them.
        data_root: folder that holds the paper's data sets.
        template: the prompt around a class name; by default the run's or the data set's.
        descriptions: sentences about each class, for methods that read them; trained classes keep the run's.
        cache: folder for the frozen layers' outputs.
        workers: number of image-loading threads.
        batch_size: images per forward pass.
        device: "cpu", "cuda"; by default a GPU if there is one.
        progress: True for a bar on stderr, or a function of the number of images done and the number of all.
    """
    whole_number("batch_size", batch_size, least=1)
    whole_number("workers", workers)
    if isinstance(run, Model):
        if data is None:
            raise ConfigError("A loaded model does not record its data set: name the data set to test on.")
        tested, model = TestData(opened(data, data_root, template), (), None), run
        items = tested.items(half)
    else:
        folder = as_folder(run)
        tested = data_of_run(folder, data, data_root, template)
        items = tested.items(half)
        model = load(folder, device=local_device(device))
    dataset = with_descriptions(tested.dataset, descriptions)
    features: dict[int, Tensor] = {}
    with watched(counting(progress, TESTING)):
        found = evaluate_items(
            model.for_classes(dataset.classes(tested.class_names(half))),
            dataset,
            items,
            half=half,
            cache=as_folder(cache) if cache is not None else None,
            batch_size=batch_size,
            workers=workers,
            beside_plain=True,
            features=features,
        )
    return _with_warnings(replace(found, new=tested.newness(half)), model, dataset, items, features, tested, workers)


def _with_warnings(
    found: Evaluation,
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    features: dict[int, Tensor],
    tested: TestData,
    workers: int,
) -> Evaluation:
    """The same, with a sentence if test photos are nearly training photos."""
    same = near_duplicates(model, dataset, items, features, tested.trained_here(), workers=workers)
    right = found.picks == torch.tensor([item.label for item in items])
    return replace(found, warnings=(duplicates_sentence(same, right),)) if same else found
