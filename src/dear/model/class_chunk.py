"""How many classes are encoded at once: all, unless a training step of all would not fit into the memory there is.

A simple bound decides for most lists. Beyond it, what a step stores is measured on a few classes of the list.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten

from dear.backbone.clip import FrozenClip
from dear.backbone.precision import computing
from dear.data.prompts import ClassList
from dear.methods.base import Batch, Method

CGROUPS = Path("/sys/fs/cgroup")
MEMORY = Path("/proc/meminfo")
OWN_GROUP = Path("/proc/self/cgroup")
SHARE = 0.5
"""Share of the free memory that the text of a step may take."""
ROWS_OF_A_LAYER = 18
"""Rows of the tower's width that a layer computes per token: two norms, q, k, v, their mix, two sums, and twice the
MLP's fourfold width, with some reserve. They are stored for the backward pass, or exist for a moment without one."""
LEARNED = 16
"""Words that a method may add to a prompt."""
MEASURED = 64
"""Classes, evenly spread over the list, on which it is measured what a step stores."""
PEAK = 1.5
"""Peak memory of a step by what it stores for the backward pass: gradients of a layer come on top."""


def class_chunk(clip: FrozenClip, classes: ClassList, free: int | None, method: Method | None = None) -> int | None:
    """Number of classes to encode at once; None if the step of all classes fits into `free` bytes, or if unknown.

    The number is a power of two, so that it does not follow small changes of the free memory. Without `method`, it
    follows from a bound: all text layers are trained, and prompts share no rows.
    """
    count = len(classes.names)
    if free is None or not clip.text.has_layers:
        return None
    budget = SHARE * free
    if count * step_bytes(clip, clip.text.context) <= budget:  # the usual case, without reading the prompts
        return None
    each = step_bytes(clip, min(clip.text.context, _longest(clip, classes) + LEARNED))
    if count * each > budget and method is not None and _has_shapes(method):
        each = estimate(clip, classes, method)
    if count * each <= budget:
        return None
    return int(2 ** max(0, int(budget // each).bit_length() - 1))


def estimate(clip: FrozenClip, classes: ClassList, method: Method) -> int:
    """Bytes that a training step needs per class: what a few classes store, and no less than a layer without gradients.

    The latter is what the frozen layers need, which read whole prompts.
    """
    count = len(classes.names)
    some = slice(0, count, -(-count // MEASURED))
    stored = stored_of(clip, classes, method, some) / len(range(*some.indices(count)))
    return max(int(PEAK * stored), layer_bytes(clip, _longest(clip, classes)))


def stored_of(clip: FrozenClip, classes: ClassList, method: Method, at: slice) -> int:
    """Bytes that a training step stores of some classes for its backward pass."""
    with torch.inference_mode(False), computing(clip.device):
        with torch.no_grad():
            frozen = method.classes(clip, classes.part(at))
        leaves = [one for one in tree_flatten(frozen)[0] if isinstance(one, Tensor)]
        batch = Batch(rows=at, size=len(classes.names))
        known = [*clip.parameters(), *method.parameters(), *leaves]
        return stored_bytes(lambda: method.text(clip, frozen, batch), known)


def _has_shapes(method: Method) -> bool:
    """Whether tensors whose shapes depend on the training data exist already."""
    state = method.state_dict()
    return all(state[name].numel() for name in method.sized_by_data if name in state)


def _longest(clip: FrozenClip, classes: ClassList) -> int:
    return int(clip.text.tokenize(classes.prompts(), cut=True).ids_CT.shape[1])


def step_bytes(clip: FrozenClip, tokens: int) -> int:
    """Upper bound of the memory that a training step needs for one prompt, if all text layers are adapted."""
    return layer_bytes(clip, tokens) * clip.text.depth


def layer_bytes(clip: FrozenClip, tokens: int) -> int:
    """Upper bound of the memory that one text layer needs for one prompt, with or without gradients."""
    width = 4 if clip.text.dtype == torch.float32 else 2
    return tokens * clip.text.width * ROWS_OF_A_LAYER * width


def stored_bytes(make: Callable[[], Any], known: Iterable[Tensor]) -> int:
    """Bytes that the graph of what `make` returns stores for its backward pass, without the tensors `known`."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        made = make()  # as long as it exists, no address is used twice
    for one in known:
        sizes.pop(one.untyped_storage().data_ptr(), None)
    del made
    return sum(sizes.values())


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
