"""What a person can say about a training, apart from the method's own config."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dear.config import Settings

_OF_THE_MACHINE = {"micro_batch", "class_chunk", "precision"}


class TrainSettings(Settings):
    """Changes to the method's recipe (None: as the recipe says), and how the machine computes it."""

    epochs: int | None = Field(default=None, ge=1)
    """Number of epochs."""
    batch_size: int | None = Field(default=None, ge=1)
    """Images per update, over all processes."""
    lr: float | None = Field(default=None, gt=0)
    """Learning rate."""
    decay: float | None = Field(default=None, ge=0)
    """Weight decay."""
    warmup_epochs: int | None = Field(default=None, ge=0)
    """Epochs at a constant, small rate."""
    micro_batch: int | None = Field(default=None, ge=1)
    """Maximum images per forward pass; gradients add up to the batch's."""
    class_chunk: int | None = Field(default=None, ge=1)
    """Maximum classes whose features are computed at once, to save memory."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of the activations. "auto": bf16 on a GPU that has it, fp16 on others, fp32 on a CPU."""

    def changes(self) -> dict[str, Any]:
        """What differs from the recipe; epochs that are told take the place of steps per shot."""
        told = self.model_dump(exclude=_OF_THE_MACHINE)
        found = {name: value for name, value in told.items() if value is not None}
        return {**found, "steps_per_shot": None} if "epochs" in found else found

    def machine(self) -> dict[str, Any]:
        """How it is computed."""
        return self.model_dump(include=_OF_THE_MACHINE)
