"""Groups of heads: by concept, by role, one per head, or named by the user.

Layers are counted from 1, heads from 0; a head is written LAYER.HEAD, as in "11.4".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.backbone.frozen import check_heads
from dear.errors import ConfigError, did_you_mean
from dear.roles.rolemap import HeadRole, Role, RoleMap

Place = tuple[int, int]
Groups = dict[str, list[Place]]
REST = "rest"
HEAD = "head:"
WAYS = ("concept", "role", "head")


def groups_of(roles: RoleMap) -> Groups:
    """Heads grouped by concept or role, under names such as "color", "animal", "generalization"."""
    core = {head.concept for head in roles.heads if head.role is Role.CORE}
    groups: Groups = {}
    for head in sorted(roles.heads, key=lambda head: _rank(head, roles)):
        groups.setdefault(_group(head, core), []).append((head.layer, head.head))
    return groups


def _group(head: HeadRole, core: set[str | None]) -> str:
    if head.role not in (Role.CORE, Role.OTHER):
        return head.role.value
    concept = str(head.concept)
    return f"other {concept}" if head.role is Role.OTHER and concept in core else concept


def _rank(head: HeadRole, roles: RoleMap) -> tuple[int, int, str]:
    """Sort key: core attributes in their order, then other concepts by name, then the two roles without a concept."""
    role = list(Role).index(head.role)
    at = roles.attributes.index(head.concept) if head.role is Role.CORE and head.concept else 0
    return role, at, head.concept or "" if head.role is Role.OTHER else ""


def group_heads(clip: FrozenClip, roles: RoleMap, by: str | Mapping[str, Sequence[Any]] = "concept") -> Groups:
    """Group the heads of a backbone by concept, by role or one per group, or as named by the caller.

    Args:
        clip: the backbone, which must have the heads.
        roles: its role map.
        by: "concept", "role", "head", or a mapping from group names to heads such as (11, 4) or "11.4"; no head may be
            in two groups.
    """
    if isinstance(by, Mapping):
        return _named_groups(clip, by)
    if by == "concept":
        return groups_of(roles)
    groups: Groups = {}
    for head in sorted(roles.heads, key=lambda head: list(Role).index(head.role)) if by == "role" else roles.heads:
        name = head.role.value if by == "role" else head_name((head.layer, head.head))
        groups.setdefault(name, []).append((head.layer, head.head))
    if by not in WAYS:
        raise ConfigError(
            f"Heads are not grouped by {by!r}: choose {', '.join(WAYS)}, or name the heads of each group."
            f"{did_you_mean(by, WAYS)}"
        )
    return groups


def head_name(place: Place) -> str:
    """Name of the feature of a single head: "head:11.4"."""
    return f"{HEAD}{place[0]}.{place[1]}"


def place_of(head: Any) -> Place:
    """Parse a head written as (11, 4), "11.4" or "head:11.4" to (layer, head)."""
    parts = head.removeprefix(HEAD).split(".") if isinstance(head, str) else head
    try:
        layer, number = (int(part) if isinstance(part, str) and part.isdecimal() else part for part in parts)
    except (TypeError, ValueError):
        layer = number = None
    if type(layer) is not int or type(number) is not int:
        raise ConfigError(f"{head!r} does not name a head: write LAYER.HEAD, as in 11.4.")
    return layer, number


def _named_groups(clip: FrozenClip, by: Mapping[str, Sequence[Any]]) -> Groups:
    groups: Groups = {}
    for name, heads in by.items():
        if not isinstance(name, str) or name == REST or isinstance(heads, str) or not isinstance(heads, Sequence):
            raise ConfigError(f"The group {name!r} is not a list of heads: write it as {{'mine': ['11.4', '9.0']}}.")
        groups[name] = [place_of(head) for head in heads]
        if not groups[name]:
            raise ConfigError(f"The group {name!r} has no heads: name at least one, as in '11.4'.")
    places = [place for group in groups.values() for place in group]
    if twice := sorted({place for place in places if places.count(place) > 1}):
        raise ConfigError(
            f"Head {twice[0][0]}.{twice[0][1]} is named twice, so the parts would not sum to the embedding: remove one."
        )
    if not groups:
        raise ConfigError("No group of heads is named: give at least one.")
    check_heads(clip.vision, list(groups.values()))
    return groups
