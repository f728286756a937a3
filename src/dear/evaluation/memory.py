"""The largest amount of memory that a piece of work took, measured honestly or not at all."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

if sys.platform != "win32":
    import resource

MEGABYTE = 1e6
PROCESS = Path("/proc/self")


def watch_peak(device: str) -> Callable[[], float | None]:
    """Begin to watch; what is returned tells the peak since then in MB, or None if it cannot be told.

    On a GPU it is what tensors took, elsewhere what the whole process took. A process that has been larger before can
    be watched only where the system can forget its former peak.
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_allocated(device) / MEGABYTE
    _give_back()
    try:
        (PROCESS / "clear_refs").write_text("5")  # Linux: the peak is now what there is
    except OSError:
        before = _largest()
        return lambda: now if (now := _largest()) and before and now > before else None
    return _since_reset


def _since_reset() -> float | None:
    with suppress(OSError, ValueError, StopIteration):
        lines = (PROCESS / "status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / MEGABYTE
    return None


def _largest() -> float | None:
    """The peak of the whole life of the process."""
    if sys.platform == "win32":
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEGABYTE


def _give_back() -> None:
    """Return memory that earlier work has freed to the system, so that it does not count as this work's."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
