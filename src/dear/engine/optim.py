"""The learning rate: constant and small in the first epoch, then a cosine over all epochs, one value an epoch."""

from __future__ import annotations

import math


def learning_rates(epochs: int, *, lr: float, warmup_epochs: int = 1, warmup_lr: float = 1e-5) -> list[float]:
    """Return the rate of every epoch."""
    cosine = [lr * (1 + math.cos(math.pi * t / epochs)) / 2 for t in range(max(0, epochs - warmup_epochs))]
    return [warmup_lr] * min(warmup_epochs, epochs) + cosine
