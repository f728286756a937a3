"""Who decides the precision: the towers. Everything else computes in fp32, whatever autocast the caller is in."""

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
    """Take the caller's autocast over: within this context it is off, and the towers enter it themselves."""
    if _HALF.get() is not _OUTSIDE:  # nested: the outermost call decided
        yield
        return
    on = torch.is_autocast_enabled(device.type)
    token = _HALF.set(torch.get_autocast_dtype(device.type) if on else None)
    try:
        with torch.autocast(device.type, enabled=False) if on else nullcontext():
            yield
    finally:
        _HALF.reset(token)


def tower_precision(device: torch.device) -> AbstractContextManager[object]:
    """The autocast that a tower computes its layers in."""
    half = _HALF.get()
    return torch.autocast(device.type, dtype=half) if isinstance(half, torch.dtype) else nullcontext()


def precision_key() -> object:
    """What kept class features depend on besides tensors."""
    half = _HALF.get()
    return half if isinstance(half, torch.dtype) else None


def wide(x: Tensor) -> Tensor:
    """Features leave a tower in fp32 (or in fp64, if it computes in that)."""
    return x if x.dtype == torch.float64 else x.float()
