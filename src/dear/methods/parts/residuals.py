"""A learned residual per class, added to the class's frozen text feature: TaskRes and CLAP.

Shapes: C classes, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.data.prompts import ClassList
from dear.methods.base import Batch, ConfigT, Draw, Method, Needs, Output, cosine_output, unit
from dear.methods.parts.class_features import raw_class_features
from dear.methods.parts.class_identity import known_rows, name_bytes, places


class ResidualText(NamedTuple):
    """Class features, and the residuals in them."""

    features: Tensor
    """(C, E), of unit length."""
    residuals: Tensor
    """(C, E); zeros for a class that was not trained."""
    rows: Tensor
    """(C,) index of each class in the training list; the number of trained classes for others."""


class FrozenClasses(NamedTuple):
    """A class list before anything learned."""

    base: Tensor
    """(C, E) text features, not normalised."""
    seen: Tensor
    """(C,) places in the training list, -1 for others."""
    dataset: str | None


class ResidualMethod(Method[ConfigT]):
    """Cosines of image features with text features plus residuals; other classes have none, so they are zero-shot."""

    needs = Needs(drawn_images=False)
    sized_by_data: ClassVar[tuple[str, ...]] = ("residuals", "trained_data")

    def __init__(self, clip: FrozenClip, config: ConfigT, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self._width = clip.geometry.embed_dim
        self.residuals = nn.Parameter(torch.empty(0, self._width))
        self.trained_data: Tensor
        self.register_buffer("trained_data", name_bytes(None))

    @property
    def scale(self) -> float:
        """Factor of the residuals."""
        return 1.0

    def begin(self, clip: FrozenClip, draw: Draw) -> None:
        """Start with zeros for every class."""
        self.residuals.data = torch.zeros(len(draw.classes.names), self._width, device=clip.device)
        self.trained_data.data = name_bytes(draw.classes.dataset).to(clip.device)

    def check_shapes(self) -> None:
        """Check the width of the residuals."""
        if self.residuals.ndim != 2 or self.residuals.shape[1] != self._width:
            raise ValueError(f"residuals are not of width {self._width}")

    def classes(self, clip: FrozenClip, classes: ClassList) -> FrozenClasses:
        """Text features that are averaged over templates, and which classes were trained."""
        return FrozenClasses(raw_class_features(clip, classes), places(classes, clip.device), classes.dataset)

    def text(self, clip: FrozenClip, frozen: FrozenClasses, batch: Batch | None = None) -> ResidualText:
        """Class features of unit length, and the residuals in them."""
        rows = known_rows(frozen.seen, frozen.dataset, self.trained_data, self.residuals.shape[0])
        moved_CE = nn.functional.pad(self.residuals, (0, 0, 0, 1))[rows]
        return ResidualText(unit(frozen.base + self.scale * moved_CE), moved_CE, rows)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: ResidualText, batch: Batch | None = None
    ) -> Output:
        """Cosines of image and class features."""
        rest = {"residuals": text.residuals, "rows": text.rows}
        return cosine_output(clip, unit(image["feature"]), text.features, rest=rest)
