"""Concept shares, concept entropy, and the two rules that turn them into roles (Eq. 2-4 of the paper)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from dear.options.tools import Rule as Rule
from dear.roles.rolemap import Role

RoleAndConcept = tuple[Role, str | None]
STYLE = "style"
SAME_ENTROPY = 9
"""Decimals to which entropies are compared, so that rounding in the sum does not matter."""


def shares(labels: Sequence[str], concepts: Sequence[str]) -> dict[str, float]:
    """p(a): fraction of a head's phrases that belongs to each concept, in the order of the concepts."""
    counts = Counter(labels)
    return {concept: counts[concept] / len(labels) if labels else 0.0 for concept in concepts}


def entropy(distribution: Mapping[str, float]) -> float:
    """E = -Σ p ln p, with 0 ln 0 = 0."""
    return -sum(p * math.log(p) for p in distribution.values() if p > 0) + 0.0


def dominant(distribution: Mapping[str, float]) -> str | None:
    """The concept with the largest share; None if there is a tie or no phrase."""
    largest = max(distribution.values())
    leading = [concept for concept, share in distribution.items() if share == largest]
    return leading[0] if largest > 0 and len(leading) == 1 else None


def role_by_dominance(all_shares: Mapping[str, float], core: Sequence[str], *, majority: float = 0.5) -> RoleAndConcept:
    """The dominance rule, which Table 2 appears to use: the concept with the majority of the phrases decides."""
    concept = dominant(all_shares)
    if concept == STYLE:
        return Role.GENERALIZATION, STYLE
    if concept is None or all_shares[concept] < majority:
        return Role.MIXED, None
    return (Role.CORE if concept in core else Role.OTHER), concept


def roles_by_quantile(
    core_shares: Sequence[Mapping[str, float]],
    all_shares: Sequence[Mapping[str, float]],
    core: Sequence[str],
    *,
    quantile: float = 0.2,
    majority: float = 0.5,
) -> list[RoleAndConcept]:
    """The quantile rule of the paper's text: heads of lowest entropy are core attribute heads, of highest, general.

    A head whose phrases are mostly about a non-core concept gets its role from that, before the entropies are ranked;
    a forced choice among the core attributes would assign it to one of them. Heads with the same entropy are never
    separated. A head without phrases is mixed.
    """
    decided = [_settled_by_non_core(head_shares, core, majority) for head_shares in all_shares]
    entropies = {
        index: round(entropy(core_shares[index]), SAME_ENTROPY)
        for index, role in enumerate(decided)
        if role is None and any(core_shares[index].values())
    }
    ranked = sorted(entropies.values())
    edge = round(quantile * len(ranked))
    low, high = (ranked[edge - 1], ranked[-edge]) if edge else (-math.inf, math.inf)
    for index, value in entropies.items():
        attribute = dominant(core_shares[index])
        if value <= low and attribute is not None:
            decided[index] = Role.CORE, attribute
        elif value >= high and value > low:
            decided[index] = Role.GENERALIZATION, None
    return [role or (Role.MIXED, None) for role in decided]


def _settled_by_non_core(
    all_shares: Mapping[str, float], core: Sequence[str], majority: float
) -> RoleAndConcept | None:
    role, concept = role_by_dominance(all_shares, core, majority=majority)
    return (role, concept) if role is Role.OTHER or concept == STYLE else None


def kappa(first: Sequence[str], second: Sequence[str]) -> float:
    """Cohen's kappa of two labelings of the same heads: 1 is full agreement, 0 is chance."""
    count = len(first)
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / count
    left, right = Counter(first), Counter(second)
    expected = sum(left[label] * right[label] for label in left) / count**2
    return 1.0 if expected == 1 else (observed - expected) / (1 - expected)
