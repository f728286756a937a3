"""Data sets that belong together: ImageNet with its shifted versions, and the embedded world."""

from __future__ import annotations

IMAGENETS = ("imagenet", "imagenetv2", "imagenet_sketch", "imagenet_a", "imagenet_r")
"""ImageNet and the data sets that have its classes."""
WORLD = "world"
"""Name of the embedded world: of its CLIP and of its source of roles."""
WORLD_PREFIX = f"{WORLD}-"
"""Names of the world's data sets begin with this."""
BROAD_WORLD = f"{WORLD_PREFIX}broad"
"""The world's counterpart of ImageNet; names of data sets with the same classes begin with this."""
