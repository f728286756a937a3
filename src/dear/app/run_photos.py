"""The photos that a run was trained and tested on, as features in memory: what teaching starts from.

Shapes: N photos, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.data.images import ImageList, image_batches
from dear.errors import DataError, DearError
from dear.evaluation.test_data import TestData, data_of_run
from dear.model.model import Model

MOST_SHOTS, MOST_TESTED = 2000, 300
"""Photos whose features are computed, at most: training photos, and test photos."""
BATCH = 32


class Features(NamedTuple):
    """Features of photos, their labels, and whether the run's model names them correctly."""

    features_NE: Tensor
    labels_N: Tensor
    right_N: Tensor


@dataclass(eq=False)
class RunPhotos:
    """The data set of a run; features are computed when they are first needed, and then stay in memory."""

    model: Model
    dataset: Dataset
    shots: tuple[Item, ...]
    """Photos that the run was trained on; labels are places in the model's classes."""
    tested: tuple[Item, ...]
    """Photos that it was not trained on."""
    _found: dict[str, Features] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def features(self, of: str) -> Features:
        """Features of "shots" or "tested" photos; those that cannot be read are left out."""
        with self._lock:
            if of not in self._found:
                items = self.shots if of == "shots" else self.tested
                self._found[of] = photo_features(self.model, self.dataset, items)
            return self._found[of]

    def examples(self) -> ImageList:
        """Test photos, in the order of a walk through all classes."""
        by_class: dict[int, list[Item]] = {}
        for item in self.tested:
            by_class.setdefault(item.label, []).append(item)
        longest = max(map(len, by_class.values()), default=0)
        mixed = [items[turn] for turn in range(longest) for items in by_class.values() if turn < len(items)]
        return self.dataset.images(mixed)

    def training_images(self) -> ImageList:
        """The photos that the run was trained on."""
        return self.dataset.images(self.shots)


def photos_of_run(run: Path, model: Model) -> RunPhotos | None:
    """The photos of a run; None if its data set is unknown or no longer there."""
    try:
        found = data_of_run(run)
    except (DearError, OSError):
        return None
    return run_photos(found, model)


def run_photos(found: TestData, model: Model) -> RunPhotos:
    """Those photos of a data set that show the model's classes, as far as teaching needs them."""
    places = {name: place for place, name in enumerate(model.required_classes().names)}
    labels = [places.get(name, -1) for name in found.dataset.class_names]
    known = {item.id: labels[item.label] for split in (found.dataset.train, found.dataset.val) for item in split}
    shots = [Item(item.id, known.get(item.id, -1)) for item in found.trained_here()]
    try:
        tested = [Item(item.id, labels[item.label]) for item in found.items()]
    except DataError:  # all photos were trained on
        tested = []
    return RunPhotos(model, found.dataset, _some(shots, MOST_SHOTS), _some(tested, MOST_TESTED))


def _some(items: Sequence[Item], most: int) -> tuple[Item, ...]:
    """Items of the model's classes, evenly spread if there are too many."""
    good = [item for item in items if item.label >= 0]
    return tuple(good[index * len(good) // most] for index in range(most)) if len(good) > most else tuple(good)


def photo_features(model: Model, dataset: Dataset, items: Sequence[Item]) -> Features:
    """Features and answers for the photos that can be read."""
    features, labels, right = [torch.zeros(0, model.clip.geometry.embed_dim)], list[int](), list[bool]()
    for batch in image_batches(dataset.images(items), model.clip.preprocess_eval, size=BATCH):
        if batch.images is None:
            continue
        truth = torch.tensor([items[index].label for index in batch.indices])
        features.append(plain_features(model, batch.images))
        labels += truth.tolist()
        right += (answers(model, batch.images) == truth).tolist()
    return Features(torch.cat(features), torch.tensor(labels, dtype=torch.int64), torch.tensor(right, dtype=torch.bool))


@torch.no_grad()
def plain_features(model: Model, images: Tensor) -> Tensor:
    """(B, E) features of the plain CLIP, which teaching trains on."""
    return model.clip.stock_feature(images.to(model.clip.device)).float().cpu()


@torch.no_grad()
def answers(model: Model, images: Tensor) -> Tensor:
    """(B,) numbers of the likeliest classes."""
    picks: Tensor = model(images.to(model.clip.device)).logits.argmax(1).cpu()
    return picks
