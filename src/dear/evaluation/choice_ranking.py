"""Ranks the candidates of a choice from their answers, by a pure function, and says in words what follows from it.

Accuracies are of held-out photos. Their uncertainty is found by resampling photos: all candidates are scored on the
same resampled photos, so that differences are paired. All randomness comes from the seed of the choice.

A few photos cannot rank a dozen methods. What a method gained on other data sets is therefore combined with what it
gained on these photos, as two normal distributions are: the more certain one has the larger weight. Trials are less
certain than the number of their photos says, since they teach fewer photos and classes than the final training does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dear.evaluation.choice import PLAIN, CandidateRecord, Choice, Gain
from dear.evaluation.statistics import Interval

Array = npt.NDArray[np.float64]
RESAMPLES, FEWEST_RESAMPLES = 1000, 200
MOST_NUMBERS = 20_000_000
"""Resamples × photos, at most."""
LEVEL = 0.95
MARGIN = 0.25
"""Points of the expected score that are worth no further cost."""
USUAL_SHOTS = 16
"""Photos per class with which the gains on other data sets were measured."""
NOTHING = Gain(learned=0.0, novel=0.0)


class Estimate(NamedTuple):
    """An accuracy in per cent, and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """A candidate's place in the ranking."""

    method: str
    learned: Estimate
    """Held-out photos of classes that were taught."""
    novel: Estimate | None
    """Photos of classes that were left out; None if there are too few classes."""
    combined: Estimate
    expected: float
    """The combined score to expect, after what methods gained on other data sets was taken into account."""
    behind: Estimate
    """Combined score of the chosen candidate minus this one's, on the same photos."""
    is_tied: bool
    """Whether it differs from the chosen one by no more than one standard error and one photo."""
    forgets: Estimate | None
    """Plain CLIP's accuracy on left-out classes minus this one's."""
    gains: Estimate
    """Accuracy on taught classes minus plain CLIP's."""
    seconds: float | None
    bytes: int


@dataclass(frozen=True)
class Ranking:
    """All tried candidates, the best expected score first, and the one to take: the cheapest that is as good.

    As good means an expected score within `MARGIN`; if nothing but the photos counts, a score within their noise.
    """

    standings: tuple[Standing, ...]
    chosen: str

    @property
    def best(self) -> Standing:
        """The candidate with the best expected score."""
        return self.standings[0]

    @property
    def taken(self) -> Standing:
        """The chosen candidate."""
        return self.of(self.chosen)

    def of(self, method: str) -> Standing:
        """A candidate by name."""
        return next(one for one in self.standings if one.method == method)


class _Answers(NamedTuple):
    """What was answered rightly (1) by candidate and photo, and which photos were asked."""

    right: Array
    asked: Array


class _Scores(NamedTuple):
    """Scores by candidate, of the photos themselves (first row) and of each resample."""

    learned: Array
    novel: Array | None
    combined: Array


def rank(choice: Choice) -> Ranking:
    """The ranking of the candidates that were tried on everything."""
    tried = [one for one in choice.candidates if one.state == "tried"]
    scores = _scores(choice, tried, None)
    plain = [one.method for one in tried].index(PLAIN)
    photo = 100 / max(1, sum(len(trial.images) for trial in choice.trials if trial.kind == "learned"))
    expected = _expected(choice, tried, scores, plain, photo)
    behind_best = scores.combined[:, [int(np.argmax(expected))]] - scores.combined
    slack = MARGIN if choice.expected else behind_best[1:].std(axis=0) + photo
    taken = int(np.argmax(expected >= expected.max() - slack))  # the first, which is the cheapest
    behind = scores.combined[:, [taken]] - scores.combined
    tied = np.abs(behind[0]) <= behind[1:].std(axis=0) + photo
    standings = [
        Standing(
            method=one.method,
            learned=_estimate(scores.learned[:, place]),
            novel=None if scores.novel is None else _estimate(scores.novel[:, place]),
            combined=_estimate(scores.combined[:, place]),
            expected=float(expected[place]),
            behind=_estimate(behind[:, place]),
            is_tied=bool(tied[place]),
            forgets=None if scores.novel is None else _estimate(scores.novel[:, plain] - scores.novel[:, place]),
            gains=_estimate(scores.learned[:, place] - scores.learned[:, plain]),
            seconds=choice.seconds.training.get(one.method),
            bytes=one.bytes,
        )
        for place, one in enumerate(tried)
    ]
    order = sorted(range(len(tried)), key=lambda place: (-expected[place], place))
    return Ranking(tuple(standings[place] for place in order), tried[taken].method)


