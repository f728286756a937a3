"""Helpers of the class feature cache: snapshots that show whether tensors changed, and concatenation of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class IdentitySnapshot:
    """Snapshot of large tensors (CLIP's weights) by address and version.

    It refers to each tensor's memory, so that the address cannot be used again by another tensor.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._stored = [(tensor.detach(), _version(tensor), tensor.dtype) for tensor in tensors]

    def matches(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the same tensors, without any change."""
        return len(self._stored) == len(tensors) and all(
            alias.data_ptr() == tensor.data_ptr() and version == _version(tensor) and dtype == tensor.dtype
            for (alias, version, dtype), tensor in zip(self._stored, tensors, strict=True)
        )


class ValueSnapshot:
    """Snapshot of small tensors (a method's) by value: fused optimisers, `.data` and `.to` do not change a version."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._stored = [tensor.detach().clone() for tensor in tensors]

    def matches(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these tensors have the same values, types and devices."""
        return len(self._stored) == len(tensors) and all(
            stored.dtype == tensor.dtype and stored.device == tensor.device and torch.equal(stored, tensor)
            for stored, tensor in zip(self._stored, tensors, strict=True)
        )


def concatenated(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Concatenate the parts of a class list: equal nests of tensors whose first dimension is the class."""
    if len(parts) == 1:
        return parts[0]
    flat = [tree_flatten(part) for part in parts]
    for (leaves, _), size in zip(flat, sizes, strict=True):
        if any(not isinstance(leaf, Tensor) or not leaf.ndim or leaf.shape[0] != size for leaf in leaves):
            raise TypeError(
                "text() must return tensors whose first dimension is the class: change it, or set "
                "needs.independent to False."
            )
    joined = [torch.cat(leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)]
    return tree_unflatten(joined, flat[0][1])


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
