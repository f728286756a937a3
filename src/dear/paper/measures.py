"""Measurements of the paper besides its grids: search by attribute, and ablations; results are cached as JSON.

Shapes: N images, G kinds of features, E joint embedding.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.data.dataset import Dataset
from dear.data.families import WORLD
from dear.data.images import ImageList, image_batches
from dear.errors import DataError
from dear.model.model import Model
from dear.retrieval.encoder import encode, feature_kinds, model_hash
from dear.retrieval.search import nearest
from dear.roles.ablation import Ablation, Drop, Group, Task, collect_terms, measure
from dear.roles.rolemap import RoleMap
from dear.roles.sources import tasks_from
from dear.storage import documents
from dear.storage.files import letters, read_regular, sha256, write_atomic
from dear.world.render import RENDERER_VERSION

NEIGHBOURS = 10
QUERIES = 4
SHOWN = 8
VERSION = 1


@dataclass(frozen=True)
class Gallery:
    """Images for searches and ablations, with their tasks: the labels of each image, and one prompt per label."""

    images: ImageList
    tasks: tuple[Task, ...]
    mark: str
    """A text that changes if the images change."""


def world_gallery(count: int) -> Gallery:
    """Held-out scenes of the world with their five attributes."""
    images, tasks = tasks_from(WORLD, "{}", count)
    rgb_images = ImageList(images.names, lambda index: images.open(index).convert("RGB"))
    return Gallery(rgb_images, tuple(tasks), f"renderer {RENDERER_VERSION}, {count} held-out scenes")


def dataset_gallery(dataset: Dataset, count: int) -> Gallery:
    """Test images of a data set, evenly spread, with their classes."""
    items = dataset.test
    chosen = [items[index * len(items) // count] for index in range(count)] if count < len(items) else list(items)
    prompts = tuple(dataset.template.replace("{}", name) for name in dataset.class_names)
    task = Task("class", torch.tensor([item.label for item in chosen]), prompts)
    mark = sha256(letters("\n".join(f"{item.id} {dataset.content_of(item.id)}" for item in chosen)))
    return Gallery(dataset.images(chosen), (task,), f"{dataset.name} {mark}")


def precision_at(features_NE: Tensor, values_N: Tensor, k: int) -> float:
    """Per cent of every image's k nearest others, by cosine, that share its value."""
    count = len(features_NE)
    if count < 2:
        return 0.0
    scores_NN = features_NE @ features_NE.T
    scores_NN.fill_diagonal_(-torch.inf)
    near_NK = scores_NN.topk(min(k, count - 1)).indices
    return 100 * float((values_N[near_NK] == values_N[:, None]).double().mean())


def chance_of(values_N: Tensor) -> float:
    """Per cent of the other images that share an image's value, on average: the precision of random picks."""
    count = len(values_N)
    same = values_N.bincount().double()
    return 100 * float((same * (same - 1)).sum() / (count * (count - 1))) if count > 1 else 0.0


@dataclass(frozen=True)
class Retrieval:
    """The precision of each kind of feature for each property, and a few example searches."""

    images: int
    k: int
    kinds: tuple[str, ...]
    properties: tuple[str, ...]
    precision: tuple[tuple[float, ...], ...]
    """One row per kind of feature, one column per property."""
    chance: tuple[float, ...]
    searches: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]
    """A query image, and its results by each kind of feature."""


@torch.inference_mode()
def measure_retrieval(model: Model, gallery: Gallery, *, workers: int = 2) -> Retrieval:
    """Encode the gallery by every kind of feature and search it by every image."""
    features: list[Tensor] = []
    read: list[int] = []
    for group in image_batches(gallery.images, model.clip.preprocess_eval, size=64, workers=workers):
        if group.images is not None:
            features.append(encode(model, group.images))
            read += group.indices
    features_NGE = torch.cat(features)
    labels = [task.labels_N[read] for task in gallery.tasks]
    kinds = feature_kinds(model)
    searches = []
    for row in [index * len(read) // QUERIES for index in range(min(QUERIES, len(read)))]:
        found = []
        for number in range(len(kinds)):
            hits = nearest(features_NGE[row, number], features_NGE[:, number], SHOWN + 1)
            found.append(tuple(read[place] for place, _ in hits if place != row)[:SHOWN])
        searches.append((read[row], tuple(found)))
    return Retrieval(
        images=len(read),
        k=NEIGHBOURS,
        kinds=kinds,
        properties=tuple(task.name for task in gallery.tasks),
        precision=tuple(
            tuple(round(precision_at(features_NGE[:, number], one, NEIGHBOURS), 4) for one in labels)
            for number in range(len(kinds))
        ),
        chance=tuple(round(chance_of(one), 4) for one in labels),
        searches=tuple(searches),
    )


def cached_retrieval(path: Path, model: Model, gallery: Gallery, *, workers: int = 2) -> Retrieval:
    """Return the cached measurement, or measure and cache it."""
    mark = sha256(json.dumps([VERSION, model_hash(model), gallery.mark, NEIGHBOURS, QUERIES, SHOWN]).encode())
    if (before := _read(path, mark)) is not None:
        return Retrieval(**{name: _tuples(value) for name, value in before.items()})
    found = measure_retrieval(model, gallery, workers=workers)
    _write(path, mark, asdict(found))
    return found


def cached_ablation(path: Path, clip: FrozenClip, roles: RoleMap, gallery: Gallery, *, workers: int = 2) -> Ablation:
    """Return the cached ablation, or mean-ablate heads and layers and cache the costs."""
    mark = sha256(json.dumps([VERSION, clip.weights_sha256, roles.to_json(), gallery.mark]).encode())
    if (before := _read(path, mark)) is not None:
        return _ablation(before)
    groups = image_batches(gallery.images, clip.preprocess_eval, size=64, workers=workers)
    terms, read = collect_terms(clip, groups)
    found = measure(clip, roles, terms, [task.only(read) for task in gallery.tasks])
    _write(path, mark, asdict(found))
    return found


def picture(gallery: Gallery, index: int, side: int) -> Image.Image:
    """An image of the gallery as a small square."""
    image = gallery.images.open(index).convert("RGB")
    edge = min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    return image.crop((left, top, left + edge, top + edge)).resize((side, side), Image.Resampling.BICUBIC)


def _ablation(before: dict[str, Any]) -> Ablation:
    def drop(one: dict[str, Any]) -> Drop:
        return Drop(one["what"], _tuples(one["heads"]), tuple(one["drops"]))

    groups = tuple(
        Group(one["attribute"], drop(one["removed"]), tuple(one["random_means"]), tuple(one["random_spreads"]))
        for one in before["groups"]
    )
    return Ablation(
        images=before["images"],
        tasks=tuple(before["tasks"]),
        base=tuple(before["base"]),
        groups=groups,
        layers=tuple(map(drop, before["layers"])),
        heads=tuple(map(drop, before["heads"])),
        draws=before["draws"],
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _read(path: Path, mark: str) -> dict[str, Any] | None:
    """The content of a file, if it is complete and belongs to the same measurement."""
    try:
        content = documents.parse(read_regular(path), where=str(path), what="a measurement", error=DataError)
    except (OSError, DataError):
        return None
    whole = isinstance(content, dict) and content.get(documents.SEAL) == documents.seal(content)
    return dict(content["found"]) if whole and content["fingerprint"] == mark else None


def _write(path: Path, mark: str, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, documents.as_bytes(documents.to_json(documents.sealed({"fingerprint": mark, "found": found}))))
