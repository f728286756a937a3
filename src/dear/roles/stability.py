"""Stability of roles under arbitrary choices: thresholds, the sample of images, the number of phrases per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np

from dear.backbone.clip import FrozenClip
from dear.progress.stages import stage
from dear.roles.discover import Discovery, DiscoverySettings, assign, head_rank
from dear.roles.entropy import RoleAndConcept, Rule, kappa
from dear.roles.moments import Collected
from dear.roles.rolemap import LEAST_KAPPA, RoleMap, Stability
from dear.roles.textspan import Moments, Span, textspan_all

QUANTILES = (0.1, 0.2, 0.3, 0.4)
PHRASE_FACTORS = (0.5, 0.75, 1.5)
RESAMPLED = "images resampled"
LEAST_BLOCKS = 5
"""Fewer blocks of images have too few different resamples: two blocks have two."""


@dataclass(frozen=True)
class Variation:
    """One changed choice, and the heads whose role and concept do not change."""

    what: str
    same: tuple[bool, ...]
    kappa: float

    @property
    def same_role(self) -> float:
        """Fraction of the heads whose role and concept do not change."""
        return sum(self.same) / len(self.same)

    def record(self) -> dict[str, str | float]:
        """The comparison as plain values."""
        return {"what": self.what, "same_role": self.same_role, "kappa": self.kappa}


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
    labels = discovery.labels
    thresholds = []
    for quantile in QUANTILES:
        changed = settings.model_copy(update={"quantile": quantile})
        roles = assign(discovery.spans, labels, changed, rule="quantile")
        what = f"quantile rule, threshold {100 * quantile:.0f} %"
        thresholds.append(_variation(what, discovery.by_rule["quantile"], roles))
    counts = [max(1, round(factor * settings.phrases)) for factor in PHRASE_FACTORS]
    longest = textspan_all(collected.whole(), discovery.texts_TE, rank=head_rank(clip), most=max(counts))
    images = resampled(clip, collected, discovery, settings, draws=draws, seed=seed)
    return {
        rule: [
            *thresholds,
            *(
                _variation(f"{n} phrases per head", base, assign(longest, labels, settings, rule=rule, most=n))
                for n in counts
            ),
            *images[rule],
        ]
        for rule, base in discovery.by_rule.items()
    }


def resampled(
    clip: FrozenClip,
    collected: Collected,
    discovery: Discovery,
    settings: DiscoverySettings,
    *,
    draws: int = 5,
    seed: int = 0,
) -> dict[Rule, list[Variation]]:
    """Compare the roles by each rule with those of bootstrapped images; no comparison if there are too few images."""
    spans: list[Sequence[Span]] = []
    with stage("resampling images", draws) as advance:
        for moments in bootstrap_moments(collected, draws, seed):
            spans.append(textspan_all(moments, discovery.texts_TE, rank=head_rank(clip), most=settings.phrases))
            advance(len(spans))
    return {
        rule: [
            _variation(f"{RESAMPLED}, draw {number}", base, assign(one, discovery.labels, settings, rule=rule))
            for number, one in enumerate(spans, start=1)
        ]
        for rule, base in discovery.by_rule.items()
    }


def with_stability(discovery: Discovery, variations: Mapping[Rule, Sequence[Variation]]) -> Discovery:
    """A discovery whose maps record their stability, from its variations by rule."""

    def measured(rule: Rule) -> RoleMap:
        images = [one for one in variations[rule] if one.what.startswith(RESAMPLED)]
        same = tuple(sum(head) / len(images) for head in zip(*(one.same for one in images), strict=True))
        stability = Stability(kappas=tuple(one.kappa for one in images), same=same)
        return discovery.maps[rule].model_copy(update={"stability": stability})

    maps = {rule: measured(rule) for rule in discovery.maps}
    rule = next(rule for rule, roles in discovery.maps.items() if roles is discovery.roles)
    return replace(discovery, maps=maps, roles=maps[rule])


def doubt(roles: RoleMap) -> str | None:
    """One sentence if resampling does not confirm a map; None if it does, or if nothing was measured."""
    found = roles.stability
    if found is None or not roles.is_specialised:
        return None
    if found.kappa is None:
        return f"The stability of {_named(roles)} is unknown: too few images to test whether resampling confirms it."
    if not roles.is_unstable:
        return None
    return (
        f"{_named(roles).capitalize()} is unstable: resampled images give other roles (median kappa {found.kappa:.2f}, "
        f"below {LEAST_KAPPA}; 1 is full agreement, 0 is chance)."
    )


def _named(roles: RoleMap) -> str:
    rule = roles.provenance.rule
    return f"the role map by the {rule} rule" if rule else "the role map"


def bootstrap_moments(collected: Collected, draws: int, seed: int = 0) -> list[Moments]:
    """Moments of bootstrapped image sets: blocks of images sampled with replacement, each sample once.

    The images themselves are not a sample. There are no samples of fewer than `LEAST_BLOCKS` blocks.
    """
    filled = [block for block in collected.blocks if block.count]
    if len(filled) < LEAST_BLOCKS:
        return []
    samples: list[Moments] = []
    for times in _different_draws(len(filled), draws, seed):
        total = Moments.zeros(*filled[0].sum_ME.shape)
        for block, n in zip(filled, times, strict=True):
            total = total + Moments(block.count * n, block.sum_ME * n, block.outer_MEE * n)
        samples.append(total)
    return samples


def _different_draws(blocks: int, draws: int, seed: int) -> list[tuple[int, ...]]:
    """How often each block is in each sample: no sample twice, and none that has every block once."""
    random = np.random.default_rng(seed)
    seen = {(1,) * blocks: None}
    while len(seen) <= min(draws, comb(2 * blocks - 1, blocks) - 1):
        times = np.bincount(random.integers(blocks, size=blocks), minlength=blocks)
        seen.setdefault(tuple(times.tolist()))
    return list(seen)[1:]


def _variation(what: str, base: Sequence[RoleAndConcept], changed: Sequence[RoleAndConcept]) -> Variation:
    names = [[f"{role.value} {concept}" for role, concept in roles] for roles in (base, changed)]
    return Variation(what, tuple(a == b for a, b in zip(*names, strict=True)), kappa(*names))
