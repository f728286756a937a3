"""What a test means, in one sentence: how much is right, how sure that is, and whether it beats plain CLIP."""

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
"""A p below this is called beyond chance."""
FINE = 3.0
"""Half-widths below this, in points, are told with one digit."""
UNBALANCED = 2
"""Classes are unbalanced if the largest has at least this many times the images of the smallest."""
WHICH: Mapping[Newness, tuple[str, str]] = {
    "unknown": ("", ""),
    "images": ("", " it was not trained on"),
    "images of trained classes": ("new ", " of trained classes"),
    "classes": ("", " of classes it was not trained on"),
}
"""What stands before and behind the word "images"."""


@dataclass(frozen=True)
class Balance:
    """Classes of very different sizes: the smallest and largest number of images, and accuracies averaged over them."""

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
    """If classes are unbalanced."""
    new: Newness

    @property
    def beyond_chance(self) -> bool:
        """Whether the difference to plain CLIP is larger than chance explains."""
        return self.test.p < LEVEL

    @property
    def same_answers(self) -> bool:
        """Whether plain CLIP is right and wrong on the very same images."""
        return self.test.only_first == self.test.only_second == 0

    def __str__(self) -> str:
        """The verdict in one or two sentences."""
        return " ".join(filter(None, (sentence(self), balance_sentence(self))))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
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


def verdict(found: Evaluation) -> Verdict:
    """Judge a test that was made beside plain CLIP, by the method's default readout."""
    if found.plain is None or found.plain_picks is None:
        raise ConfigError("A verdict needs plain CLIP's answers to the same images: evaluate with beside_plain=True.")
    right, plain = (found.picks == found.labels).tolist(), (found.plain_picks == found.labels).tolist()
    images = len(right)
    ends = share_interval(sum(right), images)
    return Verdict(
        half=found.scores.half,
        images=images,
        accuracy=100 * sum(right) / images,
        ends=Interval(100 * ends.low, 100 * ends.high),
        plain=100 * sum(plain) / images,
        test=answers_test(right, plain),
        balance=_balance(found, found.plain),
        new=found.new,
    )


def sentence(found: Verdict) -> str:
    """The verdict as one sentence."""
    digits = 1 if _half_width(found) < FINE else 0
    before, behind = WHICH[found.new]
    some, are = (f"1 {before}image", "is") if found.images == 1 else (f"{found.images:,} {before}images", "are")
    told = f"{found.accuracy:.{digits}f} % of {some}{behind} {are} named correctly"
    return f"{told}, {_how_sure(found, digits)}; {_beside_plain(found, digits)}."


def balance_sentence(found: Verdict) -> str:
    """The mean over classes if they are unbalanced, else nothing."""
    if found.balance is None:
        return ""
    one = found.balance
    return (
        f"Classes have {one.fewest:,} to {one.most:,} test images: if each counts the same, {one.adapted:.0f} % are "
        f"correct, {one.plain:.0f} % by plain CLIP."
    )


def mean_per_class(scores: Scores, readout: str) -> float:
    """Accuracy averaged over the classes that have images."""
    return fmean(one.accuracy[readout] for one in scores.per_class.values() if one.images)


def _half_width(found: Verdict) -> float:
    return (found.ends.high - found.ends.low) / 2


def _how_sure(found: Verdict, digits: int) -> str:
    width = _half_width(found)
    if found.accuracy + width > 100:
        return f"expect at least {found.ends.low:.{digits}f} %"
    if found.accuracy - width < 0:
        return f"expect at most {found.ends.high:.{digits}f} %"
    return f"± {width:.{digits}f} points"


def _beside_plain(found: Verdict, digits: int) -> str:
    if found.same_answers:
        return "plain CLIP is right on the same ones"
    better = "worse" if found.beyond_chance and found.test.only_first < found.test.only_second else "better"
    sure = "yes" if found.beyond_chance else "no"
    return f"plain CLIP {found.plain:.{digits}f} %; {better} beyond chance: {sure}"


def _balance(found: Evaluation, plain: Scores) -> Balance | None:
    counts = [one.images for one in found.scores.per_class.values() if one.images]
    if max(counts) < UNBALANCED * min(counts):
        return None
    adapted = mean_per_class(found.scores, found.readout)
    return Balance(min(counts), max(counts), adapted, mean_per_class(plain, next(iter(plain.accuracy))))
