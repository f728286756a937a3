"""A grid of cells, one after the other or several at once, resumable: what is done is never done again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from dear.engine.loop import Metrics
from dear.engine.workspace import Workspace
from dear.errors import REFUSALS
from dear.evaluation.cell_run import CELLS, RUNS
from dear.evaluation.cells import Cell
from dear.evaluation.eta import RemainingTime
from dear.evaluation.executors import Executor, InProcesses, InThisProcess
from dear.evaluation.grid_checks import check_data, check_methods
from dear.evaluation.on_ray import open_ray
from dear.evaluation.processes import ended_by_signals
from dear.evaluation.results import CellResult
from dear.evaluation.tables import to_csv, to_markdown
from dear.options.fields import share_of
from dear.options.parts import Bench
from dear.progress.stages import stage
from dear.storage.files import write_atomic
from dear.storage.locks import Kind, check_ours, locked, locked_share, remove_leftovers, remove_ours

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
    """Run the cells that are not done yet; tables are written after every cell, unless only a share is run.

    What cannot work, a missing data set or an impossible choice, is refused before anything is written or trained.
    With a share in the options, the cells are those of the share, and other processes may run the others meanwhile.
    With `refused`, a cell that its method refuses does not end the grid: its sentence is put there instead.
    `on_checked` is called with the number of cells to run, after these checks and before the first cell.
    """
    workspace = workspace or Workspace()
    check_ours(options.out, "grid", resume=options.continues, overwrite=options.overwrite)
    with open_executor(options, workspace, on_step) as executor:
        check_data(cells, options, workspace)
        cells = check_methods(cells, options, workspace, refused)
        with locked_for(options.cells, options.out, "grid"):
            check_ours(options.out, "grid", resume=options.continues, overwrite=options.overwrite)  # one may have ended
            _prepare(options)
            if on_checked:
                on_checked(len(cells))
            found = _run_and_write(cells, options, executor, on_cell, refused)
            shutil.rmtree(options.out / OLD, ignore_errors=True)
    return found


def own_share(cells: Sequence[Cell], share: str | None) -> list[Cell]:
    """The cells that this process runs: all, or of a share 3/20 every 20th, beginning with the third."""
    if share is None:
        return list(cells)
    which, count = share_of(share)
    return list(cells[which - 1 :: count])


def locked_for(share: str | None, folder: Path, kind: Kind) -> AbstractContextManager[None]:
    """Lock a folder for all cells, or for one share of them."""
    return locked(folder, kind) if share is None else locked_share(folder, kind, *share_of(share))


@contextmanager
def open_executor(
    options: Bench, workspace: Workspace, on_step: Callable[[Metrics], None] | None = None
) -> Iterator[Executor]:
    """The executor that the options ask for; what it cannot do is refused here, before anything is written."""
    if options.on is not None:
        with open_ray(options, workspace) as executor, ended_by_signals():
            yield executor
    elif options.jobs > 1:
        with ended_by_signals():
            yield InProcesses(options.jobs)
    elif options.cells is not None:  # a scheduler ends a job by a signal: the share is then free for the next one
        with ended_by_signals():
            yield InThisProcess(workspace, on_step)
    else:
        yield InThisProcess(workspace, on_step)


def _run_and_write(
    cells: Sequence[Cell],
    options: Bench,
    executor: Executor,
    on_cell: Callable[[int, CellResult], None] | None,
    refused: dict[Cell, str] | None,
) -> list[CellResult]:
    """Run the cells in a folder that is locked, writing tables after each if they are all cells of the grid."""
    results: dict[int, CellResult] = {}
    pace, began = RemainingTime((cell.method for cell in cells), executor.at_once), time.time()

    def keep(index: int, result: CellResult) -> None:
        results[index] = result
        new = _is_newer(options.out / CELLS / f"{cells[index].slug}.json", began)
        pace.add(cells[index].method, result.seconds + (result.encoding_seconds or 0.0) if new else None)
        advance(len(results), left=pace.left())
        if options.cells is None:
            ordered = [results[i] for i in sorted(results)]
            write_atomic(options.out / "table.csv", to_csv(ordered).encode())
            write_atomic(options.out / "table.md", to_markdown(ordered).encode())
        if on_cell:
            on_cell(len(results), result)

    with stage("cells", len(cells), outer=True) as advance, closing(executor.run(cells, options)) as outcomes:
        for index, run in outcomes:
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


def _prepare(options: Bench) -> None:
    """Make a grid's folders; starting over sets the old grid aside until the new one is whole."""
    out = options.out
    if options.overwrite:
        remove_ours(out, (OLD,))
        (out / OLD).mkdir()
        for name in OURS:
            if (out / name).exists():
                (out / name).replace(out / OLD / name)
    for part in (CELLS, RUNS):
        (out / part).mkdir(exist_ok=True)
    if options.cells is None:  # otherwise other processes may be writing there
        remove_leftovers(out / CELLS)
