"""A cache of labelled image features as a classifier, shared by Tip-Adapter and APE.

Shapes: N cached images, C classes, M images to choose on, B images, E joint embedding. Affinities and class sums have
the images last, (N, B) and (C, B), so that adding up the rows of a class needs no one-hot matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.config import Settings
from dear.data.prompts import ClassList, class_list
from dear.methods.base import Batch, Draw, Method, Needs, Output, unit
from dear.methods.parts.class_features import text_weights, usual_templates
from dear.methods.parts.class_identity import known_rows, name_bytes, places
from dear.progress.stages import stage

Scale = Annotated[float, Field(gt=0)]
"""Upper end of a search."""
Steps = Annotated[int, Field(ge=1, le=10_000)]
"""Number of values of a search."""
SMALLEST = 0.1
"""Lower end of the searches for α and β."""


class CacheConfig(Settings):
    """Settings of every method with a cache."""

    templates: tuple[str, ...] = Field(default=(), strict=False)
    """Prompts that are averaged; by default the data set's own, for ImageNet the published seven."""
    passes: int = Field(default=10, ge=1, le=1000)
    """Random views of each cached image, whose features are averaged."""
    init_alpha: float = Field(default=1.17, ge=0)
    """Weight of the cache in training, and in the end if nothing is chosen."""
    init_beta: float = Field(default=1.0, ge=0)
    """Sharpness of the cache in training, and in the end if nothing is chosen."""
    search: bool = True
    """Search for the best values on held-out images, if there are any."""
    search_scale: tuple[Scale, ...] = Field(default=(7.0, 3.0), strict=False)
    """Upper ends of the searches for β and α."""
    search_steps: tuple[Steps, ...] = Field(default=(200, 20), strict=False)
    """Number of values of β and α that are tried."""


class KnownClasses(NamedTuple):
    """A class list before anything learned."""

    weights: Tensor
    """(C, E) text features."""
    seen: Tensor
    """(C,) places in the training list, -1 for others."""
    dataset: str | None


class CacheText(NamedTuple):
    """What a class list is to the cache."""

    weights: Tensor
    """(C, E) text features."""
    place: Tensor
    """(C,) rows of the class sums; the last, empty row for a class without cached images."""


def grid_values(scale: float, steps: int, first: float) -> list[float]:
    """The values of a search; `scale` itself is not included."""
    return [i * (scale - first) / steps + first for i in range(steps)]


def class_sums(values_NB: Tensor, labels_N: Tensor, classes: int) -> Tensor:
    """Sums over the rows of each class (C + 1, B); the last row is empty."""
    return values_NB.new_zeros(classes + 1, values_NB.shape[1]).index_add(0, labels_N, values_NB)


def sharpened(affinity_NB: Tensor, beta: Tensor | float) -> Tensor:
    """exp(−β(1 − cosine))."""
    return torch.exp(-beta * (1 - affinity_NB))


@torch.no_grad()
def search(
    base_MC: Tensor,
    labels_M: Tensor,
    betas: Sequence[float],
    alphas: Sequence[float],
    bonuses: Callable[[float], Iterable[Tensor]],
) -> np.ndarray[Any, Any]:
    """Number of correct predictions of base + α·bonus at every (β, α, γ).

    `bonuses` returns one (M, C) per γ for a β, so that exponentials are computed once for all α.
    """
    found = []
    with stage("searching", len(betas)) as advance:
        for done, beta in enumerate(betas, start=1):
            by_gamma = [
                [int((torch.add(base_MC, bonus_MC, alpha=alpha).argmax(1) == labels_M).sum()) for alpha in alphas]
                for bonus_MC in map(Tensor.contiguous, bonuses(beta))
            ]
            found.append(np.array(by_gamma).T)
            advance(done)
    return np.stack(found)


