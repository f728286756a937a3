"""Encode images for a search index on the nodes of a Ray cluster, which share the folder of the index.

An actor loads the model once. For each block it decodes, encodes and writes one segment to a file of its own; the
process that updates the index lists it there. So a worker that dies, or comes back late, changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dear.cluster.blocks import Block, Cluster, each_block
from dear.errors import ClusterError, ConfigError, option
from dear.retrieval.encoder import Encoder, encoder_of
from dear.retrieval.index import Index, Manifest, Writer
from dear.retrieval.segments import Stamp, columns_of
from dear.retrieval.update import Elsewhere, Made, Todo, confirmed, encoded_batches
from dear.storage.columns import HEADER, checksum, header_checksum, write_segment

PARTS = ".parts"
"""Folder in the index for segments that are not listed yet."""


def segments_on(cluster: Cluster, *, batch_size: int, workers: int, allow_pickled: bool = False) -> Elsewhere:
    """A function that encodes blocks on the cluster."""

    def encode(writer: Writer, blocks: Sequence[Todo]) -> Iterator[Made]:
        if not writer.manifest.made_by:
            raise ConfigError(
                f"A model in memory cannot be sent to a cluster: give its folder, {option(run='RUN')}, or a CLIP."
            )
        parts = writer.out.resolve() / PARTS
        parts.mkdir(exist_ok=True)
        order = {
            "manifest": writer.manifest.model_copy(update={"segments": []}).model_dump(mode="json"),
            "out": str(writer.out.resolve()),
            "batch_size": batch_size,
            "workers": workers,
            "threads": cluster.threads,
            "device": cluster.device,
            "allow_pickled": allow_pickled,
        }
        wanted = [{**one._asdict(), "stamps": [_listed(stamp) for stamp in one.stamps]} for one in blocks]
        try:
            for found in each_block(cluster, SegmentWorker, order, wanted, writer.out):
                yield Made(**{**found, "file": parts / found["file"]})
        finally:
            for left in parts.glob("*"):
                with suppress(OSError):
                    left.unlink()
            with suppress(OSError):
                parts.rmdir()

    return encode


def _listed(stamp: Stamp) -> list[Any]:
    return [stamp.path.encode("utf-8", "surrogateescape").hex(), stamp.size, stamp.mtime_ns, stamp.content.hex()]


class SegmentWorker:
    """Makes segments on a node."""

    def __init__(self, order: Block) -> None:
        torch.set_num_threads(order["threads"])
        self.out = Path(order["out"])
        if not (self.out / PARTS).is_dir():
            raise ClusterError(f"A node does not see the folder {self.out}: choose one that all nodes share.")
        self.manifest = Manifest.model_validate(order["manifest"])
        self.batch_size, self.workers = order["batch_size"], order["workers"]
        self.encoder = self._encoder(order["device"], order["allow_pickled"])

    def _encoder(self, device: str, allow_pickled: bool) -> Encoder:
        encoder = encoder_of(Index(self.out, self.manifest, ()), device=device, allow_pickled=allow_pickled)
        if (encoder.mark, encoder.kinds) != (self.manifest.model_sha256, tuple(self.manifest.kinds)):
            raise ClusterError("A node has other weights or another adapter of the same name: copy them to all nodes.")
        return encoder

    def __call__(self, block: Block) -> Block:
        """Encode a block and write its segment."""
        root = Path(self.manifest.folder)
        stamps = [
            Stamp(bytes.fromhex(path).decode("utf-8", "surrogateescape"), size, changed, bytes.fromhex(content))
            for path, size, changed, content in block["stamps"]
        ]
        made: list[Stamp] = []
        features: list[torch.Tensor] = []
        problems: list[str] = []
        for part in encoded_batches(self.encoder, root, stamps, batch_size=self.batch_size, workers=self.workers):
            problems += part.problems
            if part.features is not None:
                made += [confirmed(root, stamp) for stamp in part.stamps]
                features.append(part.features)
        readable = {stamp.path for stamp in made}
        found = {
            "number": block["number"],
            "file": f"{block['number']}-{secrets.token_hex(8)}.safetensors",
            "rows": len(made),
            "crc32": {},
            "unreadable": [stamp.path for stamp in stamps if stamp.path not in readable],
            "problems": problems,
        }
        if made or block["dead"]:
            shape = (0, len(self.encoder.kinds), self.manifest.embed)
            content = columns_of(torch.cat(features) if features else torch.zeros(shape), made, block["dead"])
            path = self.out / PARTS / str(found["file"])
            write_segment(path, content)
            sums = {name: checksum(column) for name, column in content.items()}
            found["crc32"] = {HEADER: header_checksum(path), **sums}
        return found
