"""Origin, cost and requirements of a method."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """Facts of a published method."""

    citation: str
    """Authors, title, venue, as in "Zhou et al., Learning to Prompt …, IJCV 2022"."""
    year: int
    touches: str
    """The part of CLIP that it changes: "words of the prompt", "both towers, layers 1–9"."""
    parameters: int | None
    """Trained parameters on ViT-B/16 with the default config; None if they depend on classes or images."""
    needs: str = "nothing"
    """Requirements besides photos: "a role map", "a teacher, unlabelled photos"."""
    code: str = ""
    """The published code: owner/name and commit."""
    licence: str = ""
    """Its licence, "none stated" if there is none."""
    trained: str = ""
    """Description of the trained parameters if `parameters` is None: "one context per class"."""
