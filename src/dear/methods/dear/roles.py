"""Which role map a model gets: the one given, or the shipped one for its weights, or a variant for the ablations."""

from __future__ import annotations

import warnings
from pathlib import Path

from dear.backbone.clip import FrozenClip
from dear.errors import ConfigError, DearWarning, RoleMapError, did_you_mean, option, setting
from dear.files import is_folder
from dear.roles.derive import by_threshold, with_attributes
from dear.roles.rolemap import Role, RoleMap, shipped_maps

ROLE_CHOICES = ("roles", "mask", "threshold", "attributes")
MASKS = ("roles", "all_mixed", "all_generalization", "shuffled")


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

    `threshold` cuts the heads' entropies anew (per cent), `attributes` takes fewer or more attributes.
    """
    if mask not in MASKS:
        raise ConfigError(f"mask is {mask!r}, but can be {', '.join(MASKS)}.{did_you_mean(str(mask), MASKS)}")
    if roles is None and mask in ("all_mixed", "all_generalization"):
        role = Role.MIXED if mask == "all_mixed" else Role.GENERALIZATION
        sizes = clip.geometry
        return RoleMap.uniform(role, first_layer=first_layer, layers=sizes.vision_layers, heads=sizes.vision_heads)
    found = _given(roles) if roles is not None else shipped_roles(clip)
    if threshold is not None:
        found = by_threshold(found, threshold)
    if attributes is not None:
        found = with_attributes(found, attributes)
    variants = {"roles": lambda: found, "all_mixed": found.all_mixed, "all_generalization": found.all_generalization}
    return found.shuffled(seed) if mask == "shuffled" else variants[mask]()


def _given(roles: RoleMap | str | Path) -> RoleMap:
    if isinstance(roles, RoleMap):
        return roles
    return RoleMap.load(Path(roles) / "roles.json" if is_folder(roles) else roles)


def shipped_roles(clip: FrozenClip) -> RoleMap:
    """The map that comes with the package for these very weights."""
    for found in shipped_maps():
        made_for = found.provenance
        if made_for.weights_sha256 == clip.weights_sha256:
            return found
        same_name = (made_for.model or "").removesuffix("-quickgelu") == clip.name.removesuffix("-quickgelu")
        if made_for.weights_sha256 is None and same_name and made_for.pretrained == clip.pretrained:
            return found
    weights = f" --pretrained {clip.pretrained}" if clip.pretrained else ""
    raise RoleMapError(
        f"There is no role map for {clip.name} with these weights: make one with 'dear roles discover --clip "
        f"{clip.name}{weights} --images FOLDER --out ROLES' and give it by {option(roles='ROLES')}, or train without "
        f"one: {setting(mask='all_mixed')}."
    )


def check_roles(roles: RoleMap, clip: FrozenClip, first_layer: int) -> None:
    """Refuse a map that does not fit; warn where it was made for other weights."""
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
