"""Tip-Adapter-F: Tip-Adapter whose cached keys are trained."""

from __future__ import annotations

from dear.methods.api import About, Recipe, Special
from dear.methods.tip_adapter import TipAdapter


class TipAdapterF(TipAdapter):
    """Tip-Adapter whose cached keys are trained."""

    name = "tip_adapter_f"
    learns_keys = True
    recipe = Recipe(
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
    special = (*TipAdapter.special, Special({"epochs": 100}, data=("eurosat",)))
    about = About(
        citation="Zhang et al., Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification, ECCV 2022",
        year=2022,
        touches="logits, by a cache of images",
        parameters=None,
        trained="512 per image",
        code="gaopengcuhk/Tip-Adapter d0e2d6f",
        licence="none stated",
    )
