"""What can be done with a CLIP, found from its modules; and the few models that cannot be used at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any


class Can(StrEnum):
    """Something that a CLIP allows besides its features."""

    FEATURES = "features"
    """Features of images and texts, by the model's own code."""
    WORDS = "words"
    """Learned words in prompts."""
    TEXT_LAYERS = "text layers"
    """The text tower's layers: deep tokens, low-rank terms, copies."""
    IMAGE_LAYERS = "image layers"
    """The image tower's layers: new tokens, masks, the split into heads, low-rank terms, copies."""
    CAUSAL_TEXT = "causal text"
    """Layers of a text tower in which a row attends only to itself and the rows before it."""


NEEDED = {
    Can.WORDS: "learned words in the text tower",
    Can.TEXT_LAYERS: "the layers of the text tower",
    Can.IMAGE_LAYERS: "the layers of the image tower",
    Can.CAUSAL_TEXT: "a causal text tower",
}


def missing(needed: Iterable[Can], can: frozenset[Can]) -> str | None:
    """What a CLIP lacks, in words; None if it lacks nothing."""
    lacking = [NEEDED[one] for one in Can if one in set(needed) - can]
    return " and ".join(lacking) or None


def refused(config: Mapping[str, Any]) -> str | None:
    """The reason why a model is not loaded at all; None if it is."""
    image = str(config["vision_cfg"].get("timm_model_name") or "")
    if image.startswith("naflex"):
        return "the number of its image rows differs from image to image (NaFlex); use a fixed size of the same weights"
    return None
