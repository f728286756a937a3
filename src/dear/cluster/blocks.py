"""Work on blocks of images with Ray Data: actors that load a model once, and do one block after another.

A block whose worker or node dies is done again by another one. An error of ours is returned as a value and raised here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from dear import errors
from dear.cluster.connection import check_room
from dear.cluster.nodes import Expected, check_nodes, here, last_line, problem_here
from dear.errors import ClusterError, DearError

Block = Mapping[str, Any]
"""What to do, or what was done, as plain values for JSON."""
Maker = Callable[[Block], Callable[[Block], Block]]
"""Given an order, returns the function that does a block; it is called once per actor."""


class Cluster(NamedTuple):
    """The connected package `ray`, and the size of a worker."""

    ray: Any
    threads: int = 1
    gpus: float = 0.0

    @property
    def device(self) -> str:
        """What a worker computes on."""
        return "cuda" if self.gpus else "cpu"


def each_block(cluster: Cluster, make: Maker, order: Block, blocks: Sequence[Block], out: Path) -> Iterator[Block]:
    """What `make(order)` returns for every block, as soon as it is done, in any order.

    Before the first block, every node is asked for its versions and whether it sees the output folder.

    Args:
        cluster: where it is done.
        make: a function or class that the nodes can import.
        order: what all blocks have in common.
        blocks: what to do.
        out: the output folder, locked by this process; all paths in orders and blocks are absolute.
    """
    ray, threads, gpus = cluster
    if not blocks:
        return
    size = min(len(blocks), check_room(ray.nodes(), threads, gpus))
    expected = here(out, current=out)
    check_nodes(ray, expected, threads, gpus)
    from ray.data import ActorPoolStrategy, DataContext, from_items

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    rows = [{"block": json.dumps(block)} for block in blocks]
    results = from_items(rows, override_num_blocks=len(rows)).map(
        cast(Any, _Actor),
        fn_constructor_args=(make, json.dumps(order), expected),
        compute=ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
        num_cpus=threads,
        num_gpus=gpus or None,
    )
    try:
        for row in results.iter_rows():
            found = json.loads(row["result"])
            if "error" in found:
                raise _error(found["error"], found["text"])
            yield found
    except ray.exceptions.RayError as error:
        raise ClusterError(f"A block ended with an error on the cluster: {last_line(error)}") from error


class _Actor:
    """Makes its worker when the first block arrives, so that an error of ours is a result like others.

    A node that joined the cluster later is checked then.
    """

    def __init__(self, make: Maker, order: str, expected: Expected) -> None:
        self._make, self._order, self._expected = make, order, expected
        self._work: Callable[[Block], Block] | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Do one block."""
        try:
            if self._work is None:
                if (problem := problem_here(self._expected)) is not None:
                    raise ClusterError(problem)
                self._work = self._make(json.loads(self._order))
            found = self._work(json.loads(row["block"]))
        except DearError as error:
            found = {"error": type(error).__name__, "text": str(error)}
        return {"result": json.dumps(found)}


def _error(kind: str, text: str) -> DearError:
    found = getattr(errors, kind, DearError)
    return found(text) if isinstance(found, type) and issubclass(found, DearError) else DearError(text)
