"""Run the cells of a grid as tasks of Ray, on the nodes of a cluster that share the output folder.

A task is started again if its worker or node dies, from the checkpoint that the dead one wrote; an error of ours is
returned as a value and never tried again. Everything that counts is in the shared folder: if the driver dies, Ray ends
its tasks, and `--resume` runs what is left.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from dear import errors
from dear.cluster.connection import check_room, connected
from dear.cluster.nodes import Expected, check_nodes, here
from dear.engine.workspace import Workspace
from dear.errors import ClusterError, DearError, TrainingError, is_typed, option
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

RETRIES = 3
"""Number of times that a cell is started again because its worker or node died."""
PATIENCE = 20.0
"""Seconds to wait for cancelled tasks to end."""
THREADS = 1
"""Threads of a cell, unless a number is set."""


class Order(NamedTuple):
    """What a task needs besides its cell and the options."""

    grid: str
    """Names the running grid."""
    threads: int
    commands: bool
    """Whether messages are written for the command line."""
    added: tuple[tuple[str, ...], tuple[str, ...]]
    """Files and catalogues of the user."""
    expected: Expected


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
        order = Order(secrets.token_hex(4), self._threads, is_typed(), added(), expected)
        task = ray.remote(
            num_cpus=self._threads,
            num_gpus=self._gpus,
            max_retries=RETRIES,
            retry_exceptions=False,
            max_calls=0,  # a worker keeps its CLIP, also on a GPU
        )(_task())
        shared = ray.put(options)
        waiting = {
            task.options(name=cells[index].slug).remote(cells[index], shared, order): index
            for index in longest_first(cells, options, self._workspace)
        }
        try:
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                yield waiting.pop(done), partial(self._result, done)
            remove_folder(options.out / RUNS / ATTEMPTS)
        finally:
            self._cancel(list(waiting))

    def _result(self, done: Any) -> CellResult:
        """The result of a task, or the error that it returned."""
        raised = self._ray.exceptions
        try:
            kind, text = self._ray.get(done)
        except (raised.WorkerCrashedError, raised.NodeDiedError, raised.OutOfMemoryError) as error:
            raise TrainingError(
                f"A cell was started {RETRIES + 1} times and each time its process died ({type(error).__name__}), "
                f"perhaps for want of memory: resume with {option(resume=True)} and more {option(threads='N')}, so "
                f"that fewer cells share a node."
            ) from None
        except raised.RayError as error:
            first = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            raise ClusterError(f"A cell ended with an error on the cluster: {first.strip()}") from error
        if kind:
            raise error_of(kind, text)
        return CellResult.from_json(text)

    def _cancel(self, tasks: list[Any]) -> None:
        for one in tasks:
            self._ray.cancel(one, force=True)
        if tasks:
            self._ray.wait(tasks, num_returns=len(tasks), timeout=PATIENCE)


def _task() -> Callable[[Cell, Bench, Order], tuple[str, str]]:
    """The task of a cell: the name of an error class or "", and the message or the result as JSON."""

    def run(cell: Cell, options: Bench, order: Order) -> tuple[str, str]:  # local, so Ray sends it as it is
        from dear.cluster.nodes import problem_here

        if (problem := problem_here(order.expected)) is not None:
            return "ClusterError", problem
        from dear.evaluation.on_ray import run_task

        return run_task(cell, options, order)

    return run


def run_task(cell: Cell, options: Bench, order: Order) -> tuple[str, str]:
    """Run a cell on a node."""
    try:
        result = run_attempt(cell, options, order.threads, order.grid, order.commands, order.added)
    except DearError as error:
        return type(error).__name__, str(error)
    return "", result.to_json()


def error_of(kind: str, text: str) -> DearError:
    """The error that a task returned."""
    found = getattr(errors, kind, DearError)
    return found(text) if isinstance(found, type) and issubclass(found, DearError) else DearError(text)