def _expected(choice: Choice, tried: list[CandidateRecord], scores: _Scores, plain: int, photo: float) -> Array:
    """Combined scores to expect: by candidate, the mean of what photos and other data sets say, by their certainty."""
    if choice.expected is None:
        return np.asarray(scores.combined[0])
    usual = _usual(choice, tried, scores, plain)
    here = scores.combined - scores.combined[:, [plain]]
    noise = np.maximum(here[1:].var(axis=0) + photo**2, choice.expected.trials**2)
    weight = choice.expected.spread**2 / (choice.expected.spread**2 + noise)
    return np.asarray(scores.combined[0, plain] + usual + weight * (here[0] - usual), dtype=np.float64)


def _usual(choice: Choice, tried: list[CandidateRecord], scores: _Scores, plain: int) -> Array:
    """What candidates gain over plain CLIP's combined score if they gain here what they gained on other data sets."""
    assert choice.expected is not None
    scale = min(1.0, choice.shots / USUAL_SHOTS) ** 0.5
    gains = [choice.expected.gains.get(one.method, NOTHING) for one in tried]
    learned = _moved(scores.learned[0, plain], scale * np.array([one.learned for one in gains]))
    among_novel = scores.novel
    if among_novel is not None:
        among_novel = _moved(among_novel[0, plain], scale * np.array([one.novel for one in gains]))
    combined: Array = weighted_mean(learned, among_novel, choice.keep_novel)
    return combined - np.full_like(combined, combined[plain])


def _moved(accuracy: float, gains: Array) -> Array:
    """Accuracies in per cent after gains in log-odds; one and 99 per cent are the outermost to start from."""
    share = min(max(accuracy / 100, 0.01), 0.99)
    return 100 / (1 + (1 - share) / share * np.exp(-gains))


def is_clearly_behind(choice: Choice, candidate: CandidateRecord) -> bool:
    """Whether a candidate is clearly worse than the best one so far, on the trials that it has answers for."""
    tried = [one for one in choice.candidates if one.state == "tried"]
    scores = _scores(choice, [*tried, candidate], set(candidate.answers))
    best = int(np.argmax(scores.combined[0, :-1]))
    return _estimate(scores.combined[:, best] - scores.combined[:, -1]).low > 0


def weighted_mean(learned: Array, novel: Array | None, weight: float) -> Array:
    """Weighted harmonic mean of two accuracies, (1 + w) / (1 / learned + w / novel); 0 if one that counts is 0."""
    if novel is None or not weight:
        return learned
    with np.errstate(divide="ignore"):
        return (1 + weight) / (1 / learned + weight / novel)


def _scores(choice: Choice, candidates: list[CandidateRecord], trials: set[str] | None) -> _Scores:
    """Scores in per cent; `trials` restricts them to some of the trials."""
    weights = resampled(len(choice.images), choice.seed)
    learned = _accuracy(weights, _answers(choice, candidates, "learned", trials))
    novel = _answers(choice, candidates, "novel", trials)
    among_novel = _accuracy(weights, novel) if novel.asked.any() else None
    return _Scores(learned, among_novel, weighted_mean(learned, among_novel, choice.keep_novel))


@lru_cache(maxsize=2)
def resampled(images: int, seed: int) -> Array:
    """How often each photo counts (R + 1, N): each once in the first row, then resampled with replacement."""
    count = max(FEWEST_RESAMPLES, min(RESAMPLES, MOST_NUMBERS // max(images, 1)))
    random = np.random.default_rng(seed)
    rows = [np.bincount(random.integers(0, images, images), minlength=images) for _ in range(count)]
    return np.vstack([np.ones(images), *rows]).astype(np.float64)


def _answers(choice: Choice, candidates: list[CandidateRecord], kind: str, trials: set[str] | None) -> _Answers:
    labels = choice.labels
    right = np.zeros((len(candidates), len(labels)))
    asked = np.zeros(len(labels))
    for trial in choice.trials:
        if trial.kind != kind or (trials is not None and trial.name not in trials):
            continue
        asked[trial.images] = 1
        for row, one in enumerate(candidates):
            picks = one.answers[trial.name]
            right[row, trial.images] = [pick == labels[image] for pick, image in zip(picks, trial.images, strict=True)]
    return _Answers(right, asked)


def _accuracy(weights: Array, answers: _Answers) -> Array:
    """Per cent of right answers (R + 1, candidates)."""
    counted = np.maximum(weights @ answers.asked, 1)
    return 100 * (weights @ answers.right.T) / counted[:, None]


def accuracy_of(choice: Choice, answers: dict[str, list[int]]) -> Array:
    """Per cent of right answers (R + 1,) of one set of answers to photos of taught classes."""
    one = CandidateRecord(method="", state="tried", answers=answers)
    found = _answers(choice, [one], "learned", set(answers))
    return _accuracy(resampled(len(choice.images), choice.seed), found)[:, 0]


def _estimate(scores: Array) -> Estimate:
    """The first number, and the interval of the others."""
    ends = interval_of(scores[1:])
    return Estimate(float(scores[0]), ends.low, ends.high)


def interval_of(values: Array) -> Interval:
    """The middle 95 per cent of resampled values."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))
