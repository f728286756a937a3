"""Run a protocol over data sets × methods × settings × shots × seeds, as a grid that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from dear.engine.loop import Metrics
from dear.engine.step_logs import check_log
from dear.engine.workspace import Workspace
from dear.errors import ConfigError
from dear.evaluation.cells import Cell, make_cells
from dear.evaluation.defaults import backbone_for, broad_set, default_data
from dear.evaluation.grid import own_share, run_grid
from dear.evaluation.results import CellResult, Protocol
from dear.evaluation.summary import Row
from dear.evaluation.tables import to_text
from dear.methods.registry import list_methods
from dear.options.keywords import BenchOptions
from dear.options.parts import Bench, FewShot, Transfer
from dear.options.reading import check, renamed, write_config
from dear.storage.locks import check_ours

ALL = "all"
PROTOCOLS: dict[str, type[Bench]] = {
    "base-to-novel": Bench,
    "few-shot": FewShot,
    "cross-dataset": Transfer,
    "domain": Transfer,
}
"""The options of each protocol."""

OnCell = Callable[[int, int, CellResult], None]
OnRefused = Callable[[dict[Row, str], int], None]


class Benched(NamedTuple):
    """The results of a grid, and why some cells could not be run."""

    results: list[CellResult]
    refused: dict[Cell, str]

    @property
    def reasons(self) -> dict[Row, str]:
        """Why a method or a variant of it could not be run, at least on some data sets."""
        return {Row(cell.method, cell.variant): why for cell, why in self.refused.items()}

    def table(self, width: int = 80) -> str:
        """The results as a text table."""
        return to_text(self.results, width=width)


def bench(
    protocol: Protocol,
    data: str | Path | Sequence[str | Path] | None = None,
    clip: str | None = None,
    *,
    on_cell: OnCell | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    **options: Unpack[BenchOptions],
) -> list[CellResult]:
    """Run one of the paper's protocols as a resumable grid, with `table.csv` and `table.md` in `out`.

    Args:
        protocol: "base-to-novel", "few-shot", "cross-dataset" or "domain".
        data: data sets, folders or lists; by default the world's or, with another backbone, the paper's.
        clip: a backbone's name; the world's data sets use the world's by default.
        on_cell: called with the number of cells done, the number of all, and the cell's result.
        on_step: called with every step's metrics.
        **options: as `dear bench PROTOCOL -h` lists them; `out` is required.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(f"The protocol is {protocol!r}: give {', '.join(PROTOCOLS)}.")
    checked = grid_options(PROTOCOLS[protocol], data, clip, dict(options))
    return run_bench(protocol, checked, on_cell=on_cell, on_step=on_step).results


def grid_options(
    model: type[Bench], data: str | Path | Sequence[str | Path] | None, clip: str | None, options: dict[str, Any]
) -> Any:
    """The keywords of a grid as checked options."""
    named = None if data is None else [data] if isinstance(data, str | Path) else list(data)
    return check(model, {**renamed(model, options), "data": named, "clip": clip})


def run_bench(
    protocol: Protocol,
    options: Bench,
    *,
    workspace: Workspace | None = None,
    on_cell: OnCell | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    on_refused: OnRefused | None = None,
    refuse: bool = True,
    record_options: bool = False,
) -> Benched:
    """Run a grid as the options say: what `dear bench` and `dear compare` do.

    Args:
        protocol: what each cell trains and tests.
        options: what the cells share, and what they differ in.
        workspace: what is open already.
        on_cell: called with the number of cells done, the number of all, and the cell's result.
        on_step: called with every step's metrics.
        on_refused: called before the first cell if some cannot be run, with their reasons by method and variant, and
            the number of cells that will be run.
        refuse: raise the error of a cell that its method refuses; otherwise it is listed in `refused`.
        record_options: write OUT/config.yaml, which repeats the grid with --config.
    """
    check_log(options.log, options.out)
    check_ours(options.out, "grid", resume=options.continues, overwrite=options.overwrite)
    cells, decided = plan_cells(protocol, options)
    record = once(partial(write_config, options.out, options, clip=decided.clip, pretrained=decided.pretrained))

    refused: dict[Cell, str] = {}
    total = len(cells)

    def after_checks(count: int) -> None:
        nonlocal total
        total = count
        if refused and on_refused is not None:
            on_refused(Benched([], refused).reasons, count)

    def after_cell(done: int, result: CellResult) -> None:
        if record_options:
            record()
        if on_cell is not None:
            on_cell(done, total, result)

    def after_step(metrics: Metrics) -> None:
        if record_options:
            record()
        if on_step is not None:
            on_step(metrics)

    results = run_grid(
        own_share(cells, options.cells),
        decided,
        workspace=workspace,
        on_cell=after_cell,
        on_step=after_step,
        refused=None if refuse else refused,
        on_checked=after_checks,
    )
    return Benched(results, refused)


def plan_cells(protocol: Protocol, options: Bench) -> tuple[list[Cell], Bench]:
    """The cells of a grid, and its options with the backbone that was decided on."""
    source = options.source if isinstance(options, Transfer) else None
    named = [*([source] if source else []), *(options.data or ())]
    name, weights = backbone_for(named, options.clip, options.pretrained)
    broad = broad_set(name)
    if isinstance(options, Transfer):
        source = source or broad
    methods = list_methods() if options.methods == (ALL,) else list(options.methods)
    cells = make_cells(
        protocol,
        options.data or default_data(protocol, broad, source),
        methods=methods,
        seeds=options.seeds,
        shots=options.shots,
        source=source,
        choices={**({"roles": (options.roles,)} if options.roles else {}), **options.set},
    )
    for method in options.epochs_of:
        if method not in methods:
            raise ConfigError(f"Epochs are set for {method!r}, which is not among the methods of this grid.")
    return cells, options.model_copy(update={"clip": name, "pretrained": weights})
