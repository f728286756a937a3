"""What a grid runs on if nobody says: data sets by protocol, and the backbone that knows them."""

from __future__ import annotations

from collections.abc import Sequence

from dear.data.catalog import declarations
from dear.data.families import BROAD_WORLD, IMAGENETS, WORLD
from dear.engine.workspace import clip_for
from dear.world.datasets import dataset_names

BROAD_PHOTOGRAPHS = IMAGENETS[0]


def backbone_for(data: Sequence[str], clip: str | None, pretrained: str | None) -> tuple[str, str | None]:
    """The backbone of a grid: the one named, the world's for its own data sets, else a sentence that asks for one."""
    found = [clip_for(one, clip, pretrained) for one in data or [BROAD_WORLD]]
    return found[0]


def broad_set(clip: str) -> str:
    """The data set that stands for ImageNet with a backbone."""
    return BROAD_WORLD if clip == WORLD else BROAD_PHOTOGRAPHS


def default_data(protocol: str, broad: str, source: str | None) -> list[str]:
    """The data sets of the world or of the paper; shifted variants of `broad` are for domain, or for the world."""
    paper = tuple(name for name, one in declarations().items() if one.base is None)
    names = dataset_names() if broad == BROAD_WORLD else paper
    shifted = [name for name in names if name.startswith(broad) and name != broad]
    if protocol == "domain":
        return shifted
    if protocol == "base-to-novel" and broad == BROAD_WORLD:
        return list(names)
    return [name for name in names if name not in shifted and name != source]
