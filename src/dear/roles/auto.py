"""`roles="auto"`: the shipped role map for the weights, or one found from the training images and cached for them."""

from __future__ import annotations

from collections.abc import Callable

from dear.backbone.clip import FrozenClip
from dear.data.images import ImageList
from dear.errors import MissingExtraError, setting
from dear.roles.concepts import load_encoder
from dear.roles.corpus import load_pool
from dear.roles.discover import RULES, DiscoverySettings, discover, first_examined_layer
from dear.roles.known import cache_folder, cache_maps, cached_map, shipped_map
from dear.roles.moments import collect_moments
from dear.roles.rolemap import RoleMap
from dear.roles.stability import doubt, resampled, with_stability

POOL = "photographs"
MOST_IMAGES = 2000
"""More images hardly change a map, and take longer."""

Say = Callable[[str], None]


def auto_roles(
    clip: FrozenClip,
    images: ImageList,
    *,
    first_layer: int | None = None,
    say: Say = lambda message: None,
) -> RoleMap:
    """The shipped map for the weights; if there is none, one found from the images, by the first rule that finds roles.

    A map is cached for the weights, the images and the settings. A map found from other images is never used.

    Args:
        clip: the frozen backbone.
        images: training images; at most 2,000 are read, evenly spread.
        first_layer: first layer to examine; by default the last four layers.
        say: called with each message, such as which rule decided.
    """
    if (shipped := shipped_map(clip)) is not None:
        say(f"role map: {shipped.provenance.source}.")
        return shipped
    first, pool = first_examined_layer(clip, first_layer), load_pool(POOL)
    chosen_images, settings = images.spread(MOST_IMAGES), DiscoverySettings(first_layer=first)
    folder = cache_folder(clip, chosen_images, pool, settings)
    if (cached := cached_map(clip, folder)) is not None:
        say(f"role map: {cached.provenance.source}.")
        _warn(cached, say)
        return cached
    try:
        encode = load_encoder()
    except MissingExtraError:
        raise MissingExtraError(
            f'Finding a role map for {clip.name} needs more packages: pip install "dear-vlm[roles]", or train without '
            f"one: {setting(mask='all_mixed')}."
        ) from None
    collected = collect_moments(clip, chosen_images, first_layer=first)
    source = f"found by dear (roles=auto) on {collected.whole().count} training images"
    found = discover(clip, collected, pool, encode, settings, source=source, validate=False)
    found = with_stability(found, resampled(clip, collected, found, settings))
    chosen = next((found.maps[rule] for rule in RULES if found.maps[rule].is_specialised), found.roles)
    say(_summary(chosen))
    _warn(chosen, say)
    if folder is not None:
        written = cache_maps(folder, chosen, found.maps)
        say(f"role map cached in {folder}." if written else "note: the cache cannot be written: the map is not cached.")
    return chosen


def _warn(roles: RoleMap, say: Say) -> None:
    """Say that a map is unstable, or may be, and what to do about it."""
    if (problem := doubt(roles)) is not None:
        say(f"note: {problem} Use more images, or train without roles: {setting(mask='all_mixed')}.")


def _summary(chosen: RoleMap) -> str:
    """Which rule decided, and what that means, in one sentence."""
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
