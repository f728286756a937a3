"""Collect the moments of heads on the nodes of a Ray cluster, which share the output folder.

The images are divided into parts that depend on their number only. Each part becomes a checkpoint of its own, and the
parts are added in a fixed tree, so the result does not depend on the number of workers or on who died.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.backbone.names import lasting_name
from dear.cluster.blocks import Block, Cluster, each_block
from dear.data.images import ImageList
from dear.errors import ClusterError
from dear.progress.stages import stage
from dear.roles.moments import BATCH, BLOCKS, CHECKPOINT, Collected, collect_moments, read_moments, write_moments
from dear.roles.sources import images_from
from dear.roles.textspan import Moments

PARTS = "moments-parts"
"""Folder for the checkpoints of parts, which is removed when they are added."""
MOST_PARTS, ROUND = 16, BATCH * BLOCKS
"""Largest number of parts, and what their sizes are multiples of, so that batches are those of a single process."""
LEAST = 3 * ROUND
"""Least number of images of a part: a part of ViT-B/16 has 500 MB of moments."""


class ImageSource(NamedTuple):
    """How a node opens the same images."""

    images: str
    most: int | None
    root: str | None


def part_size(images: int) -> int:
    """Images of a part; it depends on the number of images only."""
    return max(LEAST, ROUND * -(-images // (MOST_PARTS * ROUND)))


def collect_on(
    cluster: Cluster,
    clip: FrozenClip,
    images: ImageList,
    source: ImageSource,
    *,
    first_layer: int,
    out: Path,
) -> None:
    """Collect the moments of all images and write them as the checkpoint of a discovery in `out`, if it is not there.

    Parts that an earlier call left are not done again.
    """
    if (out / CHECKPOINT).exists():
        collected = read_moments(out, clip, images, first_layer=first_layer)
        if collected is not None and (collected.gone or collected.position == len(images)):
            return
    size, folder = part_size(len(images)), out.resolve() / PARTS
    folder.mkdir(exist_ok=True)
    starts = range(0, len(images), size)
    parts = {start: images.chosen(range(start, min(start + size, len(images)))) for start in starts}
    left = [start for start in starts if not (folder / str(start) / CHECKPOINT).exists()]
    order = {
        "clip": lasting_name(clip.name),
        "pretrained": clip.pretrained,
        "precision": clip.precision,
        "seed": clip.seed,
        "weights": clip.weights_sha256,
        "source": source._asdict(),
        "first_layer": first_layer,
        "folder": str(folder),
        "threads": cluster.threads,
        "device": cluster.device,
    }
    blocks = [{"start": start, "stop": start + len(parts[start])} for start in left]
    with stage("reading images", len(images), done=len(images) - sum(len(parts[start]) for start in left)) as advance:
        done = len(images) - sum(len(parts[start]) for start in left)
        for found in each_block(cluster, MomentsWorker, order, blocks, out):
            (folder / found["folder"]).replace(folder / str(found["start"]))
            done += len(parts[found["start"]])
            advance(done)

    def read(start: int) -> Collected:
        found = read_moments(folder / str(start), clip, parts[start], first_layer=first_layer)
        if found is None or found.gone or found.position < len(parts[start]):
            raise ClusterError(f"A part of the moments in {folder} is missing: repeat the command.")
        return found

    write_moments(out, added(list(starts), read), clip, images, first_layer=first_layer)
    shutil.rmtree(folder, ignore_errors=True)


def added(starts: list[int], read: Callable[[int], Collected]) -> Collected:
    """The sum of parts as a tree: both halves, then their sum; at most one part per level is in memory."""
    if len(starts) == 1:
        return read(starts[0])
    half = (len(starts) + 1) // 2
    first, second = added(starts[:half], read), added(starts[half:], read)
    blocks: tuple[Moments, ...] = tuple(a + b for a, b in zip(first.blocks, second.blocks, strict=True))
    return Collected(blocks, first.position + second.position, first.problems + second.problems)


class MomentsWorker:
    """Collects the moments of parts on a node."""

    def __init__(self, order: Block) -> None:
        torch.set_num_threads(order["threads"])
        self.folder, self.first = Path(order["folder"]), order["first_layer"]
        if not self.folder.is_dir():
            raise ClusterError(f"A node does not see the folder {self.folder}: choose one that all nodes share.")
        source = ImageSource(**order["source"])
        self.images = images_from(source.images, source.most, Path(source.root) if source.root else None)
        self.clip = load_clip(
            order["clip"],
            order["pretrained"],
            order["device"],
            precision=order["precision"],
            seed=order["seed"] or 0,
        )
        if self.clip.weights_sha256 != order["weights"]:
            raise ClusterError(f"A node has other weights of {order['clip']}: copy them to all nodes.")

    def __call__(self, block: Block) -> Block:
        """Collect the moments of one part in a folder of its own."""
        if block["stop"] > len(self.images):
            raise ClusterError("A node sees fewer images than this machine: put them on a disk that all nodes share.")
        name = f"{block['start']}-{secrets.token_hex(8)}"
        (self.folder / name).mkdir()
        part = self.images.chosen(range(block["start"], block["stop"]))
        collect_moments(self.clip, part, first_layer=self.first, checkpoint=self.folder / name, least=0)
        return {"start": block["start"], "folder": name}
