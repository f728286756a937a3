"""Several processes, one training: who we are among them, and sums over all. Alone, everything here does nothing."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dear.errors import ConfigError, TrainingError


@dataclass(frozen=True)
class Ranks:
    """This process's number among all."""

    rank: int = 0
    world: int = 1
    device: torch.device | None = None
    """Where tensors that go to the others must be."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.world > 1:
            with _one_sentence():
                dist.all_reduce(tensor)

    def gather(self, text: str) -> list[str]:
        """The texts of all processes, by their numbers."""
        if self.world == 1:
            return [text]
        data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        sizes = torch.zeros(self.world, dtype=torch.int64, device=self.device)
        sizes[self.rank] = len(data)
        self.sum_(sizes)
        padded = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=self.device)
        padded[: len(data)] = data
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        with _one_sentence():
            dist.all_gather(parts, padded)
        return [bytes(part[:size].tolist()).decode() for part, size in zip(parts, sizes.tolist(), strict=True)]

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.world > 1:
            with _one_sentence():
                dist.barrier()


@contextmanager
def _one_sentence() -> Iterator[None]:
    """A process that waits for one that has stopped has nothing to say of its own."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError("Another process of this training has stopped: see what it said.") from error


def join(device: torch.device) -> Ranks:
    """Join the processes that `torchrun` started, or be alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "MASTER_ADDR" not in os.environ:
        return Ranks()
    if not dist.is_available():
        raise ConfigError("This build of PyTorch cannot run several processes: start without torchrun.")
    if not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


def local_device(wanted: str | None) -> str:
    """The device of this process: the one asked for, else a GPU of its own where there is one, else the CPU."""
    if wanted in (None, "cuda") and torch.cuda.is_available():
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return wanted or "cpu"
