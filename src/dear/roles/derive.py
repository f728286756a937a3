"""Derive role maps from the evidence recorded in a map: another entropy threshold, more or fewer attributes."""

from __future__ import annotations

import math
from collections import Counter

from dear.errors import RoleMapError
from dear.roles.entropy import SAME_ENTROPY, STYLE, dominant
from dear.roles.rolemap import HeadRole, Role, RoleMap


def by_threshold(roles: RoleMap, percent: float) -> RoleMap:
    """Apply the quantile rule with another threshold, in per cent: lowest entropies become core, highest general.

    Heads of other specialities, of style and without phrases do not change; heads of equal entropy are never separated.
    """
    if not 0 < percent < 50:
        raise RoleMapError(f"The entropy threshold is {percent} %, but must be between 0 and 50.")
    known = [head for head in roles.heads if not _is_silent(head)]
    if missing := [head for head in known if head.entropy is None or head.shares is None]:
        raise RoleMapError(
            f"The role map records no entropy for head ({missing[0].layer}, {missing[0].head}): only a map made by "
            f"'dear roles discover' can be changed to another threshold."
        )
    free = [head for head in known if head.role is not Role.OTHER and head.concept != STYLE]
    ranked = sorted(round(head.entropy or 0.0, SAME_ENTROPY) for head in free)
    edge = round(percent / 100 * len(ranked))
    low, high = (ranked[edge - 1], ranked[-edge]) if edge else (-math.inf, math.inf)

    def decide(head: HeadRole) -> tuple[Role, str | None]:
        value = round(head.entropy or 0.0, SAME_ENTROPY)
        own = dominant({name: (head.shares or {}).get(name, 0.0) for name in roles.attributes})
        if value <= low and own is not None:
            return Role.CORE, own
        return (Role.GENERALIZATION, None) if value >= high and value > low else (Role.MIXED, None)

    decided = [decide(head) if head in free else (head.role, head.concept) for head in roles.heads]
    return roles.derive(decided, f"threshold={percent}")


def _is_silent(head: HeadRole) -> bool:
    """Whether discovery found no phrases for a head, as its output did not vary; such a head is mixed."""
    return head.entropy is None and head.shares == {} and not head.phrases


def with_attributes(roles: RoleMap, count: int) -> RoleMap:
    """Change the number of attributes of a map.

    Fewer: the attributes with the most core heads remain; the heads of the others become other specialities, which are
    shielded. More: the most frequent other specialities become attributes; if there are none, new tokens have no heads.
    """
    if not 1 <= count <= 11:
        raise RoleMapError(f"The number of attributes is {count}, but must be between 1 and 11.")
    core = Counter(head.concept for head in roles.heads if head.role is Role.CORE)
    other = Counter(head.concept for head in roles.heads if head.role is Role.OTHER)
    ranked = sorted(roles.attributes, key=lambda name: (-core[name], roles.attributes.index(name)))
    remaining = [name for name in roles.attributes if name in ranked[:count]]
    concepts = [*(name for name, _ in other.most_common() if name), *(c for c in _OTHERS if c not in other)]
    spare = [name for name in concepts if name not in roles.attributes]
    attributes = (*remaining, *spare[: max(0, count - len(roles.attributes))])

    def decide(head: HeadRole) -> tuple[Role, str | None]:
        if head.role in (Role.CORE, Role.OTHER):
            return (Role.CORE if head.concept in attributes else Role.OTHER), head.concept
        return head.role, head.concept

    return roles.derive([decide(head) for head in roles.heads], f"attributes={count}", attributes=attributes)


_OTHERS = ("animal", "human", "text", "number", "emotion", "action")
