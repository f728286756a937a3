"""Proof by intervention: replace what heads or layers add to the embedding by its mean, and see which answers are lost.

This is the direct effect on the embedding (Gandelsman et al. 2024): later layers still see the unablated state.
Shapes: N images, L layers, H heads, C classes, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.data.images import ImageBatch
from dear.errors import RolesError
from dear.roles.capture import contributions

Place = tuple[int, int]


@dataclass(frozen=True)
class Task:
    """A classification task to measure an ablation by: the class of every image, and a prompt a class."""

    name: str
    labels_N: Tensor
    prompts: tuple[str, ...]

    def only(self, indices: Sequence[int]) -> Task:
        """The same task on some of its images."""
        return Task(self.name, self.labels_N[list(indices)], self.prompts)


@dataclass(frozen=True)
class Terms:
    """Embeddings, and what every head and every MLP contributed to them."""

    embeddings_NE: Tensor
    heads_NLHE: Tensor
    mlps_NLE: Tensor

    @property
    def places(self) -> list[Place]:
        """Every head, as (layer from 1, head from 0)."""
        _, layers, heads, _ = self.heads_NLHE.shape
        return [(layer + 1, head) for layer in range(layers) for head in range(heads)]


def collect_terms(
    clip: FrozenClip, groups: Iterable[ImageBatch], progress: Callable[[int], None] = lambda position: None
) -> tuple[Terms, list[int]]:
    """Run the images once and keep their terms, and the numbers of the images that could be read."""
    embeddings, heads, mlps = [], [], []
    read: list[int] = []
    for group in groups:
        if group.images is not None:
            terms = contributions(clip, group.images.to(clip.device))
            embeddings.append(terms.total())
            heads.append(terms.heads_BLHE)
            mlps.append(terms.mlps_BLE)
            read += group.indices
        progress(group.stop)
    if not read:
        raise RolesError("None of the images could be read, so there is nothing to measure an ablation by.")
    return Terms(torch.cat(embeddings), torch.cat(heads), torch.cat(mlps)), read


def without_heads(terms: Terms, places: Sequence[Place]) -> Tensor:
    """Embeddings (N, E) with the given heads mean-ablated."""
    result = terms.embeddings_NE
    for layer, head in places:
        term_NE = terms.heads_NLHE[:, layer - 1, head]
        result = result - term_NE + term_NE.mean(0)
    return result


def without_layer(terms: Terms, layer: int) -> Tensor:
    """Embeddings (N, E) with all of a layer, heads and MLP, mean-ablated."""
    term_NE = terms.heads_NLHE[:, layer - 1].sum(1) + terms.mlps_NLE[:, layer - 1]
    return terms.embeddings_NE - term_NE + term_NE.mean(0)


def class_features(clip: FrozenClip, tasks: Sequence[Task]) -> list[Tensor]:
    """Unit text features (C, E) of every task's classes."""
    return [F.normalize(clip.text.encode(task.prompts).float(), dim=-1) for task in tasks]


def accuracies(embeddings_NE: Tensor, tasks: Sequence[Task], features: Sequence[Tensor]) -> list[float]:
    """Zero-shot accuracy on every task."""
    result = []
    for task, features_CE in zip(tasks, features, strict=True):
        predicted_N = (embeddings_NE @ features_CE.T).argmax(1).cpu()
        result.append(float((predicted_N == task.labels_N).float().mean()))
    return result


@dataclass(frozen=True)
class Drop:
    """What one ablation costs on every task, in accuracy."""

    what: str
    heads: tuple[Place, ...]
    drops: tuple[float, ...]


class Bench:
    """Terms, tasks and class features together: what every ablation is measured on."""

    def __init__(self, terms: Terms, tasks: Sequence[Task], features: Sequence[Tensor]) -> None:
        self.terms, self.tasks, self.features = terms, tuple(tasks), tuple(features)
        self.base = tuple(accuracies(terms.embeddings_NE, tasks, features))

    def heads(self, what: str, places: Sequence[Place]) -> Drop:
        """The cost of some heads, removed together."""
        return self._drop(what, places, without_heads(self.terms, places))

    def layer(self, layer: int) -> Drop:
        """The cost of a whole layer, heads and MLP."""
        return self._drop(f"layer {layer}", (), without_layer(self.terms, layer))

    def _drop(self, what: str, places: Sequence[Place], embeddings_NE: Tensor) -> Drop:
        changed = accuracies(embeddings_NE, self.tasks, self.features)
        return Drop(what, tuple(places), tuple(b - c for b, c in zip(self.base, changed, strict=True)))


def random_groups(places: Sequence[Place], size: int, draws: int, seed: int) -> list[list[Place]]:
    """Groups of as many heads drawn at random, to compare a group with."""
    generator = torch.Generator().manual_seed(seed)
    return [[places[i] for i in torch.randperm(len(places), generator=generator)[:size].tolist()] for _ in range(draws)]
