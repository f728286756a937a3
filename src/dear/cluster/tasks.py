"""Tasks of Ray: what each one knows about its run, how it begins on a node, and how it ends.

A task is started again if its worker or node dies. An error of ours is returned as a value and never tried again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from dear import errors
from dear.cluster.connection import check_room, has_room
from dear.cluster.nodes import Expected, last_line
from dear.errors import ClusterError, DearError, TrainingError, is_typed, option

RETRIES = 3
"""Number of times that a task is started again because its worker or node died."""
PATIENCE = 20.0
"""Seconds to wait for cancelled tasks to end."""
LOOK, LOOKS = 60.0, 10
"""Seconds between two looks at the nodes, and looks at which no node has room, after which none is waited for."""
THREADS = 1
"""Threads of a task, unless a number is set."""


Added = tuple[tuple[str, ...], tuple[str, ...]]
"""Files and catalogues of the user."""


NO_MEMORY = "The node has not enough memory: more threads per task leave room for fewer of them there."


def first_done(ray: Any, tasks: Sequence[Any], cpus: float, gpus: float) -> Any:
    """Wait for one of some tasks; raises `ClusterError` if the nodes with room for them have left for good."""
    missed = 0
    while True:
        done, _ = ray.wait(list(tasks), num_returns=1, timeout=LOOK)
        if done:
            return done[0]
        nodes = ray.nodes()
        missed = 0 if any(has_room(node, cpus, gpus) for node in nodes) else missed + 1
        if missed == LOOKS:
            check_room(nodes, cpus, gpus)


class Order(NamedTuple):
    """What a task knows about its run."""

    name: str
    """Names the run."""
    threads: int
    commands: bool
    """Whether messages are written for the command line."""
    added: Added
    expected: Expected


def make_order(threads: int, added: Added, expected: Expected) -> Order:
    """The order of a new run of this process."""
    return Order(secrets.token_hex(4), threads, is_typed(), added, expected)


def as_task(ray: Any, target: str, threads: int, gpus: float) -> Any:
    """A function `MODULE:NAME` as a task; called with an order and its other arguments, it returns what `result` reads.

    The function returns text, numbers and lists of them. A node that cannot be used is not asked to import it.
    """

    def run(order: Order, *arguments: Any) -> tuple[str, Any]:  # local, so Ray sends it as it is
        from importlib import import_module

        import torch

        from dear.cluster.nodes import problem_here
        from dear.errors import DearError

        if (problem := problem_here(order.expected)) is not None:
            return "ClusterError", problem
        module, name = target.split(":")
        try:
            return "", getattr(import_module(module), name)(order, *arguments)
        except DearError as error:
            return type(error).__name__, str(error)
        except (MemoryError, torch.OutOfMemoryError):
            return "TrainingError", NO_MEMORY

    return ray.remote(
        num_cpus=threads,
        num_gpus=gpus,
        max_retries=RETRIES,
        retry_exceptions=False,
        max_calls=0,  # a worker keeps its CLIP, also on a GPU
    )(run)


def result(ray: Any, done: Any, noun: str) -> Any:
    """What a finished task returned; raises the error that it returned, or one that says how it died."""
    raised = ray.exceptions
    try:
        kind, found = ray.get(done)
    except (raised.WorkerCrashedError, raised.NodeDiedError, raised.OutOfMemoryError) as error:
        raise TrainingError(
            f"A {noun} was started {RETRIES + 1} times and each time its process died ({type(error).__name__}), "
            f"perhaps for want of memory: resume with {option(resume=True)} and more {option(threads='N')}, so "
            f"that fewer {noun}s share a node."
        ) from None
    except raised.RayError as error:
        raise ClusterError(f"A {noun} ended with an error on the cluster: {last_line(error)}") from error
    if kind:
        raise error_of(kind, found)
    return found


def cancel(ray: Any, tasks: Sequence[Any]) -> None:
    """End tasks that wait or run."""
    for one in tasks:
        ray.cancel(one, force=True)
    if tasks:
        ray.wait(list(tasks), num_returns=len(tasks), timeout=PATIENCE)


def error_of(kind: str, text: str) -> DearError:
    """The error that a task returned."""
    found = getattr(errors, kind, None)
    return found(text) if isinstance(found, type) and issubclass(found, DearError) else DearError(text)
