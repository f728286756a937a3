"""Test photos that are nearly the same as a training photo: they make a result too good.

Found in two steps. Plain CLIP's image features, which a test computes anyway, name the nearest training photo of each
test photo; a pair counts if the cosine is high *and* small gray copies of the two, or one mirrored, agree. Features
alone would also take two different photos of one thing for the same, and their cosines depend on the backbone:
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
MOST = 5000
"""Training photos that are looked at, at most."""


class Duplicate(NamedTuple):
    """A test photo and the training photo that it is nearly the same as."""

    tested: str
    trained: str
    cosine: float


def near_duplicates(
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    features: Mapping[int, Tensor],
    drawn: Sequence[Item],
    *,
    cache: Path | None = None,
    workers: int = 2,
) -> dict[int, Duplicate]:
    """Duplicates by the place of the tested item.

    Args:
        model: whose CLIP made the features.
        dataset: what both are items of.
        items: the tested ones.
        features: plain CLIP's features of the tested ones, of unit length, by place.
        drawn: those that were trained on.
        cache: folder for the frozen layers' outputs.
        workers: number of image-loading threads.
    """
    if not features or not drawn or len(drawn) > MOST:
        return {}
    kept, trained_NE = _features(model.plain(), dataset, drawn, cache, workers)
    if not kept:
        return {}
    places = sorted(features)
    best = (torch.stack([features[place].float() for place in places]) @ trained_NE.T).max(dim=1)
    found = {}
    for place, cosine, at in zip(places, best.values.tolist(), best.indices.tolist(), strict=True):
        tested, trained = items[place].id, drawn[kept[at]].id
        if cosine >= COSINE and agreement(dataset, tested, trained) >= AGREEMENT:
            found[place] = Duplicate(tested, trained, cosine)
    return found


def duplicates_sentence(found: Mapping[int, Duplicate], right: Tensor) -> str:
    """What they mean for a result; `right` says of every tested photo whether it was named correctly."""
    first = next(iter(found.values()))
    told = (
        f"{len(found)} of {len(right)} test photos nearly equal a training photo, such as {first.tested} and "
        f"{first.trained}: the result is too good"
    )
    rest = torch.ones(len(right), dtype=torch.bool)
    rest[list(found)] = False
    if not bool(rest.any()):
        return f"{told}, and nothing else was tested."
    return f"{told}; without them {100 * float(right[rest].double().mean()):.1f} % of {int(rest.sum())} are right."


def _features(
    plain: Model, dataset: Dataset, drawn: Sequence[Item], cache: Path | None, workers: int
) -> tuple[list[int], Tensor]:
    """Which training photos can be read, and plain CLIP's features of them."""
    problems: dict[int, str] = {}
    parts = list(
        evaluation_states(
            plain, dataset, drawn, cache=cache, batch_size=64, workers=workers, problems=problems, names=["feature"]
        )
    )
    rows = [unit(part.states["feature"]).cpu() for part in parts]
    return [index for part in parts for index in part.indices], torch.cat(rows) if rows else torch.zeros(0, 0)


def agreement(dataset: Dataset, first: str, second: str) -> float:
    """Correlation of small gray copies of two images, or of one and the other mirrored; -1 if one cannot be read."""
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
