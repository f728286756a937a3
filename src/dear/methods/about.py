"""Where a method comes from and what it costs, for people who choose one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """Facts of a published method."""

    citation: str
    """Authors, title, venue, as in "Zhou et al., Learning to Prompt …, IJCV 2022"."""
    year: int
    touches: str
    """What of CLIP it acts on, in a few words: "words of the prompt", "both towers, layers 1–9"."""
    parameters: int | None
    """Trainable numbers on ViT-B/16 with the default config; None if they depend on the classes or the draw."""
    needs: str = "nothing"
    """What it needs besides photos: "a role map", "a teacher, unlabelled photos"."""
    code: str = ""
    """The published code: owner/name and commit."""
    licence: str = ""
    """Its licence, "none stated" if there is none."""
    trained: str = ""
    """What `parameters` counts if that is None: "one context per class"."""
