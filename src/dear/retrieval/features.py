"""Features of attributes without any training: what the heads of a concept add to an image's CLIP embedding.

The embedding is a sum over heads and MLPs, so the parts here sum to it exactly; a part, normalised, is a feature of
what its heads are about. One forward pass gives all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.backbone.frozen import TERMS
from dear.backbone.head_contributions import name_groups
from dear.config import whole_number
from dear.data.images import image_batches
from dear.data.inputs import image_list
from dear.errors import ConfigError, ImageError, RoleMapError, option
from dear.roles.groups import REST, Groups, group_heads
from dear.roles.known import named_roles
from dear.roles.rolemap import RoleMap

_READS = "Features are made of paths, PIL images or a batch of preprocessed images"


def attribute_features(
    clip: FrozenClip,
    roles: RoleMap | str | Path | None,
    images: Any,
    *,
    by: str | Mapping[str, Sequence[Any]] = "concept",
    batch_size: int = 32,
    workers: int = 2,
) -> dict[str, Tensor]:
    """What groups of heads add to the embeddings of images, by the name of the group: (B, E) each.

    The values sum to `clip.encode_image`; the last, "rest", is everything that is in no group. To compare images by a
    group, compare the cosines of its rows.

    Args:
        clip: from `dear.load_clip`.
        roles: a `RoleMap`, a roles.json, the folder of 'dear roles discover', or a name ("vit-b-16"); None for the one
            shipped for the weights.
        images: a batch made with `clip.preprocess_eval`, or paths or PIL images; one that cannot be read raises
            `ImageError`.
        by: "concept" (color, shape, …), "role", "head", or groups of your own, such as {"mine": ["11.4", "9.0"]}.
        batch_size: images per forward pass, for paths or PIL images.
        workers: threads that read images.
    """
    if not isinstance(clip, FrozenClip):
        raise ConfigError(f"clip must come from dear.load_clip(…), but is a {type(clip).__name__}.")
    groups = group_heads(clip, fitting_roles(clip, roles), by)
    if isinstance(images, Tensor):
        return head_features(clip, groups, images)
    whole_number("batch_size", batch_size, least=1)
    found = []
    listed = image_list(images, _READS)
    if not listed.names:
        raise ConfigError("There are no images: give at least one.")
    for part in image_batches(listed, clip.preprocess_eval, size=batch_size, workers=workers):
        if part.problems or part.images is None:
            raise ImageError(part.problems[0])
        found.append(head_features(clip, groups, part.images.to(clip.device)))
    return {name: torch.cat([one[name] for one in found]) for name in found[0]}


def head_features(clip: FrozenClip, groups: Groups, images: Tensor) -> dict[str, Tensor]:
    """The parts of preprocessed images' embeddings by group of heads, then everything else, in one forward pass."""
    name = TERMS + name_groups(list(groups.values()))
    terms_BGE = clip.frozen(images, [name])[name]
    return dict(zip((*groups, REST), terms_BGE.unbind(1), strict=True))


def fitting_roles(clip: FrozenClip, roles: RoleMap | str | Path | None) -> RoleMap:
    """A named role map, or the one shipped for the weights, if it fits the backbone."""
    found = named_roles(clip, roles)
    if found is None:
        raise RoleMapError(
            f"There is no role map for {clip.name} with these weights, so search by attribute is not available: "
            f"create a map with 'dear roles discover' and pass it with {option(roles='ROLES')}, or search by whole "
            f"images only, with {option(kinds='cls')}."
        )
    return found
