"""An example of a method: CLIP's own class features with a learned low-rank change and a learned scale."""

import torch
from pydantic import Field
from torch import nn

import dear
from dear.config import Settings
from dear.methods.base import unit


class ScaledClassesConfig(Settings):
    """What it can be told: `dear ls settings scaled_classes`, `--set rank=8`."""

    rank: int = Field(default=4, ge=1, le=256)
    """Rank of the change to the class features."""
    scale: float = Field(default=1.0, gt=0)
    """How sharply classes are told apart at the start, beside CLIP's own temperature."""


class ScaledClasses(dear.Method):
    """CLIP's class features with a learned low-rank change."""

    name, Config = "scaled_classes", ScaledClassesConfig
    recipe = dear.Recipe(optimiser="adamw", lr=1e-3, epochs=10, batch_size=32)

    def __init__(self, clip, config, *, seed=0, **others):
        super().__init__(clip, config, seed=seed, **others)
        size, generator = clip.geometry.embed_dim, torch.Generator().manual_seed(seed)
        self.down = nn.Parameter(torch.randn(size, config.rank, generator=generator) * size**-0.5)
        self.up = nn.Parameter(torch.zeros(config.rank, size))  # at the start it is plain CLIP
        self.log_scale = nn.Parameter(torch.tensor(config.scale).log())

    def text(self, clip, frozen, batch=None):
        """Class features from CLIP's own, which `classes` gave: novel classes are changed in the same way."""
        return unit(frozen + frozen @ self.down @ self.up)

    def forward(self, clip, image, text, batch=None):
        """Cosines with the changed class features."""
        feature = unit(image["feature"])
        logits = self.log_scale.exp() * clip.temperature * feature @ text.T
        weights = {"scale": self.log_scale.exp()}
        return dear.Output({"logits": logits}, features={"cls": feature}, weights=weights, classes=text)
