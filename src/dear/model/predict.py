"""`predict`: classify files, PIL images, arrays or bytes among any list of classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.config import whole_number
from dear.data.descriptions import read_descriptions
from dear.data.images import read_batches
from dear.data.inputs import image_stream
from dear.data.prompts import ClassList
from dear.errors import ConfigError, DearWarning, ImageError, InputError, is_typed, option
from dear.methods.base import Output
from dear.model.calibration import Calibration
from dear.progress.display import watched
from dear.progress.stages import counting, stage

PREDICTING = "predicting"
THRESHOLD = 0.5
"""Least probability of a label, if none is chosen."""
OnError = Literal["raise", "skip"]
PREDICTS = (
    "Images must be paths, PIL images, bytes of image files, or arrays of pixels: (H, W, 3) of uint8, or "
    "tensors (3, H, W) of uint8 or from 0 to 1; preprocessed tensors go to model(images)"
)


@dataclass(frozen=True)
class Prediction:
    """The predicted class of one image."""

    image: str
    """The file's path, or the image's index in the list."""
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    """The likeliest classes with their probabilities, likeliest first."""
    labels: tuple[tuple[str, float], ...] | None = None
    """With `multi_label`: all classes whose probability is at least the threshold, likeliest first; with `reject`: the
    likeliest class, or none if its probability is less; else None."""

    def __repr__(self) -> str:
        """One line, without the other classes."""
        shown = ((self.label, self.probability),) if self.labels is None else self.labels
        return f"Prediction({self.image}: {_listed(shown) or 'none of these'})"

    def text(self) -> str:
        """The likeliest classes in one line; with `multi_label`, the labels."""
        if self.labels is None:
            return _listed(self.top)
        return _listed(self.labels) or f"none of these (likeliest: {_listed(self.top[:1])})"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `labels` only with `multi_label`."""
        return {name: value for name, value in asdict(self).items() if name != "labels" or value is not None}


