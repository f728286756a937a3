"""GDA: one Gaussian per class with a common covariance, fitted in closed form, as a second classifier next to the text.

Shapes: V views, N training images, K neighbours, C classes, M held-out images, B images, E joint embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dear.methods.api import (
    About,
    Batch,
    ClassList,
    Draw,
    FrozenClip,
    Method,
    Needs,
    Output,
    Recipe,
    Settings,
    Special,
    unit,
)
from dear.methods.parts.caches import KnownClasses
from dear.methods.parts.class_features import text_weights, usual_templates
from dear.methods.parts.class_identity import known_rows, name_bytes, only_trained, places

ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Weights of the Gaussians that are tried."""
Estimator = Literal["pooled", "by_class"]


class GDAConfig(Settings):
    """Config of GDA."""

    passes: int = Field(default=10, ge=1, le=1000)
    """Random views of each training image."""
    neighbours: int = Field(default=64, ge=0)
    """Training views next to a new class's text that its Gaussian is fitted to. With 0, no views are stored, new
    classes are rejected, and the covariance is that of the published few-shot code."""
    text_copies: int = Field(default=16, ge=0)
    """Copies of the text feature in the mean of a new class."""
    alpha: float = Field(default=0.1, ge=0)
    """Weight of the Gaussians if it is not chosen on held-out images."""
    search: bool = True
    """Choose the weight of the Gaussians on held-out images, if there are any."""

    @property
    def estimator(self) -> Estimator:
        """Covariance of the trained classes: the mean of their own, or, if no others follow, of all images, shrunk."""
        return "by_class" if self.neighbours else "pooled"


class Gaussians(NamedTuple):
    """Gaussians with a common covariance."""

    means: Tensor
    """(C, E)."""
    precision: Tensor
    """(E, E), in double precision."""

    def linear(self) -> tuple[Tensor, Tensor]:
        """Log-densities as a linear function of a feature, without terms that all classes share: (C, E) and (C,)."""
        weight_CE = self.means.double() @ self.precision
        bias_C = -0.5 * (weight_CE * self.means).sum(1)
        return weight_CE.to(self.means.dtype), bias_C.to(self.means.dtype)


class GDAText(NamedTuple):
    """A class list to both classifiers."""

    weights: Tensor
    """(C, E) text features."""
    gauss: Tensor
    """(C, E)."""
    bias: Tensor
    """(C,)."""


def pseudo_inverse(matrix_EE: Tensor) -> Tensor:
    """The pseudo-inverse with the published cut, that of single precision."""
    cut = matrix_EE.shape[0] * torch.finfo(torch.float32).eps
    inverse_EE: Tensor = torch.linalg.pinv(matrix_EE.double(), rtol=cut, hermitian=True)
    return inverse_EE


def fit_trained(views_VNE: Tensor, labels_N: Tensor, text_CE: Tensor, estimator: Estimator) -> Gaussians:
    """Gaussians of unit features; the mean of a class without images is its text feature."""
    passes, width = views_VNE.shape[0], views_VNE.shape[2]
    count_C = passes * torch.bincount(labels_N, minlength=text_CE.shape[0])[:, None]
    sums_CE = torch.zeros_like(text_CE).index_add(0, labels_N, views_VNE.sum(0))
    means_CE = torch.where(count_C > 0, sums_CE / count_C.clamp_min(1), text_CE)
    if estimator == "pooled":
        share_C = torch.full_like(count_C, 1, dtype=torch.float64) / max(1, int(count_C.sum()) - 1)
    else:
        share_C = 1 / (count_C - 1).clamp_min(1).double() / int((count_C > 0).sum())
    share_N, covariance_EE = share_C[labels_N].to(views_VNE.dtype), torch.zeros(width, width, dtype=torch.float64)
    covariance_EE = covariance_EE.to(views_VNE.device)
    for view_NE in views_VNE:
        around_NE = view_NE - means_CE[labels_N]
        covariance_EE += (around_NE * share_N).T @ around_NE
    if estimator == "by_class":
        return Gaussians(means_CE, pseudo_inverse(covariance_EE))
    shrunk_EE = (int(count_C.sum()) - 1) * covariance_EE
    shrunk_EE.diagonal().add_(covariance_EE.trace())
    return Gaussians(means_CE, width * pseudo_inverse(shrunk_EE))


def fit_new(views_NE: Tensor, text_CE: Tensor, neighbours: int, copies: int) -> Gaussians:
    """Gaussians of new classes, from the training views next to the text of each; their precisions are averaged.

    A class's scatter has at most K directions, so its shrunk inverse needs a K × K one only.
    """
    count, width = min(neighbours, views_NE.shape[0]), views_NE.shape[1]
    means, kept = [], torch.zeros(width, width, dtype=torch.float64, device=views_NE.device)
    diagonal = 0.0
    for text_E in text_CE:
        near_KE = views_NE[(views_NE @ text_E).topk(count).indices]
        means.append((near_KE.sum(0) + copies * text_E) / (count + copies))
        around_KE = (near_KE - text_E).double()
        spread = float(around_KE.square().sum()) / max(1, count - 1)
        if not spread:  # the pseudo-inverse of zeros
            continue
        inner_KK = around_KE @ around_KE.T
        inner_KK.diagonal().add_(spread)
        kept -= around_KE.T @ torch.linalg.solve(inner_KK, around_KE) / spread
        diagonal += 1 / spread
    kept.diagonal().add_(diagonal)
    return Gaussians(torch.stack(means), kept * width / text_CE.shape[0])


