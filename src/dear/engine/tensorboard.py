"""Metrics for TensorBoard, as an extra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dear.engine.loop import Metrics
from dear.errors import MissingExtraError


def tensorboard_writer(folder: Path) -> Callable[[Metrics], None]:
    """What `on_step` may be to have every number of a step shown by `tensorboard --logdir FOLDER`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError('TensorBoard is not installed: pip install "dear-vlm[tensorboard]".') from None
    writer = SummaryWriter(folder)

    def write(metrics: Metrics) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float) and name not in ("step", "steps"):
                writer.add_scalar(name, value, metrics["step"])

    return write
