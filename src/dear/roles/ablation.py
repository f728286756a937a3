"""Mean ablation: replace the contribution of heads or layers by its mean, and measure the loss of accuracy.

This measures the direct effect on the embedding (Gandelsman et al. 2024): later layers still get the original state.
Shapes: N images, L layers, H heads, C classes, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, pstdev

import torch
import torch.nn.functional as F
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.backbone.support import Can
from dear.data.images import ImageBatch
from dear.errors import RoleMapError, RolesError
from dear.roles.capture import contributions
from dear.roles.rolemap import Role, RoleMap

Place = tuple[int, int]


@dataclass(frozen=True)
class Task:
    """A classification task for ablations: the class of every image, and one prompt per class."""

    name: str
    labels_N: Tensor
    prompts: tuple[str, ...]

    def only(self, indices: Sequence[int]) -> Task:
        """The same task on a part of its images."""
        return Task(self.name, self.labels_N[list(indices)], self.prompts)


@dataclass(frozen=True)
class Terms:
    """Embeddings, and the contribution of every head and every MLP to them."""

    embeddings_NE: Tensor
    heads_NLHE: Tensor
    mlps_NLE: Tensor

    @property
    def places(self) -> list[Place]:
        """All heads as (layer, head); layers are counted from 1, heads from 0."""
        _, layers, heads, _ = self.heads_NLHE.shape
        return [(layer + 1, head) for layer in range(layers) for head in range(heads)]


def collect_terms(
    clip: FrozenClip, groups: Iterable[ImageBatch], progress: Callable[[int], None] = lambda position: None
) -> tuple[Terms, list[int]]:
    """Compute the terms of all images, and return them with the indices of the readable images."""
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
        raise RolesError("None of the images can be read, but an ablation needs images: give others.")
    return Terms(torch.cat(embeddings), torch.cat(heads), torch.cat(mlps)), read


def without_heads(terms: Terms, places: Sequence[Place]) -> Tensor:
    """Embeddings (N, E) with some heads mean-ablated."""
    result = terms.embeddings_NE
    for layer, head in places:
        term_NE = terms.heads_NLHE[:, layer - 1, head]
        result = result - term_NE + term_NE.mean(0)
    return result


def without_layer(terms: Terms, layer: int) -> Tensor:
    """Embeddings (N, E) with all heads and the MLP of a layer mean-ablated."""
    term_NE = terms.heads_NLHE[:, layer - 1].sum(1) + terms.mlps_NLE[:, layer - 1]
    return terms.embeddings_NE - term_NE + term_NE.mean(0)


def class_features(clip: FrozenClip, tasks: Sequence[Task]) -> list[Tensor]:
    """Text features (C, E), of unit length, of the classes of every task."""
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
    """Loss of accuracy by one ablation, on every task."""

    what: str
    heads: tuple[Place, ...]
    drops: tuple[float, ...]


class Bench:
    """Terms, tasks and class features, on which all ablations are measured."""

    def __init__(self, terms: Terms, tasks: Sequence[Task], features: Sequence[Tensor]) -> None:
        self.terms, self.tasks, self.features = terms, tuple(tasks), tuple(features)
        self.base = tuple(accuracies(terms.embeddings_NE, tasks, features))

    def heads(self, what: str, places: Sequence[Place]) -> Drop:
        """Loss of accuracy if some heads are removed together."""
        return self._drop(what, places, without_heads(self.terms, places))

    def layer(self, layer: int) -> Drop:
        """Loss of accuracy if a whole layer is removed, heads and MLP."""
        return self._drop(f"layer {layer}", (), without_layer(self.terms, layer))

    def _drop(self, what: str, places: Sequence[Place], embeddings_NE: Tensor) -> Drop:
        changed = accuracies(embeddings_NE, self.tasks, self.features)
        return Drop(what, tuple(places), tuple(b - c for b, c in zip(self.base, changed, strict=True)))


def random_groups(places: Sequence[Place], size: int, draws: int, seed: int) -> list[list[Place]]:
    """Random groups of `size` heads, as a baseline for a group."""
    generator = torch.Generator().manual_seed(seed)
    return [[places[i] for i in torch.randperm(len(places), generator=generator)[:size].tolist()] for _ in range(draws)]


@dataclass(frozen=True)
class Group:
    """Result of removing the heads of one attribute, with random groups of the same size as a baseline."""

    attribute: str
    removed: Drop
    random_means: tuple[float, ...]
    random_spreads: tuple[float, ...]


@dataclass(frozen=True)
class Ablation:
    """Accuracy on every task, and its loss by each ablation."""

    images: int
    tasks: tuple[str, ...]
    base: tuple[float, ...]
    groups: tuple[Group, ...]
    layers: tuple[Drop, ...]
    heads: tuple[Drop, ...]
    draws: int


def check_fits(clip: FrozenClip, roles: RoleMap) -> None:
    """Raise `RoleMapError` for a map of other heads or weights, for which an ablation proves nothing."""
    clip.require({Can.IMAGE_LAYERS}, "Removing heads")
    sizes = clip.geometry
    problems = roles.misfits(
        first_layer=min(head.layer for head in roles.heads),
        layers=sizes.vision_layers,
        heads=sizes.vision_heads,
        weights_sha256=clip.weights_sha256,
    )
    if problems:
        raise RoleMapError(f"The role map does not fit {clip.name}: {'; '.join(problems)}.")


def measure(
    clip: FrozenClip, roles: RoleMap, terms: Terms, tasks: Sequence[Task], *, draws: int = 20, seed: int = 0
) -> Ablation:
    """Ablate every layer, every head of the map, and the heads of each attribute (with random groups as a baseline)."""
    bench = Bench(terms, tasks, class_features(clip, tasks))
    places = [(head.layer, head.head) for head in roles.heads]
    return Ablation(
        images=len(terms.embeddings_NE),
        tasks=tuple(task.name for task in tasks),
        base=bench.base,
        groups=tuple(_group(bench, roles, attribute, places, draws, seed) for attribute in _present(roles)),
        layers=tuple(bench.layer(layer) for layer in range(1, terms.heads_NLHE.shape[1] + 1)),
        heads=tuple(bench.heads(f"head ({layer}, {head})", [(layer, head)]) for layer, head in places),
        draws=draws,
    )


def _present(roles: RoleMap) -> list[str]:
    return [a for a in roles.attributes if any(h.role is Role.CORE and h.concept == a for h in roles.heads)]


def _group(bench: Bench, roles: RoleMap, attribute: str, places: Sequence[Place], draws: int, seed: int) -> Group:
    chosen = [(h.layer, h.head) for h in roles.heads if h.role is Role.CORE and h.concept == attribute]
    removed = bench.heads(f"{attribute} ({len(chosen)} heads)", chosen)
    baseline = [bench.heads("", group).drops for group in random_groups(places, len(chosen), draws, seed)]
    columns = list(zip(*baseline, strict=True))
    return Group(attribute, removed, tuple(mean(c) for c in columns), tuple(pstdev(c) for c in columns))
