"""An example of a method: CLIP's own class features with a learned low-rank change and a learned scale."""

import torch
from pydantic import Field
from torch import nn

from dear.methods.api import Method, Output, Recipe, Settings, unit


class ScaledClassesConfig(Settings):
    """Settings of the method: `dear ls settings scaled_classes`, `--set rank=8`."""

    rank: int = Field(default=4, ge=1, le=256)
    """Rank of the change to the class features."""
    scale: float = Field(default=1.0, gt=0)
    """Initial factor of the logits, in addition to CLIP's temperature."""


class ScaledClasses(Method[ScaledClassesConfig]):
    """CLIP's class features with a learned low-rank change."""

    name = "scaled_classes"
    recipe = Recipe(optimiser="adamw", lr=1e-3, epochs=10, batch_size=32)

    def __init__(self, clip, config, **others):
        super().__init__(clip, config, **others)
        size = clip.geometry.embed_dim
        self.down = nn.Parameter(torch.randn(size, config.rank, generator=self.generator) * size**-0.5)
        self.up = nn.Parameter(torch.zeros(config.rank, size))  # so that training starts from plain CLIP
        self.log_scale = nn.Parameter(torch.tensor(config.scale).log())

    def text(self, clip, frozen, batch=None):
        """Changed class features; `frozen` are CLIP's own. New classes are changed in the same way."""
        return unit(frozen + frozen @ self.down @ self.up)

    def forward(self, clip, image, text, batch=None):
        """Cosines with the changed class features."""
        feature = unit(image["feature"])
        logits = self.log_scale.exp() * clip.temperature * feature @ text.T
        weights = {"scale": self.log_scale.exp()}
        return Output({"logits": logits}, features={"cls": feature}, weights=weights, classes=text)
