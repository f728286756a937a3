"""Detection of test photos that nearly equal a training photo and therefore make a test result too good.

The search has two steps. Plain CLIP's image features, which a test computes anyway, give the nearest training photo of
each test photo. A pair counts if the cosine is high *and* small gray copies of both photos, or of one mirrored, agree.
Features alone would also match different photos of the same object, and their cosines depend on the backbone:
docs/explanation/decisions.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.engine.feature_cache import evaluation_states
from dear.errors import ImageError
from dear.methods.base import unit
from dear.model.model import Model

COSINE, AGREEMENT = 0.9, 0.9
SIDE = 16
MAX_TRAINING_PHOTOS = 5000
"""With more training photos than this, the search is skipped."""


class Duplicate(NamedTuple):
    """A test photo and the training photo that it nearly equals, by their ids."""

    test_id: str
    train_id: str
    cosine: float


def near_duplicates(
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    features: Mapping[int, Tensor],
    trained_items: Sequence[Item],
    *,
    cache: Path | None = None,
    workers: int = 2,
) -> dict[int, Duplicate]:
    """Find test items that nearly equal a training item; the keys are indices into `items`.

    Args:
        model: the model whose CLIP computed the features.
        dataset: the data set that both kinds of items belong to.
        items: the test items.
        features: plain CLIP's unit-length features of the test items, by index.
        trained_items: the training items.
        cache: folder for the frozen layers' outputs.
        workers: number of image-loading threads.
    """
    if not features or not trained_items or len(trained_items) > MAX_TRAINING_PHOTOS:
        return {}
    readable, trained_NE = _features(model.plain(), dataset, trained_items, cache, workers)
    if not readable:
        return {}
    indices = sorted(features)
    nearest = (torch.stack([features[index].float() for index in indices]) @ trained_NE.T).max(dim=1)
    duplicates = {}
    for index, cosine, row in zip(indices, nearest.values.tolist(), nearest.indices.tolist(), strict=True):
        test_id, train_id = items[index].id, trained_items[readable[row]].id
        if cosine >= COSINE and agreement(dataset, test_id, train_id) >= AGREEMENT:
            duplicates[index] = Duplicate(test_id, train_id, cosine)
    return duplicates


def duplicates_sentence(duplicates: Mapping[int, Duplicate], right: Tensor) -> str:
    """Return a warning about the duplicates; `right` is true for every test photo that was named correctly."""
    first = next(iter(duplicates.values()))
    message = (
        f"{len(duplicates)} of {len(right)} test photos nearly equal a training photo, such as {first.test_id} and "
        f"{first.train_id}: the result is too good"
    )
    unique = torch.ones(len(right), dtype=torch.bool)
    unique[list(duplicates)] = False
    if not bool(unique.any()):
        return f"{message}, and nothing else was tested."
    percent = 100 * float(right[unique].double().mean())
    return f"{message}; without them {percent:.1f} % of {int(unique.sum())} are right."


def _features(
    plain: Model, dataset: Dataset, items: Sequence[Item], cache: Path | None, workers: int
) -> tuple[list[int], Tensor]:
    """Indices of the readable items, and plain CLIP's features of them."""
    problems: dict[int, str] = {}
    batches = list(
        evaluation_states(
            plain, dataset, items, cache=cache, batch_size=64, workers=workers, problems=problems, names=["feature"]
        )
    )
    rows = [unit(batch.states["feature"]).cpu() for batch in batches]
    return [index for batch in batches for index in batch.indices], torch.cat(rows) if rows else torch.zeros(0, 0)


def agreement(dataset: Dataset, first: str, second: str) -> float:
    """Correlation of small gray copies of two images, the larger of plain and mirrored; -1 if one is unreadable."""
    try:
        a, b = (_small(dataset.open(one)) for one in (first, second))
    except ImageError:
        return -1.0
    return max(_correlation(a, b), _correlation(a, b[:, ::-1]))


def _small(image: Image.Image) -> NDArray[np.float64]:
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64)


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float((a * b).sum() / size) if size > 0 else float(not a.any() and not b.any())
