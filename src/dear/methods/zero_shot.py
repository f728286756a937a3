"""Zero-shot CLIP: the frozen model's own features and nothing else."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.data.prompts import ClassList
from dear.methods.about import About
from dear.methods.base import Method, tokens_of
from dear.methods.recipe import Recipe


class ZeroShot(Method):
    """Plain CLIP: what every method is when it is switched off."""

    name: ClassVar[str] = "zero_shot"
    recipe: ClassVar[Recipe] = Recipe(epochs=0)
    about: ClassVar[About] = About(
        citation="Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021",
        year=2021,
        touches="nothing",
        parameters=0,
        code="openai/CLIP",
        licence="MIT",
    )

    def classes(self, clip: FrozenClip, classes: ClassList) -> Tensor:
        """OpenCLIP's own class features, of unit length: (C, E)."""
        tokens_of(clip, classes)
        return clip.encode_text(classes.prompts())
