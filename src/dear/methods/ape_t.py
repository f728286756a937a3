"""APE-T: a learned residual per class on selected channels, and a learned weight per cached image.

The residual is added to the text feature of the class and to its keys.

Shapes: N cached images, C classes, E channels of the joint embedding, k of them chosen, B images.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from dear.methods.ape import PUBLISHED, PUBLISHED_WIDTH, ChannelConfig, _check_channels, best_channels, similarity
from dear.methods.api import About, ClassList, FrozenClip, Recipe, Special
from dear.methods.parts.caches import CacheMethod, Scale, Steps

TRAINING: dict[str, tuple[int, float, float, int]] = {
    "imagenet": (500, 1e-4, 1e-3, 20),
    "caltech101": (900, 1e-3, 1e-3, 30),
    "oxford_pets": (800, 1e-4, 2e-3, 30),
    "stanford_cars": (800, 1e-3, 5e-3, 30),
    "oxford_flowers": (800, 1e-3, 1e-3, 60),
    "food101": (900, 1e-4, 1e-3, 30),
    "fgvc_aircraft": (900, 1e-3, 1e-3, 30),
    "sun397": (800, 1e-4, 1e-3, 30),
    "dtd": (700, 1e-3, 1e-3, 20),
    "eurosat": (900, 1e-3, 1e-3, 200),
    "ucf101": (800, 1e-3, 2e-3, 30),
}
"""By data set: channels of 1024, learning rate, eps of AdamW, epochs."""


class APETConfig(ChannelConfig):
    """Config of APE-T."""

    w: tuple[float, float] = Field(default=(0.2, 0.8), strict=False)
    """Weights of a channel's two criteria: similarity between classes (small is good), variance over classes."""
    search_scale: tuple[Scale, Scale] = Field(default=(7.0, 7.0), strict=False)
    """Upper ends of the searches for β and α."""
    search_steps: tuple[Steps, Steps] = Field(default=(200, 20), strict=False)
    """Number of values of β and α to try."""


class APET(CacheMethod[APETConfig]):
    """A trained residual per class for its text feature and its cached keys, and a trained weight per cached image."""

    name = "ape_t"
    recipe = Recipe(
        optimiser="adamw",
        lr=1e-4,
        eps=1e-3,
        decay=0.1,
        batch_size=256,
        epochs=20,
        warmup_epochs=0,
        schedule="step",
        crop=(0.5, 1.0),
    )
    special = (
        *(
            Special(
                {"lr": lr, "eps": eps, "epochs": epochs},
                {
                    "share": k / PUBLISHED_WIDTH,
                    "init_alpha": PUBLISHED[data][2],
                    "search_scale": PUBLISHED[data][3][:2],
                },
                data=(data,),
            )
            for data, (k, lr, eps, epochs) in TRAINING.items()
        ),
        Special({"eps": 1e-2}, data=("food101",), shots=(1, 2)),
    )
    about = About(
        citation="Zhu et al., Not All Features Matter: Enhancing Few-shot CLIP with Adaptive Prior Refinement, "
        "ICCV 2023",
        year=2023,
        touches="class features and logits, by a cache of images",
        parameters=None,
        trained="256 per class, 1 per image",
        needs="descriptions, if any",
        code="yangyangyang127/APE 70460de",
        licence="none stated",
    )
    reads_descriptions = True
    sized_by_data = (*CacheMethod.sized_by_data, "channels", "res", "value_weights")

    def __init__(self, clip: FrozenClip, config: APETConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        count = self.config.count(clip.geometry.embed_dim)
        self.channels: Tensor
        self.register_buffer("channels", torch.arange(count))
        self.res, self.value_weights = nn.Parameter(torch.empty(0, count)), nn.Parameter(torch.empty(0, 1))

    @torch.no_grad()
    def remember(self, clip: FrozenClip, keys_NE: Tensor, labels_N: Tensor, classes: ClassList) -> None:
        """Choose channels by the text only; start with zero residuals and equal weights."""
        super().remember(clip, keys_NE, labels_N, classes)
        weights_CE, count = self.classes(clip, classes).weights, self.config.count(keys_NE.shape[1])
        self.channels.data = best_channels(weights_CE, similarity(weights_CE), self.config.w, count)
        self.res.data = keys_NE.new_zeros(weights_CE.shape[0], count)
        self.value_weights.data = keys_NE.new_ones(keys_NE.shape[0], 1)

    def check_shapes(self) -> None:
        """Check the channel numbers and the numbers of classes and images."""
        super().check_shapes()
        _check_channels(self.channels, self.keys)
        if self.res.shape != (self.per_class.shape[0], self.channels.shape[0]):
            raise ValueError("res, channels and per_class do not fit together")
        if self.value_weights.shape != (self.labels.shape[0], 1):
            raise ValueError("value_weights and labels do not fit together")

    def moved(self, feature_BE: Tensor) -> Tensor:
        """Contribution of the residuals to the cosines, the same for text and keys of a class; 0 for other classes."""
        own_CB = self.res @ feature_BE[:, self.channels].T
        return torch.cat([own_CB, own_CB.new_zeros(1, own_CB.shape[1])])

    def key_weights(self, gamma: Tensor | float | None = None) -> Tensor:
        """The learned weights."""
        return self.value_weights
