"""Which role map a model gets: a named one, the shipped one, one found from its images, or a variant for ablations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.data.images import ImageList
from dear.errors import ConfigError, did_you_mean
from dear.roles.auto import auto_roles
from dear.roles.derive import by_threshold, with_attributes
from dear.roles.known import AUTO, shipped_roles
from dear.roles.rolemap import Role, RoleMap

MASKS = ("roles", "all_mixed", "all_generalization", "shuffled")
UNIFORM = ("all_mixed", "all_generalization")
"""Masks that give every head the same role, so that they need no map."""


def roles_for(
    clip: FrozenClip,
    roles: RoleMap | str | Path | None,
    mask: str = "roles",
    *,
    first_layer: int,
    seed: int = 0,
    threshold: float | None = None,
    attributes: int | None = None,
) -> RoleMap:
    """The role map for a backbone's layers from `first_layer` on, in one of the variants `MASKS`.

    `threshold` cuts the heads' entropies again (per cent), `attributes` takes fewer or more attributes.
    """
    if mask not in MASKS:
        raise ConfigError(f"mask is {mask!r}, but can be {', '.join(MASKS)}.{did_you_mean(str(mask), MASKS)}")
    if roles in (None, AUTO) and mask in UNIFORM:
        role = Role.MIXED if mask == "all_mixed" else Role.GENERALIZATION
        sizes = clip.geometry
        return RoleMap.uniform(role, first_layer=first_layer, layers=sizes.vision_layers, heads=sizes.vision_heads)
    found = shipped_roles(clip) if roles is None or roles == AUTO else _loaded(roles)
    if threshold is not None:
        found = by_threshold(found, threshold)
    if attributes is not None:
        found = with_attributes(found, attributes)
    variants = {"roles": lambda: found, "all_mixed": found.all_mixed, "all_generalization": found.all_generalization}
    return found.shuffled(seed) if mask == "shuffled" else variants[mask]()


def with_auto_roles(
    clip: FrozenClip, images: ImageList, config: Mapping[str, Any], say: Callable[[str], None]
) -> Mapping[str, Any]:
    """A config with a role map in place of "auto", if it asks for that and its mask needs a map."""
    if config.get("roles") != AUTO or config.get("mask") in UNIFORM:
        return config
    first = config.get("first_layer")
    found = auto_roles(clip, images, first_layer=first if type(first) is int else None, say=say)
    return {**config, "roles": found}


def _loaded(roles: RoleMap | str | Path) -> RoleMap:
    return roles if isinstance(roles, RoleMap) else RoleMap.load(roles)
