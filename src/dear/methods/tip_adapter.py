"""Tip-Adapter: cached features of the training images as a second classifier next to the text."""

from __future__ import annotations

from pydantic import Field

from dear.methods.api import About, Recipe, Special
from dear.methods.parts.caches import CacheConfig, CacheMethod, Scale, Steps

PUBLISHED = {
    "imagenet": (1.17, (7.0, 3.0)),
    "caltech101": (3.0, (12.0, 5.0)),
    "oxford_pets": (1.17, (7.0, 3.0)),
    "stanford_cars": (3.0, (20.0, 10.0)),
    "oxford_flowers": (10.0, (50.0, 50.0)),
    "food101": (1.17, (10.0, 10.0)),
    "fgvc_aircraft": (5.0, (30.0, 30.0)),
    "sun397": (1.17, (12.0, 10.0)),
    "dtd": (2.0, (13.0, 13.0)),
    "eurosat": (2.0, (12.0, 10.0)),
    "ucf101": (3.0, (7.0, 3.0)),
}
"""By data set: initial α, upper ends of the searches for β and α."""


class TipConfig(CacheConfig):
    """Config of Tip-Adapter."""

    search_scale: tuple[Scale, Scale] = Field(default=(7.0, 3.0), strict=False)
    """Upper ends of the searches for β and α."""
    search_steps: tuple[Steps, Steps] = Field(default=(200, 20), strict=False)
    """Number of values of β and α to try."""


class TipAdapter(CacheMethod[TipConfig]):
    """Cached features of the training images as a second classifier; nothing is trained."""

    name = "tip_adapter"
    recipe = Recipe(epochs=0, crop=(0.5, 1.0))
    special = tuple(
        Special(config={"init_alpha": alpha, "search_scale": scale}, data=(data,))
        for data, (alpha, scale) in PUBLISHED.items()
    )
    about = About(
        citation="Zhang et al., Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification, ECCV 2022",
        year=2022,
        touches="logits, by a cache of images",
        parameters=0,
        code="gaopengcuhk/Tip-Adapter d0e2d6f",
        licence="none stated",
    )
