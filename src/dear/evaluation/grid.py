"""A grid of cells, one after the other or several at once, resumable: what is done is never done again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path

import torch

from dear.engine.loop import Metrics
from dear.engine.workspace import Workspace
from dear.errors import REFUSALS, TrainingError, is_typed, option
from dear.evaluation.cell_run import CELLS, RUNS, run_cell
from dear.evaluation.cells import Cell
from dear.evaluation.eta import RemainingTime
from dear.evaluation.grid_checks import check_data, check_methods
from dear.evaluation.processes import begin_process, ended_by_signals, run_in_process
from dear.evaluation.results import CellResult
from dear.evaluation.tables import to_csv, to_markdown
from dear.methods.plugins import added
from dear.options.parts import Bench
from dear.progress.stages import stage
from dear.storage.files import write_atomic
from dear.storage.locks import check_ours, locked, remove_leftovers, remove_ours

OLD = ".old"
OURS = ("table.csv", "table.md", CELLS, RUNS)


def run_grid(
    cells: Sequence[Cell],
    options: Bench,
    *,
    workspace: Workspace | None = None,
    on_cell: Callable[[int, CellResult], None] | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    refused: dict[Cell, str] | None = None,
    on_checked: Callable[[int], None] | None = None,
) -> list[CellResult]:
    """Run the cells that are not done yet; tables are written after every cell.

    What cannot work, a missing data set or an impossible choice, is refused before anything is written or trained.
    With `refused`, a cell that its method refuses does not end the grid: its sentence is put there instead.
    `on_checked` is called with the number of cells to run, after these checks and before the first cell.
    """
    workspace = workspace or Workspace()
    check_ours(options.out, "grid", resume=options.resume, overwrite=options.overwrite)
    check_data(cells, options, workspace)
    cells = check_methods(cells, options, workspace, refused)
    with locked(options.out, "grid"):
        check_ours(options.out, "grid", resume=options.resume, overwrite=options.overwrite)  # one may just have ended
        _prepare(options.out, overwrite=options.overwrite)
        if on_checked:
            on_checked(len(cells))
        found = _run_and_write(cells, options, workspace, on_cell, on_step, refused)
        shutil.rmtree(options.out / OLD, ignore_errors=True)
    return found


def _run_and_write(
    cells: Sequence[Cell],
    options: Bench,
    workspace: Workspace,
    on_cell: Callable[[int, CellResult], None] | None,
    on_step: Callable[[Metrics], None] | None,
    refused: dict[Cell, str] | None,
) -> list[CellResult]:
    """Run the cells in a folder that is locked, writing tables after each."""
    results: dict[int, CellResult] = {}
    pace, began = RemainingTime((cell.method for cell in cells), options.jobs), time.time()

    def keep(index: int, result: CellResult) -> None:
        results[index] = result
        new = _is_newer(options.out / CELLS / f"{cells[index].slug}.json", began)
        pace.add(cells[index].method, result.seconds + (result.encoding_seconds or 0.0) if new else None)
        advance(len(results), left=pace.left())
        ordered = [results[i] for i in sorted(results)]
        write_atomic(options.out / "table.csv", to_csv(ordered).encode())
        write_atomic(options.out / "table.md", to_markdown(ordered).encode())
        if on_cell:
            on_cell(len(results), result)

    with stage("cells", len(cells), outer=True) as advance:
        for index, run in _run_all(cells, options, workspace, on_step):
            try:
                result = run()
            except REFUSALS as error:
                if refused is None:
                    raise
                refused[cells[index]] = str(error)
                pace.add(cells[index].method, None)
            else:
                keep(index, result)
    return [results[i] for i in sorted(results)]


def _is_newer(path: Path, than: float) -> bool:
    """Whether a file was written since then; a file system may count in whole seconds."""
    return path.is_file() and path.stat().st_mtime >= than - 1


def _run_all(
    cells: Sequence[Cell], options: Bench, workspace: Workspace, on_step: Callable[[Metrics], None] | None
) -> Iterator[tuple[int, Callable[[], CellResult]]]:
    """What gives each cell's result, or raises what it raised."""
    own = torch.get_num_threads()
    threads = options.threads or max(1, own // options.jobs)
    if options.jobs > 1:
        with ended_by_signals():
            yield from _in_processes(cells, options, threads)
        return
    torch.set_num_threads(threads)
    try:
        for index, cell in enumerate(cells):
            yield index, partial(run_cell, cell, options, workspace, on_step)
    finally:
        torch.set_num_threads(own)


def _in_processes(
    cells: Sequence[Cell], options: Bench, threads: int
) -> Iterator[tuple[int, Callable[[], CellResult]]]:
    pool = ProcessPoolExecutor(
        options.jobs,
        mp_context=get_context("spawn"),
        initializer=begin_process,
        initargs=(threads, os.getpid(), is_typed(), added()),
    )
    waiting = {pool.submit(run_in_process, cell, options): index for index, cell in enumerate(cells)}
    try:
        for done in as_completed(waiting):
            if isinstance(done.exception(), BrokenProcessPool):
                done.result()
            yield waiting[done], done.result
    except BrokenProcessPool:
        raise TrainingError(
            f"A process of the grid died, perhaps for want of memory: resume with {option(resume=True)}, and fewer "
            f"cells at a time, such as {option(jobs=1)}."
        ) from None
    except KeyboardInterrupt:
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare(out: Path, *, overwrite: bool) -> None:
    """Make a grid's folders; starting over sets the old grid aside until the new one is whole."""
    if overwrite:
        remove_ours(out, (OLD,))
        (out / OLD).mkdir()
        for name in OURS:
            if (out / name).exists():
                (out / name).replace(out / OLD / name)
    for part in (CELLS, RUNS):
        (out / part).mkdir(exist_ok=True)
    remove_leftovers(out / CELLS)
