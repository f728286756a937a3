"""How far roles depend on choices that nobody can justify exactly: thresholds, the images at hand, phrases per head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dear.backbone.clip import FrozenClip
from dear.roles.corpus import TextPool
from dear.roles.discover import (
    Discovery,
    DiscoverySettings,
    RoleAndConcept,
    assign,
    bootstrap_moments,
    head_rank,
    pool_features,
)
from dear.roles.entropy import kappa
from dear.roles.moments import Collected
from dear.roles.textspan import textspan_all


@dataclass(frozen=True)
class Variation:
    """One changed choice and how many heads keep their role and concept."""

    what: str
    same_role: float
    kappa: float
    roles: tuple[RoleAndConcept, ...]


def stability(
    clip: FrozenClip,
    collected: Collected,
    pool: TextPool,
    discovery: Discovery,
    settings: DiscoverySettings,
    *,
    draws: int = 5,
    seed: int = 0,
) -> list[Variation]:
    """Roles under thresholds of 10-40 %, other numbers of phrases, and bootstrapped images."""
    labels, rule = discovery.labels, settings.rule
    quantile_roles = discovery.by_rule["quantile"]
    variations = []
    for percent in (10, 20, 30, 40):
        changed = settings.model_copy(update={"quantile": percent / 100})
        roles = assign(discovery.spans, labels, changed, rule="quantile")
        variations.append(_variation(f"quantile rule, threshold {percent} %", quantile_roles, roles))
    texts = pool_features(clip, pool)
    rank, whole = head_rank(clip), collected.whole()
    base = discovery.by_rule[rule]
    for most in (10, 15, 30):
        spans = textspan_all(whole, texts, rank=rank, most=most)
        variations.append(_variation(f"{most} phrases a head", base, assign(spans, labels, settings, rule=rule)))
    for number, moments in enumerate(bootstrap_moments(collected, draws, seed), start=1):
        spans = textspan_all(moments, texts, rank=rank, most=settings.phrases)
        variations.append(
            _variation(f"images resampled, draw {number}", base, assign(spans, labels, settings, rule=rule))
        )
    return variations


def _variation(what: str, base: Sequence[RoleAndConcept], changed: Sequence[RoleAndConcept]) -> Variation:
    names = [[f"{role.value} {concept}" for role, concept in roles] for roles in (base, changed)]
    same = sum(a == b for a, b in zip(*names, strict=True)) / len(base)
    return Variation(what, same, kappa(*names), tuple(changed))
