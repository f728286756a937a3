"""Linear probe: logistic regression on raw image features, without text.

Shapes: N training images, C classes, E joint embedding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.errors import CorruptArtefactError
from dear.methods.api import About, Batch, ClassList, ConfigError, Draw, Method, Needs, Output, Recipe, Settings
from dear.methods.parts.class_identity import name_bytes, only_trained, places
from dear.progress.stages import stage

Numbers = np.ndarray[Any, Any]
MOST_VALIDATION_SHOTS = 4


class ProbeConfig(Settings):
    """Config of the linear probe."""

    coarse: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(1e6, 1e4, 1e2, 1.0, 1e-2, 1e-4, 1e-6), min_length=1, strict=False
    )
    """Values of C to try first; the first one of the best is used."""
    steps: int = Field(default=8, ge=1, le=100)
    """Steps of the finer search around the best value."""
    C: float = Field(default=0.316, gt=0)
    """C, the inverse regularisation strength, if there are no held-out images to choose it on."""
    max_iter: int = Field(default=1000, ge=1)
    """Maximum number of solver iterations."""


class Searched(NamedTuple):
    """Result of the search for C."""

    C: float
    tried: list[float]
    """C of every fit of the search, in order; equal values are fitted once."""
    accuracy: list[float]
    """Validation accuracy of each."""
    chosen: list[float]
    """The value chosen by each step of the finer search."""


class Probe:
    """Logistic regressions on the same images, one per value of C."""

    def __init__(
        self, features: Numbers, labels: Numbers, max_iter: int = 1000, on_fit: Callable[[int], None] | None = None
    ) -> None:
        self._x, self._y, self._max_iter, self._on_fit = features.astype(np.float64), labels, max_iter, on_fit
        self.fits: dict[float, LogisticRegression] = {}

    def fit(self, C: float) -> LogisticRegression:
        """The fit for C, cached; in float64, as the solver's path depends on the last bits."""
        if C not in self.fits:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                warnings.filterwarnings(
                    "ignore", "The number of unique classes", UserWarning
                )  # expected with few shots
                self.fits[C] = LogisticRegression(C=C, max_iter=self._max_iter).fit(self._x, self._y)
            if self._on_fit is not None:
                self._on_fit(len(self.fits))
        return self.fits[C]

    def search(self, features: Numbers, labels: Numbers, coarse: Sequence[float], steps: int) -> Searched:
        """Find C on validation images: the first best of a coarse list, then bisection of its logarithm."""
        held, tried, accuracy, chosen = features.astype(np.float64), list[float](), list[float](), list[float]()
        scores: dict[float, float] = {}

        def score(C: float) -> float:
            if C not in scores:
                scores[C] = float(np.mean(self.fit(C).predict(held) == labels))
            tried.append(C)
            accuracy.append(scores[C])
            return scores[C]

        found = [score(float(C)) for C in coarse]
        best = float(coarse[int(np.argmax(found))])
        low, high = 1e-1 * best, 1e1 * best
        for _ in range(steps):
            right_is_better = score(low) < score(high)
            middle = float(np.power(10, 0.5 * (np.log10(high) + np.log10(low))))
            chosen.append(high if right_is_better else low)
            low, high = (middle, high) if right_is_better else (low, middle)
        return Searched(chosen[-1], tried, accuracy, chosen)


def published_draw(
    train_labels: Numbers, val_labels: Numbers, shots: int, seed: int, val_shots: int | None = None
) -> tuple[Numbers, Numbers]:
    """Indices of training and validation images as the published code samples them; our commands sample differently."""
    stream = np.random.RandomState(seed)

    def rows(labels: Numbers, count: int) -> Numbers:
        return np.concatenate(
            [stream.choice(np.where(labels == one)[0], count, replace=False) for one in np.unique(labels)]
        )

    return rows(train_labels, shots), rows(val_labels, val_shots or min(shots, MOST_VALIDATION_SHOTS))


class TrainedPlaces(NamedTuple):
    """A class list as indices into the training list."""

    seen: Tensor
    dataset: str | None


