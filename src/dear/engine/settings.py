"""`TrainSettings`: the public name of the options of a training."""

from __future__ import annotations

from dear.options.parts import Training as TrainSettings

__all__ = ["TrainSettings"]
