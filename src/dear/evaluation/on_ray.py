"""Run the cells of a grid as tasks of Ray, on the nodes of a cluster that share the output folder.

A task that is started again continues from the checkpoint that the dead one wrote. Everything that counts is in the
shared folder: if the driver dies, Ray ends its tasks, and `--resume` runs what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from dear.cluster.connection import check_room, connected
from dear.cluster.nodes import check_nodes, here
from dear.cluster.tasks import THREADS, Order, as_task, cancel, first_done, make_order, result
from dear.engine.workspace import Workspace
from dear.evaluation.attempts import ATTEMPTS
from dear.evaluation.cell_run import RUNS
from dear.evaluation.cells import Cell
from dear.evaluation.eta import longest_first
from dear.evaluation.executors import Outcomes
from dear.evaluation.processes import run_attempt
from dear.evaluation.results import CellResult
from dear.methods.plugins import added
from dear.options.parts import Bench
from dear.storage.locks import remove_folder


@contextmanager
def open_ray(options: Bench, workspace: Workspace) -> Iterator[OnRay]:
    """Connect to the cluster that the options name, and see that it has room for a cell."""
    with connected(str(options.on)) as ray:
        threads, gpus = options.threads or THREADS, options.gpus or 0.0
        room = check_room(ray.nodes(), threads, gpus)
        yield OnRay(ray, threads, gpus, room, workspace)


class OnRay:
    """Runs as many cells at a time as the cluster has room for, the longest first."""

    def __init__(self, ray: Any, threads: int, gpus: float, room: int, workspace: Workspace) -> None:
        self._ray, self._threads, self._gpus, self._workspace = ray, threads, gpus, workspace
        self.at_once = room

    def run(self, cells: Sequence[Cell], options: Bench) -> Outcomes:
        """Run all cells; if the iterator is closed, by Ctrl-C for example, those that run are cancelled."""
        ray, expected = self._ray, here(options.out)
        check_nodes(ray, expected, self._threads, self._gpus)
        if options.device is None and not self._gpus:
            options = options.model_copy(update={"device": "cpu"})
        order = make_order(self._threads, added(), expected)
        task = as_task(ray, "dear.evaluation.on_ray:run_task", self._threads, self._gpus)
        shared = ray.put(options)
        waiting = {
            task.options(name=cells[index].slug).remote(order, cells[index], shared): index
            for index in longest_first(cells, options, self._workspace)
        }
        try:
            while waiting:
                done = first_done(ray, list(waiting), self._threads, self._gpus)
                yield waiting.pop(done), partial(self._result, done)
            remove_folder(options.out / RUNS / ATTEMPTS)
        finally:
            cancel(ray, list(waiting))

    def _result(self, done: Any) -> CellResult:
        return CellResult.from_json(result(self._ray, done, "cell"))


def run_task(order: Order, cell: Cell, options: Bench) -> str:
    """Run a cell on a node, and return its result as JSON."""
    return run_attempt(cell, options, order).to_json()
