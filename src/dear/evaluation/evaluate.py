"""Evaluates a model on test images, for every readout of its method at once; an unreadable image counts as wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dear.backbone.frozen import layer_named
from dear.data.dataset import Dataset, Item
from dear.data.splits import Half, labels_of
from dear.engine.feature_cache import BATCH, StateBatch, evaluation_states
from dear.errors import ConfigError, DataError
from dear.evaluation.results import PerClass, Scores
from dear.evaluation.test_data import Newness
from dear.evaluation.verdict import Verdict, verdict
from dear.model.calibration import calibration_error
from dear.model.model import Model


@dataclass(frozen=True)
class Evaluation:
    """The result of a test: scores, the answer to every image, and the images that could not be read."""

    scores: Scores
    picks: Tensor
    """The class that the default readout picks for each image, -1 if the image is unreadable."""
    confidence: Tensor
    """The probability of each picked class."""
    problems: dict[int, str]
    """One message for each unreadable image, by index."""
    weights: dict[str, float] = field(default_factory=dict)
    """The method's learned weights, by name."""
    plain: Scores | None = None
    """Scores of plain CLIP on the same images, if requested."""
    method: str = ""
    """Name of the method."""
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    """The right class of each image."""
    plain_picks: Tensor | None = None
    """The classes that plain CLIP picks, if requested."""
    readout: str = ""
    """Name of the default readout, which gave `picks`."""
    new: Newness = "unknown"
    """What in the test is known to be new to the model."""
    calibrated: Tensor | None = None
    """The probability of each picked class after calibration; None if the model is not calibrated for these classes."""
    warnings: tuple[str, ...] = ()
    """Sentences about what makes the scores doubtful, such as test photos that nearly equal training photos."""

    def calibration_sentence(self) -> str:
        """How far confidence and accuracy are apart (ECE), before and after calibration; empty without one."""
        if self.calibrated is None:
            return ""
        read = self.picks >= 0
        right = (self.picks == self.labels)[read]
        before, after = (calibration_error(one[read], right) for one in (self.confidence, self.calibrated))
        return (
            f"Confidence and accuracy differ by {100 * before:.1f} points on average (ECE), "
            f"and by {100 * after:.1f} after calibration."
        )

    def verdict(self) -> Verdict:
        """Compare the test with plain CLIP; as text, one sentence, or two if classes are unbalanced."""
        return verdict(self)

    def __repr__(self) -> str:
        """The scores in one line."""
        accuracies = ", ".join(f"{name} {value:.1f} %" for name, value in self.scores.accuracy.items())
        return f"Evaluation({self.method} on {self.scores.images:,} images of {self.scores.data}: {accuracies})"


@torch.inference_mode()
def evaluate_items(
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    *,
    half: Half = "all",
    cache: Path | None = None,
    batch_size: int = BATCH,
    workers: int = 2,
    beside_plain: bool = False,
    progress: Callable[[int], None] | None = None,
    features: dict[int, Tensor] | None = None,
    also: Sequence[str] = (),
) -> Evaluation:
    """Score a model on items whose labels are indices of its classes; with `beside_plain`, score plain CLIP too.

    With `beside_plain`, a dictionary passed as `features` is filled with plain CLIP's image features by item index.
    `also` names quantities that are cached in the same pass, for methods that read them later.
    """
    if not items:
        raise DataError(f"{dataset.name} has no images to test on.")
    model = model.plain() if model.is_disabled else model
    names = model.required_classes().names
    _check_classes(names, dataset, half)
    labels = torch.tensor([item.label for item in items])
    picks = {name: torch.full((len(items),), -1) for name in dict.fromkeys(model.method.readouts.values())}
    plain, confidence = torch.full((len(items),), -1), torch.zeros(len(items))
    calibration, calibrated = model.calibrated(), torch.zeros(len(items))
    problems: dict[int, str] = {}
    weights: dict[str, float] = {}
    names_too = _names_beside_plain(model) if beside_plain else None
    read = partial(evaluation_states, model, dataset, items, cache=cache, also=also, names=names_too)
    batches = read(batch_size=batch_size, workers=workers, problems=problems, progress=progress)
    for one in batches:
        out, indices = model(given=one.states), list(one.indices)
        confidence[indices] = out.logits.softmax(dim=1).max(dim=1).values.float().cpu()
        if calibration is not None:
            calibrated[indices] = calibration.probabilities(out.logits).max(dim=1).values.float().cpu()
        for name, picked in picks.items():
            picked[indices] = out.readouts[name].argmax(dim=1).cpu()
        weights = {name: round(float(value), 6) for name, value in out.weights.items()}
        if beside_plain:
            plain[indices] = _plain_picks(model.plain(), one, features)

    scored = partial(_scored, dataset.name, half, names, labels, problems)
    return Evaluation(
        scored(picks),
        picks[model.readout()],
        confidence,
        problems,
        weights,
        scored({model.plain().readout(): plain}) if beside_plain else None,
        model.name,
        labels,
        plain if beside_plain else None,
        model.readout(),
        calibrated=None if calibration is None else calibrated,
    )


def _scored(
    data: str,
    half: Half,
    names: Sequence[str],
    labels: Tensor,
    problems: Mapping[int, str],
    by_readout: Mapping[str, Tensor],
) -> Scores:
    """Accuracy by readout and by class."""
    right = {name: picked == labels for name, picked in by_readout.items()}
    return Scores(
        data=data,
        half=half,
        images=len(labels),
        unreadable=len(problems),
        accuracy={name: _percent(one) for name, one in right.items()},
        per_class=_per_class(names, labels, right),
        problems=tuple(problems[index] for index in sorted(problems)),
    )


def _names_beside_plain(model: Model) -> tuple[str, ...] | None:
    """What the method and plain CLIP read of test images; None if plain CLIP needs nothing else than the method."""
    names, plain = model.names(), model.plain().names()
    if set(plain) <= set(names) or any(layer_named(name) is not None for name in names):
        return None
    return (*names, *plain)


def _plain_picks(plain: Model, one: StateBatch, features: dict[int, Tensor] | None) -> Tensor:
    """The classes that plain CLIP picks; its features are added to `features`, if any, by image index."""
    out = plain(given=one.states)
    if features is not None:
        features.update(zip(one.indices, out.features["cls"].half().cpu(), strict=True))
    picks: Tensor = out.logits.argmax(dim=1).cpu()
    return picks


def _check_classes(names: Sequence[str], dataset: Dataset, half: Half) -> None:
    """Raise an error unless the model's classes are the data set's, in the same order."""
    asked = labels_of(dataset, half)
    if tuple(names) != dataset.names_in(asked):
        raise ConfigError(
            f"The model's classes differ from the {half} classes of {dataset.name} or from their order, so that its "
            f"answers would be scored wrongly: evaluate model.for_classes(…) with the classes of the data set."
        )


def _per_class(names: Sequence[str], labels: Tensor, right: Mapping[str, Tensor]) -> dict[str, PerClass]:
    """Number of images and accuracy of each class, in one pass over the images."""
    images = torch.bincount(labels, minlength=len(names)).tolist()
    hits = {
        name: torch.bincount(labels[one], minlength=len(names)).tolist() if len(labels) else [0] * len(names)
        for name, one in right.items()
    }
    return {
        name: PerClass(
            images=images[index],
            accuracy={r: 100 * counts[index] / images[index] if images[index] else 0.0 for r, counts in hits.items()},
        )
        for index, name in enumerate(names)
    }


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean()) if len(right) else 0.0
