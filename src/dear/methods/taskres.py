"""TaskRes: a learned residual per class, added to the class's frozen text feature."""

from __future__ import annotations

from pydantic import Field

from dear.methods.api import About, Recipe, Settings, Special
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.residuals import ResidualMethod


class TaskResConfig(Settings):
    """Config of TaskRes."""

    alpha: float = Field(default=0.5, ge=0)
    """Factor of the residuals."""


class TaskRes(ResidualMethod[TaskResConfig]):
    """A learned residual per class, added to the class's frozen text feature."""

    name = "taskres"
    recipe = Recipe(**{**DASSL, "optimiser": "adam", "batch_size": 256}, epochs=200)
    special = (
        Special({"epochs": 100}, shots=(1, 7)),
        Special({"lr": 2e-4}, data=("imagenet",)),
        Special(config={"alpha": 1.0}, data=("oxford_flowers",)),
    )
    about = About(
        citation="Yu et al., Task Residual for Tuning Vision-Language Models, CVPR 2023",
        year=2023,
        touches="class features",
        parameters=None,
        trained="512 per class",
        code="geekyutao/TaskRes 5195359",
        licence="MIT",
    )

    @property
    def scale(self) -> float:
        """Factor of the residuals."""
        return self.config.alpha
