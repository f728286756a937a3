"""Role maps that are known for a backbone's weights: shipped with the package, or found before and kept for the user.

A kept map lies in the user's cache under the hash of the weights: `roles.json`, and one map for each rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dear.backbone.clip import FrozenClip
from dear.errors import DearError
from dear.roles.entropy import Rule
from dear.roles.rolemap import ROLES, Role, RoleMap, rule_file, shipped_maps
from dear.storage.locks import mark
from dear.storage.user_cache import cache_home

FOLDER, LAST_LAYERS = "roles", 4


def known_roles(clip: FrozenClip, first_layer: int | None = None) -> RoleMap | None:
    """The map for these very weights: the shipped one, else the one that was found before; None if there is none.

    A map that was found for other layers than those from `first_layer` on does not count.
    """
    return shipped_map(clip) or kept_map(clip, first_layer)


def shipped_map(clip: FrozenClip) -> RoleMap | None:
    """The map that comes with the package for these very weights."""
    for found in shipped_maps():
        made_for = found.provenance
        if made_for.weights_sha256 == clip.weights_sha256:
            return found
        same_name = (made_for.model or "").removesuffix("-quickgelu") == clip.name.removesuffix("-quickgelu")
        if made_for.weights_sha256 is None and same_name and made_for.pretrained == clip.pretrained:
            return found
    return None


def kept_map(clip: FrozenClip, first_layer: int | None = None) -> RoleMap | None:
    """The map in the user's cache for these weights; one that is damaged or of other weights does not count."""
    with suppress(DearError, OSError):
        found = RoleMap.load(kept_folder(clip, first_layer) / ROLES)
        if found.provenance.weights_sha256 == clip.weights_sha256:
            return found
    return None


def kept_folder(clip: FrozenClip, first_layer: int | None = None) -> Path:
    """Where maps of a backbone are kept; those of other layers than the last four have a folder of their own."""
    usual = max(1, clip.geometry.vision_layers - LAST_LAYERS + 1)
    from_layer = "" if first_layer in (None, usual) else f"-from-layer-{first_layer}"
    return cache_home() / FOLDER / f"{clip.weights_sha256}{from_layer}"


def keep_maps(
    clip: FrozenClip, chosen: RoleMap, by_rule: Mapping[Rule, RoleMap], first_layer: int | None = None
) -> Path | None:
    """Keep maps for the next time, and say where; None if the cache cannot be written."""
    folder = kept_folder(clip, first_layer)
    with suppress(DearError, OSError):
        mark(cache_home(), "cache")
        folder.mkdir(parents=True, exist_ok=True)
        for rule, found in by_rule.items():
            found.save(folder / rule_file(rule))
        chosen.save(folder / ROLES)
        return folder
    return None


def is_specialised(roles: RoleMap) -> bool:
    """Whether any head has a role of its own: a map of mixed heads alone does the same as none."""
    return any(head.role is not Role.MIXED for head in roles.heads)
