"""A role map without being asked for one: found from the images at hand, kept for the user, found again next time."""

from __future__ import annotations

from collections.abc import Callable

from dear.backbone.clip import FrozenClip
from dear.data.images import ImageList
from dear.errors import MissingExtraError, setting
from dear.roles.concepts import load_encoder
from dear.roles.corpus import load_pool
from dear.roles.discover import RULES, DiscoverySettings, discover, first_examined_layer
from dear.roles.known import is_specialised, keep_maps, known_roles
from dear.roles.moments import collect_moments
from dear.roles.rolemap import RoleMap

POOL = "photographs"
MOST_IMAGES = 2000
"""More images hardly change a map, and take longer."""

Say = Callable[[str], None]


def auto_roles(
    clip: FrozenClip,
    images: ImageList,
    *,
    first_layer: int | None = None,
    say: Say = lambda remark: None,
) -> RoleMap:
    """The map known for the weights; if there is none, one found from the images, by the first rule that finds roles.

    Args:
        clip: the frozen backbone.
        images: training images; of many, 2,000 are read, evenly spread.
        first_layer: first layer to examine; by default the last four layers.
        say: called with each remark, such as which rule decided.
    """
    if (known := known_roles(clip, first_layer)) is not None:
        say(f"role map: {known.provenance.source}.")
        return known
    try:
        encode = load_encoder()
    except MissingExtraError:
        raise MissingExtraError(
            f'Finding a role map for {clip.name} needs more packages: pip install "dear-vlm[roles]", or train without '
            f"one: {setting(mask='all_mixed')}."
        ) from None
    chosen_images, settings = images.spread(MOST_IMAGES), DiscoverySettings(first_layer=first_layer)
    collected = collect_moments(clip, chosen_images, first_layer=first_examined_layer(clip, first_layer))
    source = f"found by dear (roles=auto) on {collected.whole().count} training images"
    found = discover(clip, collected, load_pool(POOL), encode, settings, source=source, validate=False)
    chosen = next((found.maps[rule] for rule in RULES if is_specialised(found.maps[rule])), found.roles)
    say(_told(chosen))
    kept = keep_maps(clip, chosen, found.maps, first_layer)
    say(f"role map kept in {kept}." if kept else "note: the user's cache cannot be written: the map is not kept.")
    return chosen


def _told(chosen: RoleMap) -> str:
    """Which rule decided, and what that means."""
    rule, count = chosen.provenance.rule, len(chosen.heads)
    special = sum(head.role.value != "mixed" for head in chosen.heads)
    if not special:
        return (
            f"role map: no head is specialised by either rule, so the map does the same as {setting(mask='all_mixed')}."
        )
    if rule == RULES[0]:
        return f"role map: {special} of {count} heads are specialised, by the {rule} rule."
    return (
        f"role map: no head is specialised by the {RULES[0]} rule, which asks for one concept in half of a head's "
        f"phrases; by the {rule} rule, which compares heads with each other, {special} of {count} are."
    )