class LinearProbe(Method[ProbeConfig]):
    """Logistic regression on CLIP's frozen image features; cannot classify new classes."""

    name = "linear_probe"
    recipe = Recipe(epochs=0)
    needs = Needs(training=("plain:feature",), passes=0, held_out=True, novel=False)
    about = About(
        citation="Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021",
        year=2021,
        touches="a classifier instead of the text",
        parameters=None,
        trained="513 per class",
        code="KaiyangZhou/CoOp ff61507, folder lpclip",
        licence="MIT",
    )
    sized_by_data = ("coef", "intercept", "trained_data")

    def __init__(self, clip: FrozenClip, config: ProbeConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.trained_data: Tensor
        self.C_pen: Tensor
        self._width = clip.geometry.embed_dim
        self.coef, self.intercept = nn.Parameter(torch.empty(0, self._width)), nn.Parameter(torch.empty(0))
        self.register_buffer("trained_data", name_bytes(None))
        self.register_buffer("C_pen", torch.tensor(self.config.C))

    def check_shapes(self) -> None:
        """Check the width and the number of intercepts."""
        if self.coef.ndim != 2 or self.coef.shape[1] != self._width or self.intercept.shape != self.coef.shape[:1]:
            raise ValueError(f"coef and intercept do not fit together, or coef is not of width {self._width}")

    def finish(self, clip: FrozenClip, draw: Draw, held: Draw | None) -> None:
        """Fit the regression; C is chosen on held-out images, if there are any."""
        labels, chosen = draw.labels.cpu().numpy(), self.config.C
        if len(set(labels.tolist())) < 2:
            raise ConfigError("linear_probe needs images of at least two classes: add another class.")
        fits = len(self.config.coarse) + self.config.steps if held is not None else 1
        with stage("fitting", fits) as advance:
            probe = Probe(_numbers(draw.image["plain:feature"]), labels, self.config.max_iter, on_fit=advance)
            if held is not None:
                features, right = _numbers(held.image["feature"]), held.labels.cpu().numpy()
                chosen = probe.search(features, right, self.config.coarse, self.config.steps).C
            self.remember(probe.fit(chosen), draw.classes)
        self.C_pen.fill_(chosen)

    def remember(self, fit: LogisticRegression, classes: ClassList) -> None:
        """Store a fit; scikit-learn has one row for two classes, and none for a class without images."""
        device, rows, count = self.coef.device, torch.from_numpy(fit.classes_), len(classes.names)
        coef, intercept = torch.from_numpy(fit.coef_), torch.from_numpy(fit.intercept_)
        if coef.shape[0] == 1:
            coef, intercept = torch.cat([-coef, coef]) / 2, torch.cat([-intercept, intercept]) / 2
        lowest = intercept.new_full((count,), -1e4)
        self.coef.data = coef.new_zeros(count, coef.shape[1]).index_copy(0, rows, coef).float().to(device)
        self.intercept.data = lowest.index_copy(0, rows, intercept).float().to(device)
        self.trained_data.data = name_bytes(classes.dataset).to(device)

    def classes(self, clip: FrozenClip, classes: ClassList) -> TrainedPlaces:
        """Index of each class in the training list."""
        return TrainedPlaces(places(classes, clip.device), classes.dataset)

    def text(self, clip: FrozenClip, frozen: TrainedPlaces, batch: Batch | None = None) -> Tensor:
        """Row of each class (C,); raises a ConfigError for new classes."""
        only_trained(self.name, frozen.seen, frozen.dataset, self.trained_data)
        fitted = self.coef.shape[0]
        if fitted and int(frozen.seen.max()) >= fitted:
            raise CorruptArtefactError(f"The linear probe has {fitted} classes, fewer than it was trained on.")
        return frozen.seen.clamp_max(fitted)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Decision values of the raw features; zeros before the fit."""
        feature_BE = image["feature"]
        values_BC = F.linear(feature_BE, self.coef.to(feature_BE), self.intercept.to(feature_BE))
        return Output({"logits": F.pad(values_BC, (0, 1))[:, text]}, {"cls": F.normalize(feature_BE, dim=-1)})

    def facts(self) -> dict[str, str]:
        """C, the inverse regularisation strength."""
        return {"C": f"{float(self.C_pen):g}"}


def _numbers(features: Tensor) -> Numbers:
    return features.detach().double().cpu().numpy()
