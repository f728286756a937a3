"""How a model knows that what it keeps has gone stale, and how parts of a class list become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class Stamps:
    """Large tensors (CLIP's), known by address and version. An alias of each is held, so that its memory, and with it
    its address, cannot be given to another tensor.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._kept = [(tensor.detach(), _version(tensor), tensor.dtype) for tensor in tensors]

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the same tensors, unchanged."""
        return len(self._kept) == len(tensors) and all(
            alias.data_ptr() == tensor.data_ptr() and version == _version(tensor) and dtype == tensor.dtype
            for (alias, version, dtype), tensor in zip(self._kept, tensors, strict=True)
        )


class Copies:
    """Small tensors (a method's), known by value: fused optimisers, `.data` and `.to` change no version."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._kept = [tensor.detach().clone() for tensor in tensors]

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these have the same values, types and places."""
        return len(self._kept) == len(tensors) and all(
            kept.dtype == tensor.dtype and kept.device == tensor.device and torch.equal(kept, tensor)
            for kept, tensor in zip(self._kept, tensors, strict=True)
        )


def concatenated(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Parts of a class list as one: any nest of tensors, classes first."""
    if len(parts) == 1:
        return parts[0]
    flat = [tree_flatten(part) for part in parts]
    for (leaves, _), size in zip(flat, sizes, strict=True):
        if any(not isinstance(leaf, Tensor) or not leaf.ndim or leaf.shape[0] != size for leaf in leaves):
            raise TypeError("text() must give tensors with the classes first, or set needs.independent to False.")
    joined = [torch.cat(leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)]
    return tree_unflatten(joined, flat[0][1])


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
