"""Zero-shot CLIP: the features of the frozen model."""

from __future__ import annotations

from torch import Tensor

from dear.methods.api import About, ClassList, FrozenClip, Method, Recipe, tokens_of


class ZeroShot(Method):
    """Plain CLIP, the same as any method that is disabled."""

    name = "zero_shot"
    recipe = Recipe(epochs=0)
    about = About(
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
