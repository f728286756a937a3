"""Where the cells of a grid run: in this process or in several of this machine; `on_ray` runs them on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Protocol

import torch

from dear.engine.loop import Metrics
from dear.engine.workspace import Workspace
from dear.errors import TrainingError, is_typed, option
from dear.evaluation.cell_run import run_cell
from dear.evaluation.cells import Cell
from dear.evaluation.processes import begin_process, run_in_process
from dear.evaluation.results import CellResult
from dear.methods.plugins import added
from dear.options.parts import Bench

OnStep = Callable[[Metrics], None]
Outcome = tuple[int, Callable[[], CellResult]]
"""The place of a cell in the list, and a function that returns its result or raises what it raised."""
Outcomes = Generator[Outcome, None, None]


class Executor(Protocol):
    """Runs cells; a cell that is done is read instead, and what is left can be run by any other executor."""

    @property
    def at_once(self) -> int:
        """Number of cells that run at a time."""

    def run(self, cells: Sequence[Cell], options: Bench) -> Outcomes:
        """Run all cells; each is yielded as it is done. Closing the iterator ends those that still run."""


class InThisProcess:
    """Runs one cell after the other, with what this process has open."""

    at_once = 1

    def __init__(self, workspace: Workspace, on_step: OnStep | None = None) -> None:
        self._workspace, self._on_step = workspace, on_step

    def run(self, cells: Sequence[Cell], options: Bench) -> Outcomes:
        """Run all cells in their order."""
        own = torch.get_num_threads()
        torch.set_num_threads(options.threads or own)
        try:
            for index, cell in enumerate(cells):
                yield index, partial(run_cell, cell, options, self._workspace, self._on_step)
        finally:
            torch.set_num_threads(own)


class InProcesses:
    """Runs several cells at a time, each in a process of this machine."""

    def __init__(self, jobs: int) -> None:
        self.at_once = jobs

    def run(self, cells: Sequence[Cell], options: Bench) -> Outcomes:
        """Run all cells; a process that dies ends the grid, which can be resumed."""
        threads = options.threads or max(1, torch.get_num_threads() // self.at_once)
        pool = ProcessPoolExecutor(
            self.at_once,
            mp_context=get_context("spawn"),
            initializer=begin_process,
            initargs=(threads, os.getpid(), is_typed(), added()),
        )
        try:
            waiting = {pool.submit(run_in_process, cell, options): index for index, cell in enumerate(cells)}
            for done in as_completed(waiting):
                if isinstance(done.exception(), BrokenProcessPool):
                    done.result()
                yield waiting[done], done.result
        except BrokenProcessPool:
            raise TrainingError(
                f"A process of the grid died, perhaps for want of memory: resume with {option(resume=True)}, and fewer "
                f"cells at a time, such as {option(jobs=1)}."
            ) from None
        except BaseException:  # Ctrl-C, or the iterator is closed because of a cell's error
            _end_processes(pool)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _end_processes(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool at once, and no others; the cells that they ran resume from their checkpoints."""
    for process in list(pool._processes.values()):  # `terminate_workers` is public from Python 3.14 on
        process.terminate()
