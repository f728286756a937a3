"""What a grid runs on if nobody says: data sets by protocol, and the backbone that knows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dear.data.catalog import declarations
from dear.data.dataset import Dataset
from dear.data.families import BROAD_WORLD, IMAGENETS, WORLD
from dear.data.open import own_clip
from dear.errors import ConfigError, option
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


def clip_for(data: str | Path | Dataset, clip: str | None, pretrained: str | None) -> tuple[str, str | None]:
    """The backbone to adapt: the one named, or the world's own for its drawn data sets, which knows no photographs."""
    if clip is not None:
        return clip, pretrained
    if pretrained is not None:
        raise ConfigError(f"The weights {pretrained!r} need a backbone: name it with {option(clip='NAME')}.")
    if (own := own_clip(data)) is not None:
        return own, None
    name = data.name if isinstance(data, Dataset) else Path(data).name
    raise ConfigError(
        f"{name} needs a CLIP that knows photographs: add {option(clip='ViT-B-16-quickgelu', pretrained='openai')}."
    )
