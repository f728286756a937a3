"""Role maps for a backbone's weights: those shipped with the package, and those cached for a set of images.

A map belongs to the images it was found from. A cached map is used only for the same weights, images and settings.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dear.backbone.clip import FrozenClip
from dear.config import Settings
from dear.data.images import ImageList
from dear.errors import ConfigError, DearError, DearWarning, RoleMapError, option, setting
from dear.roles.corpus import TextPool
from dear.roles.entropy import Rule
from dear.roles.rolemap import ROLES, RoleMap, rule_file, shipped_maps
from dear.storage.files import sha256
from dear.storage.locks import mark
from dear.storage.user_cache import cache_home

AUTO = "auto"
"""Instead of a role map: the shipped one for the weights; if there is none, one found from the training images."""
FOLDER = "roles"
"""Folder of the cached maps in the user's cache."""


def shipped_map(clip: FrozenClip) -> RoleMap | None:
    """The map that comes with the package for these weights; None if there is none."""
    for found in shipped_maps():
        made_for = found.provenance
        if made_for.weights_sha256 == clip.weights_sha256:
            return found
        same_name = (made_for.model or "").removesuffix("-quickgelu") == clip.name.removesuffix("-quickgelu")
        if made_for.weights_sha256 is None and same_name and made_for.pretrained == clip.pretrained:
            return found
    return None


def shipped_roles(clip: FrozenClip) -> RoleMap:
    """The map that comes with the package for these weights; without one, the error says how to get one."""
    found = shipped_map(clip)
    if found is None:
        raise RoleMapError(
            f"There is no role map for {clip.name} with these weights: find one with {option(roles=AUTO)}, or train "
            f"without one: {setting(mask='all_mixed')}."
        )
    return found


def is_chosen(roles: RoleMap | str | Path | None) -> bool:
    """Whether a particular map was chosen, rather than none or "auto"."""
    return roles is not None and roles != AUTO


def named_roles(clip: FrozenClip, roles: RoleMap | str | Path | None) -> RoleMap | None:
    """A map by its name or path, checked against the backbone; None and "auto" mean the shipped one, if any."""
    if roles is not None and not isinstance(roles, RoleMap | str | Path):
        raise ConfigError(f"A role map is a RoleMap, a path or a name, not a {type(roles).__name__}.")
    found = shipped_map(clip) if roles is None or roles == AUTO else _loaded(roles)
    if found is not None:
        check_roles(found, clip, min(head.layer for head in found.heads))
    return found


def _loaded(roles: RoleMap | str | Path) -> RoleMap:
    return roles if isinstance(roles, RoleMap) else RoleMap.load(roles)


def check_roles(roles: RoleMap, clip: FrozenClip, first_layer: int) -> None:
    """Refuse a map that does not fit the backbone; warn if it was made for other weights."""
    misfits = roles.misfits(
        first_layer=first_layer,
        layers=clip.geometry.vision_layers,
        heads=clip.geometry.vision_heads,
        weights_sha256=clip.weights_sha256,
        model=None if ":" in clip.name else clip.name,
    )
    if misfits:
        raise RoleMapError(
            f"The role map does not fit layers {first_layer}-{clip.geometry.vision_layers} of {clip.name}: "
            f"{'; '.join(misfits)}."
        )
    made_for = roles.provenance.pretrained
    if roles.provenance.weights_sha256 is None and made_for is not None and made_for != clip.pretrained:
        warnings.warn(
            f"The role map describes the {made_for!r} weights, but {clip.name} was loaded with "
            f"{clip.pretrained or 'weights of its own'}: its heads may do other things.",
            DearWarning,
            stacklevel=3,
        )


def cache_folder(clip: FrozenClip, images: ImageList, pool: TextPool, settings: Settings) -> Path | None:
    """Where the maps found from a set of images are cached; None if some image has no content to identify it by."""
    contents = [images.content(index) if images.content else "" for index in range(len(images))]
    if not all(contents):
        return None
    key = [sorted(contents), pool.sha256, settings.model_dump(mode="json")]
    digest = sha256(json.dumps(key, sort_keys=True).encode())
    return cache_home() / FOLDER / f"{clip.weights_sha256[:16]}-{digest[:32]}"


def cached_map(clip: FrozenClip, folder: Path | None) -> RoleMap | None:
    """The map in a folder of the cache; None if there is none, or if it is damaged or of other weights."""
    if folder is not None:
        with suppress(DearError, OSError):
            found = RoleMap.load(folder / ROLES)
            if found.provenance.weights_sha256 == clip.weights_sha256:
                return found
    return None


def cache_maps(folder: Path, chosen: RoleMap, by_rule: Mapping[Rule, RoleMap]) -> bool:
    """Write the chosen map and the maps by each rule; False if the cache cannot be written."""
    with suppress(DearError, OSError):
        mark(cache_home(), "cache")
        folder.mkdir(parents=True, exist_ok=True)
        for rule, found in by_rule.items():
            found.save(folder / rule_file(rule))
        chosen.save(folder / ROLES)
        return True
    return False
