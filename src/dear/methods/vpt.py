"""VPT: learned rows in the layers of the image tower; the text tower is unchanged.

Shapes: n learned rows per layer, B images, C classes, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.data.catalog import declarations
from dear.data.prompts import DEFAULT_TEMPLATE, ClassList
from dear.methods.api import About, Batch, Can, Method, Needs, Output, Recipe, Settings, Special, cosine_output, unit
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import frozen_features, prompted_image, random_rows


class VPTConfig(Settings):
    """Config of VPT."""

    context: int = Field(default=8, ge=1, le=256)
    """Number of learned image rows per layer."""
    depth: int = Field(default=12, ge=1)
    """Number of layers, from the first on, that get learned rows of their own; 1 is "shallow" VPT."""


class VPT(Method[VPTConfig]):
    """Learned rows in every layer of the image tower; the text tower is unchanged."""

    name = "vpt"
    needs_of_clip = frozenset({Can.IMAGE_LAYERS})
    recipe = Recipe(**{**DASSL, "lr": 2.5e-3, "batch_size": 4}, epochs=5)
    special = (Special({"epochs": 2}, protocols=("cross-dataset", "domain")),)
    about = About(
        citation="Jia et al., Visual Prompt Tuning, ECCV 2022; on CLIP: Khattak et al., MaPLe, CVPR 2023",
        year=2022,
        touches="image tower, layers 1–12",
        parameters=73_728,
        code="muzairkhattak/multimodal-prompt-learning 69bce21",
        licence="MIT",
    )

    def __init__(self, clip: FrozenClip, config: VPTConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.needs = Needs(image=("rows@1",))
        layers = range(min(self.config.depth, clip.vision.depth))
        self.vision_prompts = nn.ParameterList(
            random_rows(self.generator, self.config.context, clip.vision.width) for _ in layers
        )

    def classes(self, clip: FrozenClip, classes: ClassList) -> Tensor:
        """Plain CLIP's class features; the published data sets share one template, others have their own."""
        published = classes.dataset in declarations()
        return frozen_features(clip, classes, DEFAULT_TEMPLATE if published else classes.template)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of prompted image features and plain class features."""
        feature_BE = unit(prompted_image(clip, image["rows@1"], list(self.vision_prompts)))
        return cosine_output(clip, feature_BE, text)
