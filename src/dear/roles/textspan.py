"""TextSpan (Gandelsman et al. 2024), streaming and exact: select the phrases that span a head's output.

The scores need only the mean and second moment of each head, so images are read once and memory use is constant.
Shapes: N images, M heads, T texts, E joint embedding, R rank of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dear.progress.stages import stage

Array = NDArray[np.float64]

RELATIVE_ZERO = 1e-5
"""Relative limit below which singular values and scores count as zero."""

TIE = 1e-9
"""Relative difference below which scores count as equal."""


@dataclass(frozen=True)
class Moments:
    """Sums over images for M heads: the number of images, the sum of x, and the sum of x xᵀ."""

    count: int
    sum_ME: Array
    outer_MEE: Array

    @classmethod
    def zeros(cls, heads: int, embed: int) -> Moments:
        """Moments of no image."""
        return cls(0, np.zeros((heads, embed)), np.zeros((heads, embed, embed)))

    def __add__(self, other: Moments) -> Moments:
        """Moments of both sets of images together."""
        return Moments(self.count + other.count, self.sum_ME + other.sum_ME, self.outer_MEE + other.outer_MEE)

    def update(self, heads_NME: NDArray[np.floating]) -> Moments:
        """Add a batch of images; the large sum is updated in place."""
        batch_MNE = np.ascontiguousarray(np.swapaxes(heads_NME, 0, 1), dtype=np.float64)
        np.add(self.outer_MEE, np.swapaxes(batch_MNE, 1, 2) @ batch_MNE, out=self.outer_MEE)
        return Moments(self.count + batch_MNE.shape[1], self.sum_ME + batch_MNE.sum(1), self.outer_MEE)


@dataclass(frozen=True)
class Span:
    """The phrases selected for a head, in order, as indices into the pool, with their scores."""

    picks: tuple[int, ...]
    scores: tuple[float, ...]
    explained: float
    """Fraction of the head's variance that the selected phrases span."""


def textspan(moments: Moments, head: int, texts_TE: Array, *, rank: int, most: int) -> Span:
    """Select up to `most` texts: repeatedly the one along which the head varies most, whose direction is then removed.

    `rank` is the head's dimension; texts are projected onto the head's row space first. Selection stops early if no
    variance is left; a head without variance has no phrases.
    """
    second_EE = moments.outer_MEE[head] / moments.count
    mean_E = moments.sum_ME[head] / moments.count
    basis_ER = _row_space(second_EE, rank)
    texts_TR = texts_TE @ basis_ER
    covariance_RR = basis_ER.T @ (second_EE - np.outer(mean_E, mean_E)) @ basis_ER
    total = float(np.trace(covariance_RR))
    nothing = RELATIVE_ZERO * float(np.sqrt(np.trace(second_EE)))
    picks: list[int] = []
    scores: list[float] = []
    while len(picks) < most:
        variances_T = np.einsum("tr,rs,ts->t", texts_TR, covariance_RR, texts_TR, optimize=True)
        pick = int(np.argmax(variances_T >= (1 - TIE) * variances_T.max()))  # the first among equals
        score = float(np.sqrt(max(variances_T[pick], 0.0)))
        if score <= nothing:
            break
        direction_R = texts_TR[pick] / np.linalg.norm(texts_TR[pick])
        texts_TR = texts_TR - np.outer(texts_TR @ direction_R, direction_R)
        texts_TR[pick] = 0.0
        keep_RR = np.eye(len(direction_R)) - np.outer(direction_R, direction_R)
        covariance_RR = keep_RR @ covariance_RR @ keep_RR
        picks.append(pick)
        scores.append(score)
    explained = 1 - float(np.trace(covariance_RR)) / total if picks else 0.0
    return Span(tuple(picks), tuple(scores), explained)


def textspan_all(moments: Moments, texts_TE: Array, *, rank: int, most: int) -> list[Span]:
    """`textspan` for every head."""
    heads = len(moments.sum_ME)
    spans = []
    with stage("describing heads", heads) as advance:
        for head in range(heads):
            spans.append(textspan(moments, head, texts_TE, rank=rank, most=most))
            advance(head + 1)
    return spans


def _row_space(second_EE: Array, rank: int) -> Array:
    """Orthonormal basis (E, R) of the data's row space, of at most `rank` dimensions."""
    values_E, vectors_EE = np.linalg.eigh(second_EE)
    significant = int((values_E > RELATIVE_ZERO**2 * values_E[-1]).sum()) if values_E[-1] > 0 else 0
    keep = min(rank, significant)
    return vectors_EE[:, len(values_E) - keep :]
