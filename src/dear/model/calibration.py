"""Calibration: probabilities that agree with how often answers are right, fitted on images that were held out.

Three things are fitted on logits of held-out images: a temperature for the softmax over classes, a threshold below
which an answer is rejected, and a scale and bias for the probability of each single label.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from dear.storage.documents import Record

FEWEST_IMAGES = 30
"""With fewer held-out images, the fitted numbers are mostly noise."""
REJECTED = 0.05
"""Share of held-out images that the fitted threshold rejects."""
BINS = 15
_WIDEST = 5.0
"""The logarithm of a temperature is between minus and plus this."""


class Calibration(Record):
    """What was fitted on held-out images, for the classes that the adapter was saved with."""

    temperature: float = Field(gt=0)
    """Logits are divided by it before the softmax."""
    reject_below: float = Field(ge=0, le=1)
    """An answer with a smaller probability is rejected; 5 % of the held-out images are."""
    label_scale: float
    label_bias: float
    """The probability of a single label is sigmoid(`label_scale` · logit + `label_bias`)."""
    images: int = Field(ge=1)
    """Number of held-out images."""
    source: str
    """Which images: "validation" images, or "shots" that a second training left out."""
    ece_before: float = Field(ge=0, le=1)
    """Expected calibration error on the held-out images without the temperature."""
    ece_after: float = Field(ge=0, le=1)

    def probabilities(self, logits_BC: Tensor) -> Tensor:
        """Probabilities of the classes of each image, which sum to 1."""
        return (logits_BC / self.temperature).softmax(dim=1)

    def label_probabilities(self, logits_BC: Tensor) -> Tensor:
        """The probability of each label by itself."""
        return (self.label_scale * logits_BC + self.label_bias).sigmoid()


def fit_calibration(logits_NC: Tensor, labels_N: Tensor, source: str) -> Calibration:
    """Fit all numbers on logits of held-out images; deterministic."""
    logits, labels = logits_NC.double().cpu(), labels_N.cpu()
    temperature = fit_temperature(logits, labels)
    scale, bias = fit_labels(logits, labels)
    before, after = logits.softmax(1), (logits / temperature).softmax(1)
    return Calibration(
        temperature=temperature,
        reject_below=float(after.max(1).values.quantile(REJECTED)),
        label_scale=scale,
        label_bias=bias,
        images=len(labels),
        source=source,
        ece_before=answer_calibration_error(before, labels),
        ece_after=answer_calibration_error(after, labels),
    )


def fit_temperature(logits_NC: Tensor, labels_N: Tensor) -> float:
    """The temperature with the least cross-entropy."""

    def loss(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits_NC / np.exp(log_temperature), labels_N))

    found = minimize_scalar(loss, bounds=(-_WIDEST, _WIDEST), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def fit_labels(logits_NC: Tensor, labels_N: Tensor) -> tuple[float, float]:
    """Scale and bias of a logistic regression from a class's logit to whether the image is of that class."""
    x = logits_NC.flatten()
    y = torch.nn.functional.one_hot(labels_N, logits_NC.shape[1]).flatten().to(x.dtype)
    mean, spread = x.mean(), x.std().clamp_min(1e-12)
    z = (x - mean) / spread

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        score = values[0] * z + values[1]
        # A small penalty keeps the scale finite where one logit separates all labels.
        total = torch.nn.functional.binary_cross_entropy_with_logits(score, y) + 1e-4 * values[0] ** 2
        error = score.sigmoid() - y
        gradient = [float((error * z).mean() + 2e-4 * values[0]), float(error.mean())]
        return float(total), np.array(gradient)

    found = minimize(loss, np.array([1.0, -1.0]), jac=True, method="BFGS")
    scale = float(found.x[0] / spread)
    return scale, float(found.x[1] - found.x[0] * mean / spread)


def answer_calibration_error(probabilities_NC: Tensor, labels_N: Tensor) -> float:
    """Expected calibration error of the answers, with 15 bins of equal width."""
    confidence, picks = probabilities_NC.max(1)
    return calibration_error(confidence, picks == labels_N)


def calibration_error(confidence_N: Tensor, right_N: Tensor) -> float:
    """Mean gap between confidence and accuracy over bins of confidence, weighted by the images in each bin."""
    bins = (confidence_N * BINS).long().clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, confidence_N.double() - right_N.double())
    return float(gaps.abs().sum() / max(len(confidence_N), 1))
