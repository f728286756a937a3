"""Precision rules: the towers use the caller's autocast type; everything else is computed in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor

_OUTSIDE = object()
_HALF: ContextVar[object] = ContextVar("dear_half", default=_OUTSIDE)


@contextmanager
def computing(device: torch.device) -> Iterator[None]:
    """Switch the caller's autocast off within this context; the towers switch it on again for their layers.

    Every thread computes with the number of threads that was set, so that all threads give the same bits.
    """
    if _HALF.get() is not _OUTSIDE:  # nested: the outermost call decided
        yield
        return
    torch.get_num_threads()  # makes torch.set_num_threads hold in this thread too: a new thread's products ignore it
    on = torch.is_autocast_enabled(device.type)
    token = _HALF.set(torch.get_autocast_dtype(device.type) if on else None)
    try:
        with torch.autocast(device.type, enabled=False) if on else nullcontext():
            yield
    finally:
        _HALF.reset(token)


def tower_precision(device: torch.device) -> AbstractContextManager[object]:
    """The autocast context for the layers of a tower."""
    half = _HALF.get()
    return torch.autocast(device.type, dtype=half) if isinstance(half, torch.dtype) else nullcontext()


def precision_key() -> object:
    """The autocast type, which cached class features depend on besides tensors."""
    half = _HALF.get()
    return half if isinstance(half, torch.dtype) else None


def wide(x: Tensor) -> Tensor:
    """Convert a tower's features to fp32; fp64 stays fp64."""
    return x if x.dtype == torch.float64 else x.float()
