"""Measures the peak memory of a piece of work, and returns None where a correct measurement is impossible."""

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
    """Start measuring; the returned function gives the peak since then in MB, or None if it is unknown.

    On a GPU this is the memory of tensors, elsewhere that of the whole process. A process that was larger before can
    be measured only where the system can reset its former peak.
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
    """The peak since the process started."""
    if sys.platform == "win32":
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEGABYTE


def _give_back() -> None:
    """Return freed memory to the system, so that memory of earlier work does not count."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
