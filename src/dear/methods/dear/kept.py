"""What a model keeps between calls, each with everything it depends on, so that it is known when it has gone stale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dear.roles.rolemap import RoleMap


@dataclass(frozen=True)
class KeptFeatures:
    """Class features and everything they depend on."""

    tokens_PD: Tensor
    autocast: bool
    features_CE: Tensor


@dataclass(frozen=True)
class KeptMasks:
    """Masks and everything they depend on; a role map never changes."""

    roles: RoleMap
    originals: int
    device: torch.device
    masks: list[Tensor]


def same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal in value, type and place."""
    return first.device == second.device and first.dtype == second.dtype and torch.equal(first, second)
