"""Collect the moments of each head's contributions in one pass over the images, with checkpoints on disk.

Shapes: M heads of the chosen layers (layer by layer), E joint embedding.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors.numpy import load as arrays_from_bytes
from safetensors.numpy import save as arrays_to_bytes

from dear.backbone.clip import FrozenClip
from dear.data.images import ImageList, image_batches
from dear.errors import CorruptArtefactError, RolesError, option
from dear.roles.capture import contributions
from dear.roles.textspan import Moments
from dear.storage.documents import OpenRecord
from dear.storage.files import MEGABYTE, read_regular, sha256, write_atomic

CHECKPOINT = "moments.safetensors"
LARGEST = 65536 * MEGABYTE
BATCH, BLOCKS = 32, 5
"""Images per batch, and the number of blocks that batches are added to in turn."""


class _State(OpenRecord):
    """Metadata of the checkpoint file."""

    key: str
    position: int = Field(ge=0)
    problems: list[str]
    sha256: str = ""
    without_images: str = ""
    """Like `key`, but independent of the images."""
    images: list[str] = Field(default_factory=list)
    """Hash of the name and content of each image."""


@dataclass(frozen=True)
class Collected:
    """Moments of each block of images; the images before `position` have been read, except broken ones."""

    blocks: tuple[Moments, ...]
    position: int
    problems: tuple[str, ...]
    gone: int = 0
    """Number of images that were read and have since been removed."""

    def whole(self) -> Moments:
        """Moments of all blocks together."""
        total = self.blocks[0]
        for block in self.blocks[1:]:
            total = total + block
        return total


def collect_moments(
    clip: FrozenClip,
    images: ImageList,
    *,
    first_layer: int,
    batch: int = BATCH,
    blocks: int = BLOCKS,
    workers: int = 2,
    checkpoint: Path | None = None,
    save_every: float = 60.0,
    least: int = 2,
    progress: Callable[[int], None] = lambda position: None,
) -> Collected:
    """Read every image once. With a `checkpoint` folder, progress is saved regularly and resumed.

    Complete results remain valid if images have been removed since; new or changed images raise an error, and so do
    fewer than `least` readable images.
    """
    identity = _identity(clip, images, first_layer, batch, blocks) if checkpoint else {}
    collected = _read(checkpoint, identity) if checkpoint else None
    if collected is not None and collected.gone:
        return collected
    if collected is None:
        heads = clip.geometry.vision_heads * (clip.geometry.vision_layers - first_layer + 1)
        empty = tuple(Moments.zeros(heads, clip.geometry.embed_dim) for _ in range(blocks))
        collected = Collected(empty, 0, ())
    saved = time.monotonic()
    for group in image_batches(images, clip.preprocess_eval, size=batch, start=collected.position, workers=workers):
        if group.images is not None:
            heads_BLHE = contributions(clip, group.images.to(clip.device)).heads_BLHE[:, first_layer - 1 :]
            updated = list(collected.blocks)
            number = group.start // batch % blocks
            updated[number] = updated[number].update(heads_BLHE.flatten(1, 2).cpu().numpy())
            collected = replace(collected, blocks=tuple(updated))
        collected = replace(collected, position=group.stop, problems=collected.problems + group.problems)
        progress(group.stop)
        if checkpoint and time.monotonic() - saved > save_every:
            _write(checkpoint, identity, collected)
            saved = time.monotonic()
    if checkpoint:
        _write(checkpoint, identity, collected)
    if collected.whole().count < least:
        first = f" The first problem: {collected.problems[0]}" if collected.problems else ""
        raise RolesError(
            f"Only {collected.whole().count} of {len(images)} images can be read, but 2 are needed.{first}"
        )
    return collected


def read_moments(
    folder: Path, clip: FrozenClip, images: ImageList, *, first_layer: int, batch: int = BATCH, blocks: int = BLOCKS
) -> Collected | None:
    """The moments in a checkpoint of these images; None if there is none."""
    return _read(folder, _identity(clip, images, first_layer, batch, blocks))


def write_moments(
    folder: Path,
    collected: Collected,
    clip: FrozenClip,
    images: ImageList,
    *,
    first_layer: int,
    batch: int = BATCH,
    blocks: int = BLOCKS,
) -> None:
    """Write moments of these images as a checkpoint."""
    _write(folder, _identity(clip, images, first_layer, batch, blocks), collected)


def _identity(clip: FrozenClip, images: ImageList, first_layer: int, batch: int, blocks: int) -> dict[str, Any]:
    """Everything that the moments depend on."""
    images = images.remembering()
    facts = [clip.weights_sha256, clip.precision, images.sha256, first_layer, batch, blocks]
    others = [clip.weights_sha256, clip.precision, images.source, first_layer, batch, blocks]
    key, without = (sha256(json.dumps(one).encode()) for one in (facts, others))
    return {"key": key, "without_images": without, "images": images.marks()}


def _write(folder: Path, identity: dict[str, Any], collected: Collected) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    for i, block in enumerate(collected.blocks):
        arrays |= {f"{i}.sum": block.sum_ME, f"{i}.outer": block.outer_MEE, f"{i}.count": np.array(block.count)}
    state = {
        **identity,
        "position": collected.position,
        "problems": collected.problems,
        "sha256": _hash(arrays),
    }
    data = arrays_to_bytes(arrays, metadata={"state": json.dumps(state)})
    write_atomic(folder / CHECKPOINT, data)


def _hash(arrays: dict[str, NDArray[Any]]) -> str:
    parts = [
        f"{name} {arrays[name].dtype} {arrays[name].shape} {sha256(arrays[name].tobytes())}" for name in sorted(arrays)
    ]
    return sha256("\n".join(parts).encode())


def _read(folder: Path, identity: dict[str, Any]) -> Collected | None:
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        data = read_regular(path, most=LARGEST)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        state, arrays = json.loads(header["__metadata__"]["state"]), arrays_from_bytes(data)
        form = _State.model_validate(state)
        if (form.sha256 or _hash(arrays)) != _hash(arrays):
            raise ValueError("its content does not have the hash it was written with")
    except Exception as error:
        raise CorruptArtefactError(f"{path} is damaged: add {option(overwrite=True)} to start over.") from error
    gone = _gone(form, identity) if form.key != identity["key"] else 0
    if form.key != identity["key"] and not gone:
        raise RolesError(
            f"{path} belongs to other images, another backbone or other layers: add {option(overwrite=True)} to start "
            f"over."
        )
    count = len(arrays) // 3
    blocks = (
        Moments(int(arrays[f"{i}.count"]), arrays[f"{i}.sum"].copy(), arrays[f"{i}.outer"].copy()) for i in range(count)
    )
    return Collected(tuple(blocks), form.position, tuple(form.problems), gone)


def _gone(form: _State, identity: dict[str, Any]) -> int:
    """Number of images removed since all were read, if nothing else has changed; otherwise 0."""
    now, before = Counter(identity["images"]), Counter(form.images)
    same = form.without_images == identity["without_images"] and form.position == len(form.images)
    return (before - now).total() if same and now and not now - before else 0
