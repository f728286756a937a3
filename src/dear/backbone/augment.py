"""Training augmentation of the paper. The caller passes the random generator, so all workers make the same view."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as TF

ASPECT = (3 / 4, 4 / 3)
TRIES = 10
AUGMENTATION_VERSION = 1
"""Increased whenever the same image and random generator give a different view: cached views are then recomputed."""


@dataclass(frozen=True)
class TrainTransform:
    """Random crop of at least half the image, mirrored half the time, resized and normalised for the backbone."""

    size: tuple[int, int]
    interpolation: str
    to_input: Callable[[Any], Tensor]
    """Converts an image of the right size to the backbone's input tensor."""
    scale: tuple[float, float] = (0.5, 1.0)

    def __call__(self, image: Any, chance: random.Random | None = None) -> Tensor:
        """Return one view of an image; generators in the same state give the same view."""
        chance = chance or random.Random()
        image = image.convert("RGB")
        top, left, height, width = crop_box(image.height, image.width, self.scale, chance)
        mode = InterpolationMode(self.interpolation)
        view = TF.resized_crop(image, top, left, height, width, list(self.size), mode)
        return self.to_input(TF.hflip(view) if chance.random() < 0.5 else view)


def crop_box(height: int, width: int, scale: tuple[float, float], chance: random.Random) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random crop, sampled as torchvision's RandomResizedCrop does."""
    for _ in range(TRIES):
        area = height * width * chance.uniform(*scale)
        aspect = math.exp(chance.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return chance.randint(0, height - h), chance.randint(0, width - w), h, w
    ratio = width / height  # too long or too tall: take the middle
    w = min(width, round(height * ASPECT[1])) if ratio > ASPECT[1] else width
    h = min(height, round(width / ASPECT[0])) if ratio < ASPECT[0] else height
    return (height - h) // 2, (width - w) // 2, h, w
