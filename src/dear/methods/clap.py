"""CLAP: a linear probe that starts from the text features and is penalised for leaving them, class by class.

Shapes: V views, N training images, C classes, E joint embedding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dear.methods.api import About, Batch, Draw, FrozenClip, Needs, Output, Recipe, Settings, Special, unit
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.residuals import ResidualMethod


class CLAPConfig(Settings):
    """Config of CLAP."""

    passes: int = Field(default=10, ge=1, le=1000)
    """Random views of each training image that the multipliers are computed from; 20 by its own recipe."""


class CLAP(ResidualMethod[CLAPConfig]):
    """A linear probe that starts from the text features and is penalised for leaving them."""

    name = "clap"
    recipe = Recipe(**{**DASSL, "lr": 0.1, "batch_size": 256}, decay=0.0, epochs=300)
    special = (Special(config={"passes": 20}),)
    about = About(
        citation="Silva-Rodríguez et al., A Closer Look at the Few-Shot Adaptation of Large Vision-Language Models, "
        "CVPR 2024",
        year=2024,
        touches="class features",
        parameters=None,
        trained="512 per class",
        code="jusiro/CLAP dbdf409",
        licence="MIT",
    )
    sized_by_data = (*ResidualMethod.sized_by_data, "multipliers")

    def __init__(self, clip: FrozenClip, config: CLAPConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.needs = Needs(passes=self.config.passes)
        self.multipliers: Tensor
        self.register_buffer("multipliers", torch.empty(0))

    @torch.no_grad()
    def begin(self, clip: FrozenClip, draw: Draw) -> None:
        """Start from the text features; a class's multiplier is zero-shot CLIP's mean probability of its views."""
        super().begin(clip, draw)
        text_CE, labels_N, views_VNE = unit(self.classes(clip, draw.classes).base), draw.labels, draw.image["feature"]
        sums_C = text_CE.new_zeros(text_CE.shape[0])
        for view_NE in views_VNE:
            probability_NC = (clip.temperature * unit(view_NE) @ text_CE.T).softmax(1)
            sums_C.index_add_(0, labels_N, probability_NC.gather(1, labels_N[:, None])[:, 0])
        images_C = torch.bincount(labels_N, minlength=len(sums_C)).clamp_min(1)
        self.multipliers.data = sums_C / (images_C * len(views_VNE))

    def check_shapes(self) -> None:
        """Check the width of the residuals and the number of multipliers."""
        super().check_shapes()
        if self.multipliers.shape != self.residuals.shape[:1]:
            raise ValueError("multipliers and residuals do not fit together")

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy, and the mean squared length of the residuals, weighted by the multipliers."""
        weights_C = F.pad(self.multipliers, (0, 1))[out.rest["rows"]]
        constraint = (weights_C * out.rest["residuals"].square().sum(1)).mean()
        return {**super().loss(out, batch), "constraint": constraint}
