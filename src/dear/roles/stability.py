"""Stability of roles under arbitrary choices: thresholds, the sample of images, the number of phrases per head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dear.backbone.clip import FrozenClip
from dear.progress.stages import stage
from dear.roles.discover import Discovery, DiscoverySettings, assign, head_rank
from dear.roles.entropy import RoleAndConcept, Rule, kappa
from dear.roles.moments import Collected
from dear.roles.textspan import Moments, Span, textspan_all

QUANTILES = (0.1, 0.2, 0.3, 0.4)
PHRASE_FACTORS = (0.5, 0.75, 1.5)
RESAMPLED = "images resampled"


@dataclass(frozen=True)
class Variation:
    """One changed choice, and the number of heads whose role and concept do not change."""

    what: str
    same_role: float
    kappa: float


def stability(
    clip: FrozenClip,
    collected: Collected,
    discovery: Discovery,
    settings: DiscoverySettings,
    *,
    draws: int = 5,
    seed: int = 0,
) -> list[Variation]:
    """Stability of the roles by the chosen rule."""
    return stability_by_rule(clip, collected, discovery, settings, draws=draws, seed=seed)[settings.rule]


def stability_by_rule(
    clip: FrozenClip,
    collected: Collected,
    discovery: Discovery,
    settings: DiscoverySettings,
    *,
    draws: int = 5,
    seed: int = 0,
) -> dict[Rule, list[Variation]]:
    """Compare the roles by each rule under thresholds of 10-40 %, other numbers of phrases, and bootstrapped images.

    The concepts of the phrases do not change, only the phrases of each head and the roles that follow. The thresholds
    apply to the quantile rule, even if the other rule decides.
    """
    labels, texts_TE, rank = discovery.labels, discovery.texts_TE, head_rank(clip)
    thresholds = []
    for quantile in QUANTILES:
        changed = settings.model_copy(update={"quantile": quantile})
        roles = assign(discovery.spans, labels, changed, rule="quantile")
        what = f"quantile rule, threshold {100 * quantile:.0f} %"
        thresholds.append(_variation(what, discovery.by_rule["quantile"], roles))
    counts = [max(1, round(factor * settings.phrases)) for factor in PHRASE_FACTORS]
    longest = textspan_all(collected.whole(), texts_TE, rank=rank, most=max(counts))
    changes: list[tuple[str, Sequence[Span], int | None]] = [(f"{n} phrases per head", longest, n) for n in counts]
    with stage("resampling images", draws) as advance:
        for number, moments in enumerate(bootstrap_moments(collected, draws, seed), start=1):
            spans = textspan_all(moments, texts_TE, rank=rank, most=settings.phrases)
            changes.append((f"{RESAMPLED}, draw {number}", spans, None))
            advance(number)
    return {
        rule: [
            *thresholds,
            *(_variation(w, base, assign(s, labels, settings, rule=rule, most=most)) for w, s, most in changes),
        ]
        for rule, base in discovery.by_rule.items()
    }


def bootstrap_moments(collected: Collected, draws: int, seed: int = 0) -> list[Moments]:
    """Moments of bootstrapped image sets: blocks of images sampled with replacement; none for a single block."""
    filled = [block for block in collected.blocks if block.count]
    random = np.random.default_rng(seed)
    samples: list[Moments] = []
    for _ in range(draws if len(filled) > 1 else 0):
        times = np.bincount(random.integers(len(filled), size=len(filled)), minlength=len(filled))
        total = Moments.zeros(*filled[0].sum_ME.shape)
        for block, n in zip(filled, times.tolist(), strict=True):
            total = total + Moments(block.count * n, block.sum_ME * n, block.outer_MEE * n)
        samples.append(total)
    return samples


def _variation(what: str, base: Sequence[RoleAndConcept], changed: Sequence[RoleAndConcept]) -> Variation:
    names = [[f"{role.value} {concept}" for role, concept in roles] for roles in (base, changed)]
    same = sum(a == b for a, b in zip(*names, strict=True)) / len(base)
    return Variation(what, same, kappa(*names))
