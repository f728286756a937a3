"""Several processes, one training: who we are among them, and sums over all. Alone, everything here does nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dear.errors import ConfigError


@dataclass(frozen=True)
class Ranks:
    """This process's number among all."""

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.world > 1:
            dist.all_reduce(tensor)

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.world > 1:
            dist.barrier()


def join(device: torch.device) -> Ranks:
    """Join the processes that `torchrun` started, or be alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Ranks()
    if not dist.is_available():
        raise ConfigError("This build of PyTorch cannot run several processes: start without torchrun.")
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(dist.get_rank(), dist.get_world_size())


def local_device(wanted: str | None) -> str:
    """The device of this process: the one asked for, else a GPU of its own where there is one, else the CPU."""
    if wanted is not None:
        return wanted
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
