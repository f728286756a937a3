"""The verdict of a test in one sentence: the accuracy, its uncertainty, and whether it beats plain CLIP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dear.data.splits import Half
from dear.errors import ConfigError
from dear.evaluation.results import Scores
from dear.evaluation.statistics import AnswerTest, Interval, answers_test, share_interval
from dear.evaluation.test_data import Newness

if TYPE_CHECKING:
    from dear.evaluation.evaluate import Evaluation

LEVEL = 0.05
"""A difference with a p value below this is called beyond chance."""
FINE = 3.0
"""Intervals with a half-width below this, in points, are printed with one decimal."""
UNBALANCED = 2
"""Classes are unbalanced if the largest has at least this many times the images of the smallest."""
WHICH: Mapping[Newness, tuple[str, str]] = {
    "unknown": ("", ""),
    "images": ("", " it was not trained on"),
    "images of trained classes": ("new ", " of trained classes"),
    "classes": ("", " of classes it was not trained on"),
}
"""Words before and after the word "images"."""


@dataclass(frozen=True)
class Balance:
    """Sizes of unbalanced classes (fewest and most images), and accuracies averaged over classes."""

    fewest: int
    most: int
    adapted: float
    plain: float


@dataclass(frozen=True)
class Verdict:
    """A test of an adapter beside plain CLIP on the same images, in per cent."""

    half: Half
    images: int
    accuracy: float
    ends: Interval
    """The accuracy's 95 % interval (Wilson)."""
    plain: float
    test: AnswerTest
    """McNemar's exact test of the answers, plain CLIP's second."""
    balance: Balance | None
    """Set if classes are unbalanced."""
    new: Newness

    @property
    def beyond_chance(self) -> bool:
        """Whether the difference to plain CLIP is significant."""
        return self.test.p < LEVEL

    @property
    def same_answers(self) -> bool:
        """Whether plain CLIP is right and wrong on the very same images."""
        return self.test.only_first == self.test.only_second == 0

    def __str__(self) -> str:
        """The verdict in one or two sentences."""
        return " ".join(filter(None, (sentence(self), balance_sentence(self))))

    def as_dict(self) -> dict[str, Any]:
        """The verdict as plain values, for JSON."""
        balance = self.balance
        return {
            "sentence": sentence(self),
            "images": self.images,
            "accuracy": self.accuracy,
            "low": self.ends.low,
            "high": self.ends.high,
            "plain": self.plain,
            "only_adapted_right": self.test.only_first,
            "only_plain_right": self.test.only_second,
            "p": self.test.p,
            "mean_per_class": {"adapted": balance.adapted, "plain": balance.plain} if balance else None,
        }


def verdict(evaluation: Evaluation) -> Verdict:
    """Judge a test of the default readout that also tested plain CLIP."""
    if evaluation.plain is None or evaluation.plain_picks is None:
        raise ConfigError("A verdict needs plain CLIP's answers to the same images: evaluate with beside_plain=True.")
    labels = evaluation.labels
    right, plain = (evaluation.picks == labels).tolist(), (evaluation.plain_picks == labels).tolist()
    images = len(right)
    ends = share_interval(sum(right), images)
    return Verdict(
        half=evaluation.scores.half,
        images=images,
        accuracy=100 * sum(right) / images,
        ends=Interval(100 * ends.low, 100 * ends.high),
        plain=100 * sum(plain) / images,
        test=answers_test(right, plain),
        balance=_balance(evaluation, evaluation.plain),
        new=evaluation.new,
    )


def sentence(judged: Verdict) -> str:
    """The verdict as one sentence."""
    digits = 1 if _half_width(judged) < FINE else 0
    before, after = WHICH[judged.new]
    some, are = (f"1 {before}image", "is") if judged.images == 1 else (f"{judged.images:,} {before}images", "are")
    accuracy = f"{judged.accuracy:.{digits}f} % of {some}{after} {are} named correctly"
    return f"{accuracy}, {_uncertainty(judged, digits)}; {_beside_plain(judged, digits)}."


def balance_sentence(judged: Verdict) -> str:
    """A sentence about the mean over classes if they are unbalanced, else ""."""
    if judged.balance is None:
        return ""
    one = judged.balance
    return (
        f"Classes have {one.fewest:,} to {one.most:,} test images: averaged over classes, {one.adapted:.0f} % are "
        f"correct, {one.plain:.0f} % with plain CLIP."
    )


def mean_per_class(scores: Scores, readout: str) -> float:
    """Accuracy averaged over the classes that have images."""
    return fmean(one.accuracy[readout] for one in scores.per_class.values() if one.images)


def _half_width(judged: Verdict) -> float:
    return (judged.ends.high - judged.ends.low) / 2


def _uncertainty(judged: Verdict, digits: int) -> str:
    width = _half_width(judged)
    if judged.accuracy + width > 100:
        return f"expect at least {judged.ends.low:.{digits}f} %"
    if judged.accuracy - width < 0:
        return f"expect at most {judged.ends.high:.{digits}f} %"
    return f"± {width:.{digits}f} points"


def _beside_plain(judged: Verdict, digits: int) -> str:
    if judged.same_answers:
        return "plain CLIP names exactly the same images correctly"
    better = "worse" if judged.test.only_first < judged.test.only_second else "better"
    significant = "yes" if judged.beyond_chance else "no"
    return f"plain CLIP {judged.plain:.{digits}f} %; {better} beyond chance: {significant}"


def _balance(evaluation: Evaluation, plain: Scores) -> Balance | None:
    counts = [one.images for one in evaluation.scores.per_class.values() if one.images]
    if max(counts) < UNBALANCED * min(counts):
        return None
    adapted = mean_per_class(evaluation.scores, evaluation.readout)
    return Balance(min(counts), max(counts), adapted, mean_per_class(plain, next(iter(plain.accuracy))))
