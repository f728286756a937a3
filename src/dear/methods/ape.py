"""APE: a cache on the channels that separate classes best; images that the text explains badly weigh more.

Shapes: N cached images, C classes, E channels of the joint embedding, k of them chosen, B images.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from dear.methods.api import About, ClassList, ConfigError, FrozenClip, Recipe, Special, unit
from dear.methods.parts.caches import SMALLEST, CacheConfig, CacheMethod, Scale, Steps

PUBLISHED_WIDTH = 1024
"""Number of channels of the backbone in the paper."""
PUBLISHED = {
    "imagenet": (500, (0.7, 0.3), 2.0, (7.0, 7.0, 0.5)),
    "caltech101": (800, (0.5, 0.5), 1.0, (7.0, 7.0, 1.0)),
    "oxford_pets": (800, (0.7, 0.3), 2.0, (7.0, 7.0, 1.0)),
    "stanford_cars": (500, (0.6, 0.4), 1.0, (10.0, 7.0, 1.0)),
    "oxford_flowers": (700, (0.4, 0.6), 3.0, (7.0, 7.0, 1.0)),
    "food101": (700, (0.3, 0.7), 0.8, (7.0, 7.0, 1.0)),
    "fgvc_aircraft": (800, (0.1, 0.9), 5.0, (20.0, 10.0, 1.0)),
    "sun397": (800, (0.7, 0.3), 1.0, (10.0, 7.0, 1.0)),
    "dtd": (400, (0.5, 0.5), 3.0, (7.0, 7.0, 1.0)),
    "eurosat": (700, (0.9, 0.1), 1.0, (30.0, 5.0, 1.5)),
    "ucf101": (700, (0.3, 0.7), 2.0, (10.0, 7.0, 1.5)),
}
"""By data set: channels of 1024, weights of the criterion, initial α, upper ends of the searches for β, α and γ."""
TINY = 1e-6


class ChannelConfig(CacheConfig):
    """Settings that choose channels."""

    channels: int | None = Field(default=None, ge=1)
    """Number of channels that are used; default: `share` of all."""
    share: float = Field(default=0.5, gt=0, le=1)
    """Share of the channels that are used if `channels` is not set."""
    init_alpha: float = Field(default=2.0, ge=0)
    """Weight of the cache in training, and afterwards if it is not searched for."""

    def count(self, width: int) -> int:
        """Number of channels that are used of `width`; raises a ConfigError if there are not enough."""
        wanted = self.channels or max(1, int(self.share * width))
        if wanted > width:
            raise ConfigError(f"channels is {wanted}, but this backbone has {width} channels: choose at most {width}.")
        return wanted


class APEConfig(ChannelConfig):
    """Config of APE."""

    w: tuple[float, float] = Field(default=(0.7, 0.3), strict=False)
    """Weights of a channel's two criteria: similarity between classes (small is good), variance over classes."""
    init_gamma: float = Field(default=0.1, ge=0)
    """Weight of badly explained images, if it is not searched for."""
    search_scale: tuple[Scale, Scale, Scale] = Field(default=(7.0, 7.0, 0.5), strict=False)
    """Upper ends of the searches for β, α and γ."""
    search_steps: tuple[Steps, Steps, Steps] = Field(default=(200, 20, 5), strict=False)
    """Number of values of β, α and γ to try."""


def similarity(weights_CE: Tensor, keys_NE: Tensor | None = None, labels_N: Tensor | None = None) -> Tensor:
    """Mean product per channel (E,) over all pairs of features of different classes, by class sums in O(N·E).

    Features are the text features, and the keys if there are any.
    """
    sums_CE, counts_C = weights_CE, weights_CE.new_ones(weights_CE.shape[0])
    if keys_NE is not None and labels_N is not None:
        sums_CE = sums_CE.index_add(0, labels_N, keys_NE)
        counts_C = counts_C + torch.bincount(labels_N, minlength=weights_CE.shape[0])
    pairs = counts_C.sum() ** 2 - (counts_C**2).sum()
    return (sums_CE.sum(0) ** 2 - (sums_CE**2).sum(0)) / pairs.clamp_min(1)


def best_channels(weights_CE: Tensor, similarity_E: Tensor, w: tuple[float, float], count: int) -> Tensor:
    """The channels with the largest criterion, best first (k,)."""
    variance_E = weights_CE.var(0) if weights_CE.shape[0] > 1 else torch.zeros_like(similarity_E)
    return (-w[0] * similarity_E + w[1] * variance_E).topk(count).indices


class APE(CacheMethod[APEConfig]):
    """Tip-Adapter's cache on selected channels, with weighted images; nothing is trained."""

    name = "ape"
    recipe = Recipe(epochs=0, crop=(0.5, 1.0))
    special = (
        *(
            Special(
                config={"share": k / PUBLISHED_WIDTH, "w": w, "init_alpha": alpha, "search_scale": scale}, data=(data,)
            )
            for data, (k, w, alpha, scale) in PUBLISHED.items()
        ),
        Special(config={"search_steps": (200, 20, 20)}, data=tuple(data for data in PUBLISHED if data != "imagenet")),
    )
    about = About(
        citation="Zhu et al., Not All Features Matter: Enhancing Few-shot CLIP with Adaptive Prior Refinement, "
        "ICCV 2023",
        year=2023,
        touches="logits, by a cache of images",
        parameters=0,
        needs="descriptions, if any",
        code="yangyangyang127/APE 70460de",
        licence="none stated",
    )
    numbers = ("beta", "alpha", "gamma")
    smallest = (SMALLEST, SMALLEST, 0.0)
    reads_descriptions = True
    sized_by_data = (*CacheMethod.sized_by_data, "channels", "d")

    def __init__(self, clip: FrozenClip, config: APEConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.config.count(clip.geometry.embed_dim)
        self.channels: Tensor
        self.d: Tensor
        self.register_buffer("channels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("d", torch.empty(0))

    @torch.no_grad()
    def remember(self, clip: FrozenClip, keys_NE: Tensor, labels_N: Tensor, classes: ClassList) -> None:
        """Choose channels, and compute how badly the text explains each cached image."""
        super().remember(clip, keys_NE, labels_N, classes)
        weights_CE = self.classes(clip, classes).weights
        similarity_E = similarity(weights_CE, keys_NE, labels_N)
        chosen = best_channels(weights_CE, similarity_E, self.config.w, self.config.count(keys_NE.shape[1]))
        cosines_NC = unit(keys_NE[:, chosen]) @ unit(weights_CE[:, chosen]).T
        own_N = cosines_NC.softmax(1).gather(1, labels_N[:, None])[:, 0]
        self.channels.data, self.d.data = chosen, torch.log2((1 + TINY) / (own_N + TINY))

    def check_shapes(self) -> None:
        """Check the channel numbers and the number of images."""
        super().check_shapes()
        _check_channels(self.channels, self.keys)
        if self.d.shape != self.labels.shape:
            raise ValueError("d and labels do not fit together")

    def affinity(self, feature_BE: Tensor) -> Tensor:
        """Cosines of the chosen channels."""
        return unit(self.keys[:, self.channels]) @ unit(feature_BE[:, self.channels]).T

    def key_weights(self, gamma: Tensor | float | None = None) -> Tensor:
        """exp(γ·d)."""
        return torch.exp((self.get_buffer("gamma") if gamma is None else gamma) * self.d)[:, None]


def _check_channels(channels: Tensor, keys: Tensor) -> None:
    if channels.ndim != 1 or (channels.numel() and not 0 <= int(channels.min()) <= int(channels.max()) < keys.shape[1]):
        raise ValueError("channels and keys do not fit together")