def first_best(right: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
    """Place of the first largest number, the last axis running fastest; None if all are equal."""
    if right.min() == right.max():
        return None
    return tuple(int(place) for place in np.unravel_index(right.argmax(), right.shape))


CacheT = TypeVar("CacheT", bound=CacheConfig)


class CacheMethod(Method[CacheT]):
    """Text logits plus α times, for each class, the summed and sharpened affinities to its cached images."""

    learns_keys: ClassVar[bool] = False
    reads_descriptions: ClassVar[bool] = False
    numbers: ClassVar[tuple[str, ...]] = ("beta", "alpha")
    smallest: ClassVar[tuple[float, ...]] = (SMALLEST, SMALLEST)
    """Names and lower ends of the values that are searched on held-out images, slowest loop first."""
    sized_by_data: ClassVar[tuple[str, ...]] = ("keys", "labels", "per_class", "trained_data")

    def __init__(self, clip: FrozenClip, config: CacheT, **others: Any) -> None:
        super().__init__(clip, config, **others)
        for template in self.config.templates:
            class_list(["class"], template)  # raises an error for an invalid template
        self.needs = Needs(passes=self.config.passes, held_out=self.config.search)
        self._width = clip.geometry.embed_dim
        keys = torch.empty(0, self._width)
        if self.learns_keys:
            self.keys = nn.Parameter(keys)
        else:
            self.register_buffer("keys", keys)
        self.labels: Tensor
        self.per_class: Tensor
        self.trained_data: Tensor
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("per_class", torch.empty(0, dtype=torch.int64))
        self.register_buffer("trained_data", name_bytes(None))
        for number in self.numbers:
            self.register_buffer(number, torch.tensor(float(getattr(self.config, f"init_{number}"))))

    @torch.no_grad()
    def begin(self, clip: FrozenClip, draw: Draw) -> None:
        """Average the features of every image's views, then make them unit length."""
        self.remember(clip, unit(draw.image["feature"].mean(0)), draw.labels, draw.classes)

    def remember(self, clip: FrozenClip, keys_NE: Tensor, labels_N: Tensor, classes: ClassList) -> None:
        """Store the keys, and everything that depends only on them and the training classes."""
        self.keys.data, self.labels.data = keys_NE.clone(), labels_N.clone()
        self.per_class.data = torch.bincount(labels_N, minlength=len(classes.names))
        self.trained_data.data = name_bytes(classes.dataset).to(labels_N.device)

    def check_shapes(self) -> None:
        """Check the width of the keys, their number and their labels."""
        if self.keys.ndim != 2 or self.keys.shape[1] != self._width:
            raise ValueError(f"keys are not of width {self._width}")
        labels, classes = self.labels, self.per_class.shape[0] if self.per_class.ndim == 1 else -1
        fits = labels.shape == (self.keys.shape[0],) and bool(((labels >= 0) & (labels < classes)).all())
        if not fits or not torch.equal(torch.bincount(labels, minlength=classes), self.per_class):
            raise ValueError("keys, labels and per_class do not fit together")

    def classes(self, clip: FrozenClip, classes: ClassList) -> KnownClasses:
        """Text features from templates and, for methods that read them, descriptions."""
        templates = usual_templates(classes, self.config.templates)
        weights = text_weights(clip, classes, templates, described=self.reads_descriptions)
        return KnownClasses(weights, places(classes, clip.device), classes.dataset)

    def text(self, clip: FrozenClip, frozen: KnownClasses, batch: Batch | None = None) -> CacheText:
        """Text features, and the row of each class in the class sums."""
        rows = known_rows(frozen.seen, frozen.dataset, self.trained_data, self.per_class.shape[0])
        return CacheText(frozen.weights, rows)

    # For subclasses ---------------------------------------------------------------------------------------------

    def moved(self, feature_BE: Tensor) -> Tensor | None:
        """Added to the cosines of each class with its text and its keys: (C + 1, B), last row empty."""
        return None

    def affinity(self, feature_BE: Tensor) -> Tensor:
        """(N, B) affinities of cached and other images."""
        return self.keys @ feature_BE.T

    def key_weights(self, gamma: Tensor | float | None = None) -> Tensor | None:
        """(N, 1) weights of the cached images, if they differ."""
        return None

    # -----------------------------------------------------------------------------------------------------------------

    def sums(self, affinity_NB: Tensor, beta: Tensor | float, gamma: Tensor | float | None = None) -> Tensor:
        """(C + 1, B) class sums of weighted, sharpened affinities."""
        weights, values = self.key_weights(gamma), sharpened(affinity_NB, beta)
        return class_sums(values if weights is None else values * weights, self.labels, self.per_class.shape[0])

    def parts(self, clip: FrozenClip, feature_BE: Tensor, text: CacheText) -> tuple[Tensor, Tensor]:
        """Text logits (B, C) and affinities (N, B)."""
        cosines, affinity, moved = feature_BE @ text.weights.T, self.affinity(feature_BE), self.moved(feature_BE)
        if moved is not None:
            cosines, affinity = cosines + moved[text.place].T, affinity + moved[self.labels]
        return clip.temperature * cosines, affinity

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: CacheText, batch: Batch | None = None
    ) -> Output:
        """Text logits plus α times the cache's."""
        feature_BE = unit(image["feature"])
        base_BC, affinity_NB = self.parts(clip, feature_BE, text)
        bonus_BC = self.sums(affinity_NB, self.get_buffer("beta"))[text.place].T
        logits_BC = base_BC + self.get_buffer("alpha") * bonus_BC
        return Output({"logits": logits_BC}, {"cls": feature_BE}, classes=text.weights)

    def tried(self) -> list[list[float]]:
        """The values to try."""
        ends, steps = self.config.search_scale, self.config.search_steps
        return [grid_values(*one) for one in zip(ends, steps, self.smallest, strict=True)]

    @torch.no_grad()
    def accuracies(self, clip: FrozenClip, held: Draw) -> np.ndarray[Any, Any]:
        """Correct predictions on held-out images for every combination of values."""
        text = self.text(clip, self.classes(clip, held.classes))
        base_MC, affinity_NM = self.parts(clip, unit(held.image["feature"]), text)
        betas, alphas, *gammas = self.tried()

        def bonuses(beta: float) -> Iterable[Tensor]:
            return (self.sums(affinity_NM, beta, gamma)[text.place].T for gamma in (gammas[0] if gammas else [None]))

        right = search(base_MC, held.labels, betas, alphas, bonuses)
        return right if gammas else right[..., 0]

    def choose(self, clip: FrozenClip, held: Draw) -> dict[str, float]:
        """The first best values; the initial ones if all are equal."""
        best = first_best(self.accuracies(clip, held))
        if best is None:
            return {number: float(getattr(self.config, f"init_{number}")) for number in self.numbers}
        return {number: tried[at] for number, tried, at in zip(self.numbers, self.tried(), best, strict=True)}

    @torch.no_grad()
    def finish(self, clip: FrozenClip, draw: Draw, held: Draw | None) -> None:
        """Choose α, β and further values on held-out images, with the trained keys."""
        if held is not None and self.config.search:
            for number, value in self.choose(clip, held).items():
                self.get_buffer(number).fill_(value)

    def facts(self) -> dict[str, str]:
        """The chosen values."""
        return {number: f"{float(self.get_buffer(number)):g}" for number in self.numbers}
