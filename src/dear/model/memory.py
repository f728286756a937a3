"""Recognise errors that mean that memory is exhausted, from whichever library they come."""

from __future__ import annotations

import torch

SIGNS = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed", "Overflow when unpacking")
"""Parts of torch's messages on a CPU, where it has no error class for it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a tensor does not fit into memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in str(error) for sign in SIGNS)
