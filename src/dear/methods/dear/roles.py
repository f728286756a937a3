"""Which role map a model gets: the one given, or the one known for its weights, or a variant for the ablations."""

from __future__ import annotations

import warnings
from pathlib import Path

from dear.backbone.clip import FrozenClip
from dear.errors import ConfigError, DearWarning, RoleMapError, did_you_mean, option, setting
from dear.roles.derive import by_threshold, with_attributes
from dear.roles.known import known_roles
from dear.roles.rolemap import Role, RoleMap

AUTO = "auto"
"""Instead of a map: the one that is known for the weights, which whoever trains finds first if there is none."""
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
    if roles in (None, AUTO) and mask in ("all_mixed", "all_generalization"):
        role = Role.MIXED if mask == "all_mixed" else Role.GENERALIZATION
        sizes = clip.geometry
        return RoleMap.uniform(role, first_layer=first_layer, layers=sizes.vision_layers, heads=sizes.vision_heads)
    found = _given(roles) if roles not in (None, AUTO) else shipped_roles(clip, first_layer)
    if threshold is not None:
        found = by_threshold(found, threshold)
    if attributes is not None:
        found = with_attributes(found, attributes)
    variants = {"roles": lambda: found, "all_mixed": found.all_mixed, "all_generalization": found.all_generalization}
    return found.shuffled(seed) if mask == "shuffled" else variants[mask]()


def _given(roles: RoleMap | str | Path) -> RoleMap:
    return roles if isinstance(roles, RoleMap) else RoleMap.load(roles)


def shipped_roles(clip: FrozenClip, first_layer: int | None = None) -> RoleMap:
    """The map that is known for these very weights: the shipped one, else the one found before."""
    found = known_roles(clip, first_layer)
    if found is None:
        raise RoleMapError(
            f"There is no role map for {clip.name} with these weights: find one with {option(roles='auto')}, or train "
            f"without one: {setting(mask='all_mixed')}."
        )
    return found


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
