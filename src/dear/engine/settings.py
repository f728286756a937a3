"""`TrainSettings`: the public name of the options of a training."""

from __future__ import annotations

from dear.options.parts import Training


class TrainSettings(Training):
    """How to train: `dear.fit(…, train=TrainSettings(epochs=3))`. None means: as the method's recipe says."""
