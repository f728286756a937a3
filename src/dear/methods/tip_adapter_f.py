"""Tip-Adapter-F: Tip-Adapter whose cached keys are trained."""

from __future__ import annotations

from typing import ClassVar

from dear.methods.about import About
from dear.methods.recipe import Recipe, Special
from dear.methods.tip_adapter import TipAdapter


class TipAdapterF(TipAdapter):
    """Tip-Adapter whose cached keys are trained."""

    name: ClassVar[str] = "tip_adapter_f"
    learns_keys: ClassVar[bool] = True
    recipe: ClassVar[Recipe] = Recipe(
        optimiser="adamw",
        lr=1e-3,
        eps=1e-4,
        decay=0.01,
        batch_size=256,
        epochs=20,
        warmup_epochs=0,
        schedule="step",
        crop=(0.5, 1.0),
    )
    special: ClassVar[tuple[Special, ...]] = (*TipAdapter.special, Special({"epochs": 100}, data=("eurosat",)))
    about: ClassVar[About] = About(
        citation="Zhang et al., Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification, ECCV 2022",
        year=2022,
        touches="logits, by a cache of images",
        parameters=None,
        trained="512 per image",
        code="gaopengcuhk/Tip-Adapter d0e2d6f",
        licence="none stated",
    )