def _listed(classes: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {100 * p:.1f} %" for name, p in classes)


class AnswerRule(NamedTuple):
    """How probabilities become an answer: the likeliest class, any number of labels, or none of these."""

    several: bool = False
    reject: bool = False
    threshold: float | None = None
    """Least probability of a label; None for the fitted one."""


class Classifier(Protocol):
    """The interface that `predict` needs: a `dear.Model` has it."""

    clip: FrozenClip

    def __call__(self, images: Tensor) -> Output:
        """Classify preprocessed images."""
        ...

    def for_classes(
        self,
        classes: Sequence[str],
        template: str | None = None,
        *,
        descriptions: Mapping[str, Sequence[str]] | None = None,
    ) -> Classifier:
        """The same model for other classes."""
        ...

    def required_classes(self) -> ClassList:
        """The model's class list."""
        ...

    def check_readout(self, name: str | None) -> str:
        """A valid readout name."""
        ...

    def check_multi_label(self, readout: str | None = None) -> None:
        """Raise an error if a readout has no probability of a single label."""
        ...

    def calibrated(self, readout: str | None = None) -> Calibration | None:
        """The calibration of a readout, if there is one."""
        ...


def predict(
    model: Classifier,
    images: Sequence[Any],
    classes: Sequence[str] | None = None,
    *,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    readout: str | None = None,
    top_k: int = 5,
    batch_size: int = 32,
    workers: int = 2,
    progress: bool | Callable[[str, int, int], None] | None = None,
    on_error: OnError = "raise",
    multi_label: bool = False,
    reject: bool = False,
    threshold: float | None = None,
) -> list[Prediction]:
    """Classify images among the model's classes, or among any others.

    Args:
        model: a trained model.
        images: one image or several: paths, PIL images, bytes of image files, arrays (H, W, 3) of uint8, or
            tensors (3, H, W) of uint8 or from 0 to 1.
        classes: class names to use instead of the model's own.
        template: the prompt template, with {} for the class name.
        descriptions: sentences about classes, for methods that read them: a mapping, or a JSON file.
        readout: name of the method's readout; by default its first.
        top_k: number of likeliest classes to return per image.
        batch_size: number of images that are classified at once.
        workers: threads that read images.
        progress: True for a progress bar on stderr, or a function of the number of images done and their total.
        on_error: "raise" an `ImageError` for the first image that cannot be read, or "skip" such images with one
            warning; `Prediction.image` names the image of each prediction.
        multi_label: any number of labels per image, each with its own probability; for models with a sigmoid loss,
            and for calibrated ones.
        reject: answer "none of these" if the likeliest class is not likely enough.
        threshold: least probability of a label; by default 0.5 with `multi_label`, and the fitted one with `reject`.
    """
    rule = answer_rule(multi_label, reject, threshold)
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error is {on_error!r}, but can be 'raise' or 'skip'.")
    with watched(counting(progress, PREDICTING)):
        results = list(
            stream(
                model,
                images,
                classes,
                template=template,
                descriptions=descriptions,
                readout=readout,
                top_k=top_k,
                batch_size=batch_size,
                workers=workers,
                rule=rule,
            )
        )
    return _readable(results, on_error)


def _readable(results: Sequence[Prediction | ImageError], on_error: OnError) -> list[Prediction]:
    """The predictions; images that cannot be read raise an error or are left out with a warning."""
    bad = [one for one in results if isinstance(one, ImageError)]
    if bad and on_error == "raise":
        raise bad[0]
    if bad:
        warnings.warn(
            f"{len(bad)} of {len(results)} images are left out, the first: {bad[0]}", DearWarning, stacklevel=4
        )
    return [one for one in results if isinstance(one, Prediction)]


def stream(
    model: Classifier,
    images: Any,
    classes: Sequence[str] | None = None,
    *,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    readout: str | None = None,
    top_k: int = 5,
    batch_size: int = 32,
    workers: int = 2,
    rule: AnswerRule = AnswerRule(),  # noqa: B008 - immutable
) -> Iterator[Prediction | ImageError]:
    """Like `predict`, but yields one result at a time; an unreadable image gives an `ImageError`.

    At most two batches of images are in memory, however many an `ImageStream` or a generator has.
    With several labels, every class has a probability of its own; otherwise those of an image sum to 1.
    """
    chosen = model.check_readout(readout)
    whole_number("top_k", top_k, least=1)
    listed = image_stream(images, PREDICTS)
    if classes is not None or template is not None or descriptions is not None:
        names = classes if classes is not None else model.required_classes().names
        sentences = None if descriptions is None else read_descriptions(descriptions)
        model = model.for_classes(names, template, descriptions=sentences)
    names, done = model.required_classes().names, 0
    if rule.several:
        model.check_multi_label(chosen)
    least = _threshold(model, chosen, rule)
    with stage(PREDICTING, listed.total) as count:
        for batch in read_batches(listed.images, model.clip.preprocess_eval, size=batch_size, workers=workers):
            tensors = [one for _, one in batch if isinstance(one, Tensor)]
            scores = iter(_probabilities(model, tensors, chosen, rule) if tensors else ())
            for name, one in batch:
                if isinstance(one, ImageError):
                    yield one
                else:
                    yield _prediction(name, next(scores), names, top_k, rule, least)
            done += len(batch)
            count(done)


def _probabilities(model: Classifier, images: Sequence[Tensor], readout: str, rule: AnswerRule) -> Tensor:
    """(B, C) probabilities, calibrated if the model is: with several labels, of each class by itself."""
    with torch.inference_mode():
        out = model(torch.stack(tuple(images)).to(model.clip.device))
        logits = out.readouts.get(readout, out.logits)  # within model.disabled() there is only one readout
        if not bool(logits.isfinite().all()):
            raise InputError("The model's scores are not finite, so the adapter is unusable: train it again.")
        if calibration := model.calibrated(readout):
            found = calibration.label_probabilities if rule.several else calibration.probabilities
            return found(logits).cpu()
        return ((logits + model.clip.bias).sigmoid() if rule.several else logits.softmax(dim=1)).cpu()


def _threshold(model: Classifier, readout: str, rule: AnswerRule) -> float:
    """The least probability of a label."""
    if rule.threshold is not None:
        return rule.threshold
    if not rule.reject:
        return THRESHOLD
    if calibration := model.calibrated(readout):
        return calibration.reject_below
    raise ConfigError(
        f"No threshold is fitted for these classes and this readout: give {option(threshold=0.5)} to "
        f"{option(reject=True)}, or run 'dear calibrate RUN' and use the run's own classes and readout."
    )


def answer_rule(multi_label: bool, reject: bool, threshold: float | None) -> AnswerRule:
    """Check the three options about answers."""
    for name, value in (("multi_label", multi_label), ("reject", reject)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}: give True or False.")
    if multi_label and reject:
        raise ConfigError(
            f"With {option(multi_label=True)} an image can have no label at all: leave out {option(reject=True)}."
        )
    if threshold is None:
        return AnswerRule(multi_label, reject)
    name = "--threshold" if is_typed() else "threshold"
    if not multi_label and not reject:
        raise ConfigError(
            f"{name} is the least probability of a label: use it with {option(multi_label=True)} or "
            f"{option(reject=True)}."
        )
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold < 1:
        raise ConfigError(f"{name} is {threshold!r}: give a number from 0 to less than 1.")
    return AnswerRule(multi_label, reject, float(threshold))


def _prediction(
    image: str, probabilities: Tensor, names: Sequence[str], top: int, rule: AnswerRule, least: float
) -> Prediction:
    """The likeliest classes and, if labels have a threshold, the labels."""
    best = probabilities.topk(len(names) if rule.several else min(top, len(names)))
    named = tuple((names[i], p) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True))
    labels = tuple(one for one in (named if rule.several else named[:1]) if one[1] >= least)
    return Prediction(image, *named[0], named[:top], labels if rule.several or rule.reject else None)
