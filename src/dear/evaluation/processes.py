"""How a process of a grid begins, and that it ends with the one that started it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from dear.cluster.tasks import Added, Order
from dear.engine.workspace import Workspace
from dear.errors import Terminated, typed
from dear.evaluation.attempts import attempt
from dear.evaluation.cell_run import run_cell
from dear.evaluation.cells import Cell
from dear.evaluation.results import CellResult
from dear.methods.plugins import add_plugins
from dear.options.parts import Bench

WATCH = 0.5
"""Seconds between looks at whether the parent lives."""


_WORKSPACE = Workspace()
"""What this process has open, for one grid."""
_RUN = ""
"""The run that a process of a cluster works for now."""


def begin_process(threads: int, parent: int, commands: bool = False, added: Added = ((), ())) -> None:
    """Compute with this number of threads, leave Ctrl-C to the parent, end soon after it, and know what it added."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(threads)
    typed(commands).__enter__()  # until the end: messages are worded as those of the parent
    add_plugins(*added)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the `with` block as Ctrl-C does, so that it can end its processes first.

    Otherwise this process would die at once, and Python would warn about semaphores that the others leave behind.
    Signals that someone else handles are left alone, as are all of them outside the main thread.
    """

    def stop(number: int, _: object) -> None:
        raise Terminated(number)

    main = threading.current_thread() is threading.main_thread()
    wanted = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")] if main else []
    caught = [one for one in wanted if one is not None and signal.getsignal(one) == signal.SIG_DFL]
    for one in caught:
        signal.signal(one, stop)
    try:
        yield
    finally:
        for one in caught:
            signal.signal(one, signal.SIG_DFL)


def run_in_process(cell: Cell, options: Bench) -> CellResult:
    """Run a cell with what this process has open."""
    return run_cell(cell, options, _WORKSPACE)


def run_attempt(cell: Cell, options: Bench, order: Order) -> CellResult:
    """Run a cell on a node of a cluster, in a folder of its own; the next cells of a grid use what is open."""
    with typed(order.commands):
        return run_cell(cell, options, workspace_for(order), place=partial(attempt, grid=order.name))


def workspace_for(order: Order) -> Workspace:
    """What this process of a cluster has open for a run; with the first task of another run it begins again."""
    global _WORKSPACE, _RUN
    if order.name != _RUN:
        _WORKSPACE, _RUN = Workspace(), order.name
        torch.set_num_threads(order.threads)
        add_plugins(*order.added)
    return _WORKSPACE


def _end_with(parent: int) -> None:
    """End this process soon after the one that started it, whatever ended that."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)
