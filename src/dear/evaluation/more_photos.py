"""How much more photos would bring: accuracy against photos per class, extrapolated by a simple saturating curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dear.evaluation.choice import Choice
from dear.evaluation.choice_ranking import Array, Estimate, accuracy_of, interval_of

EXPONENTS = (0.25, 0.5, 1.0, 2.0)
"""Of accuracy = a − b · photos^(−c), the values of c that are tried: how fast the curve saturates."""
MORE = (4, 16)
SMALL = 1.0
"""Points that are not worth taking photos for."""


@dataclass(frozen=True)
class MorePhotos:
    """Accuracy by photos per class, and the gain that more of them would bring, in points."""

    measured: dict[int, Estimate]
    gains: dict[int, Estimate]
    """By the number of further photos per class; empty if there are too few measurements."""

    def sentence(self) -> str:
        """What a person should know, in one line."""
        if not self.gains:
            return ""
        few, many = MORE
        most = self.gains[many]
        if most.high < SMALL:
            return f"More photos would hardly help: {many} more per class bring less than {SMALL:g} point."
        if most.low <= 0 or most.high - most.low > 2 * most.value + SMALL:
            return "How much more photos would bring cannot be said from these few."
        first, second = _points(self.gains[few]), _points(most, short=True)
        return f"{few} more photos per class would bring {first}, {many} more {second}."


def more_photos(choice: Choice) -> MorePhotos:
    """Fit the curve of the chosen method."""
    if not choice.curve:
        return MorePhotos({}, {})
    full = {
        trial.name: choice.candidate(choice.chosen).answers[trial.name]
        for trial in choice.trials
        if trial.kind == "learned"
    }
    answers = {**{int(shots): one for shots, one in choice.curve.items()}, choice.fold_shots: full}
    points = {shots: accuracy_of(choice, answers[shots]) for shots in sorted(answers)}
    measured = {shots: Estimate(float(one[0]), *interval_of(one[1:])) for shots, one in points.items()}
    if len(points) < 3:
        return MorePhotos(measured, {})
    shots = np.array(sorted(points), dtype=np.float64)
    accuracy_RS = np.stack([points[int(one)] for one in shots], axis=1)
    gains = {more: _gain(shots, accuracy_RS, choice.shots, more) for more in MORE}
    return MorePhotos(measured, gains)


def _gain(shots: Array, accuracy_RS: Array, now: int, more: int) -> Estimate:
    """Points that `more` photos per class would add to `now`, on the photos and on each resample."""
    found = np.array([_fitted_gain(shots, one, now, more) for one in accuracy_RS])
    return Estimate(float(found[0]), *interval_of(found[1:]))


def _fitted_gain(shots: Array, accuracy: Array, now: int, more: int) -> float:
    """Least squares for each exponent; the best of them is extrapolated, never above 100 per cent."""
    best, gain = np.inf, 0.0
    for exponent in EXPONENTS:
        x = shots**-exponent
        slope = float(((x - x.mean()) * (accuracy - accuracy.mean())).sum() / ((x - x.mean()) ** 2).sum())
        slope = min(slope, 0.0)  # more photos do not harm
        start = float(accuracy.mean() - slope * x.mean())
        error = float(((start + slope * x - accuracy) ** 2).sum())
        if error < best - 1e-12:
            at_now, at_more = (min(start + slope * count**-exponent, 100.0) for count in (now, now + more))
            best, gain = error, at_more - at_now
    return gain


def _points(gain: Estimate, *, short: bool = False) -> str:
    """About how many points, with the interval."""
    unit = "" if short else " points" if round(gain.value) != 1 else " point"
    return f"about {gain.value:.0f}{unit} ({max(gain.low, 0.0):.0f} to {gain.high:.0f})"