class GDA(Method[GDAConfig]):
    """Gaussians of the classes' image features as a second classifier; nothing is trained."""

    name = "gda"
    recipe = Recipe(epochs=0, crop=(0.5, 1.0))
    special = (Special(config={"neighbours": 0}, protocols=("few-shot",)),)
    about = About(
        citation="Wang et al., A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation, ICLR 2024",
        year=2024,
        touches="logits, by Gaussians of image features",
        parameters=0,
        code="mrflogs/ICLR24 560fe21",
        licence="none stated",
    )
    sized_by_data = ("weight", "bias", "views", "trained_data")

    def __init__(self, clip: FrozenClip, config: GDAConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        chosen, novel = self.config.search, self.config.neighbours > 0
        self.needs = Needs(passes=self.config.passes, held_out=chosen, novel=novel, independent=False)
        self._width = clip.geometry.embed_dim
        self.weight: Tensor
        self.bias: Tensor
        self.views: Tensor
        self.trained_data: Tensor
        self.alpha: Tensor
        self.register_buffer("weight", torch.empty(0, self._width))
        self.register_buffer("bias", torch.empty(0))
        self.register_buffer("views", torch.empty(0, self._width))
        self.register_buffer("trained_data", name_bytes(None))
        self.register_buffer("alpha", torch.tensor(self.config.alpha))

    def check_shapes(self) -> None:
        """Check the widths and the number of biases."""
        if any(one.ndim != 2 or one.shape[1] != self._width for one in (self.weight, self.views)):
            raise ValueError(f"weight or views are not of width {self._width}")
        if self.bias.shape != self.weight.shape[:1]:
            raise ValueError("weight and bias do not fit together")

    @torch.no_grad()
    def begin(self, clip: FrozenClip, draw: Draw) -> None:
        """Fit the Gaussians of the trained classes; store the views if new classes can follow."""
        views_VNE, text_CE = unit(draw.image["feature"]), self.classes(clip, draw.classes).weights
        fitted = fit_trained(views_VNE, draw.labels, text_CE, self.config.estimator)
        self.weight.data, self.bias.data = fitted.linear()
        self.trained_data.data = name_bytes(draw.classes.dataset).to(clip.device)
        if self.needs.novel:
            self.views.data = views_VNE.flatten(0, 1)

    def classes(self, clip: FrozenClip, classes: ClassList) -> KnownClasses:
        """Text features from templates, and which classes were trained."""
        weights_CE = text_weights(clip, classes, usual_templates(classes))
        return KnownClasses(weights_CE, places(classes, clip.device), classes.dataset)

    @torch.no_grad()
    def text(self, clip: FrozenClip, frozen: KnownClasses, batch: Batch | None = None) -> GDAText:
        """Both classifiers of a list; the prior of every class is the same."""
        count = self.weight.shape[0]
        rows = known_rows(frozen.seen, frozen.dataset, self.trained_data, count)
        gauss_CE, bias_C = F.pad(self.weight, (0, 0, 0, 1))[rows], F.pad(self.bias, (0, 1))[rows]
        new_C = rows == count
        if count and bool(new_C.any()):
            if not self.needs.novel:
                only_trained(self.name, frozen.seen, frozen.dataset, self.trained_data)
            near = fit_new(self.views, frozen.weights[new_C], self.config.neighbours, self.config.text_copies)
            gauss_CE[new_C], bias_C[new_C] = near.linear()
        return GDAText(frozen.weights, gauss_CE, bias_C - math.log(rows.shape[0]))

    def parts(self, clip: FrozenClip, feature_BE: Tensor, text: GDAText) -> tuple[Tensor, Tensor]:
        """Logits by the text and by the Gaussians, both (B, C)."""
        return clip.temperature * feature_BE @ text.weights.T, F.linear(feature_BE, text.gauss, text.bias)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: GDAText, batch: Batch | None = None
    ) -> Output:
        """Text logits plus α times those of the Gaussians."""
        feature_BE = unit(image["feature"])
        text_BC, gauss_BC = self.parts(clip, feature_BE, text)
        return Output({"logits": text_BC + self.alpha * gauss_BC}, {"cls": feature_BE}, classes=text.weights)

    @torch.no_grad()
    def accuracies(self, clip: FrozenClip, held: Draw) -> list[int]:
        """Correct predictions on held-out images for every α."""
        text = self.text(clip, self.classes(clip, held.classes))
        text_MC, gauss_MC = self.parts(clip, unit(held.image["feature"]), text)
        return [int(((text_MC + alpha * gauss_MC).argmax(1) == held.labels).sum()) for alpha in ALPHAS]

    def finish(self, clip: FrozenClip, draw: Draw, held: Draw | None) -> None:
        """Choose the first best α on held-out images; the initial one if all are equally good."""
        if held is not None and self.config.search:
            right = self.accuracies(clip, held)
            best = self.config.alpha if min(right) == max(right) else ALPHAS[right.index(max(right))]
            self.alpha.fill_(best)

    def facts(self) -> dict[str, str]:
        """The chosen weight."""
        return {"alpha": f"{float(self.alpha):g}"}
