"""How many classes are encoded at once: all, unless a training step of all would not fit into the memory there is."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

from dear.backbone.clip import FrozenClip
from dear.data.prompts import ClassList

CGROUPS = Path("/sys/fs/cgroup")
MEMORY = Path("/proc/meminfo")
OWN_GROUP = Path("/proc/self/cgroup")
SHARE = 0.5
"""Share of the free memory that the text of a step may take."""
ROWS_OF_A_LAYER = 18
"""Rows of the tower's width that a layer stores for the backward pass: two norms, q, k, v, their mix, two sums, and
twice the MLP's fourfold width, with some reserve."""
LEARNED = 16
"""Words that a method may add to a prompt."""


def class_chunk(clip: FrozenClip, classes: ClassList, free: int | None) -> int | None:
    """Number of classes to encode at once; None if the step of all classes fits into `free` bytes, or if unknown.

    The number is a power of two, so that it does not follow small changes of the free memory.
    """
    count = len(classes.names)
    if free is None or not clip.text.has_layers:
        return None
    budget = SHARE * free
    if count * step_bytes(clip, clip.text.context) <= budget:  # the usual case, without reading the prompts
        return None
    longest = clip.text.tokenize(classes.prompts(), cut=True).ids_CT.shape[1]
    each = step_bytes(clip, min(clip.text.context, longest + LEARNED))
    if count * each <= budget:
        return None
    return int(2 ** max(0, int(budget // each).bit_length() - 1))


def step_bytes(clip: FrozenClip, tokens: int) -> int:
    """Estimate of the memory that a training step needs for one prompt if all text layers are adapted."""
    width = 4 if clip.text.dtype == torch.float32 else 2
    return tokens * clip.text.width * clip.text.depth * ROWS_OF_A_LAYER * width


def free_memory(device: torch.device) -> int | None:
    """Bytes that this process can still allocate on a device, within the limits of its container; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type != "cpu":
        return None
    return min((one for one in (_of_the_system(), *_of_the_groups()) if one is not None), default=None)


def _of_the_system() -> int | None:
    with suppress(OSError, ValueError, IndexError, StopIteration):
        lines = MEMORY.read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    if sys.platform == "win32":
        return None
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _of_the_groups() -> list[int | None]:
    """What each control group of this process, of version 2 or 1, leaves of its limit."""
    found: list[int | None] = []
    with suppress(OSError):
        for line in OWN_GROUP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                base, names = CGROUPS, ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                base = CGROUPS / "memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            below = Path(path.lstrip("/"))
            found += [_left(base / one, *names) for one in (below, *below.parents)]
    return found


def _left(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """The limit of a group minus what it uses; files that the system can drop from memory do not count."""
    with suppress(OSError, ValueError):
        most, used = int((group / limit).read_text()), int((group / usage).read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        dropped = sum(int(line.split()[1]) for line in lines if line.split()[:1] == [reclaimable])
        return max(0, most - used + dropped)
    return None
