"""Compare methods in one call: run the cells that are not done yet, and write the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from dear.engine.loop import Metrics
from dear.errors import ConfigError, option
from dear.evaluation.defaults import backbone_for, broad_set, default_data
from dear.options.keywords import CompareOptions
from dear.options.parts import Compare, Training
from dear.reports.compare_data import Comparison, make_comparison
from dear.reports.compare_page import PAGE, write_comparison
from dear.reports.compare_words import verdict
from dear.workflows.bench import Benched, OnCell, OnRefused, grid_options, run_bench

__all__ = ["PAGE", "compare", "compare_cells", "run_comparison", "verdict"]


def compare(
    data: str | Path | Sequence[str | Path] | None = None,
    clip: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    epochs: int | Mapping[str, int] | None = None,
    train: Training | None = None,
    on_cell: OnCell | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Compare methods on data sets × seeds, and write `compare.html` with tables for people and programs into `out`.

    The folder is a grid, as `dear bench` writes it: cells that are done there are not run again.

    Args:
        data: data sets, folders or lists; by default the world's or, with another backbone, the paper's.
        clip: a backbone's name; the world's data sets use the world's by default.
        settings: another name for `set`: settings of methods, each one value or a list of variants.
        epochs: epochs of all methods, or of some by name, as `epochs_of`.
        train: options of the training in one object; keywords override it.
        on_cell: called with the number of cells done, the number of all, and the cell's result.
        on_step: called with every step's metrics.
        **options: as `dear compare -h` lists them; `out` is required. A method that cannot be run is listed with its
            reason.
    """
    values: dict[str, Any] = {**options}
    if train is not None:
        values = {**{name: getattr(train, name) for name in train.model_fields_set}, **values}
    if settings is not None:
        values["set"] = {**values.get("set", {}), **settings}
    if isinstance(epochs, Mapping):
        values["epochs_of"] = dict(epochs)
    elif epochs is not None:
        values["epochs"] = epochs
    return run_comparison(grid_options(Compare, data, clip, values), on_cell=on_cell, on_step=on_step)


def run_comparison(
    options: Compare,
    *,
    on_cell: OnCell | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    on_refused: OnRefused | None = None,
    record_options: bool = False,
) -> Comparison:
    """Compare as the options say: what `dear.compare` and `dear compare` do. A share of the cells has no page.

    `on_refused` is called before the first cell if some methods cannot be run; see `run_bench`.
    """
    found = compare_cells(
        options, on_cell=on_cell, on_step=on_step, on_refused=on_refused, record_options=record_options
    )
    if not found.results and found.reasons:  # refused in the middle, such as a description that does not fit
        raise ConfigError(next(iter(found.reasons.values())))
    comparison = make_comparison(found.results, found.reasons)
    if options.cells is None:
        write_comparison(options.out, comparison)
    return comparison


def compare_cells(
    options: Compare,
    *,
    on_cell: OnCell | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    on_refused: OnRefused | None = None,
    record_options: bool = False,
) -> Benched:
    """Run the cells of a comparison, or a share of them; see `run_bench`."""
    if options.protocol == "base-to-novel" and len(set(options.shots)) > 1:
        raise ConfigError(f"base-to-novel compares methods with one number of shots: {option(shots=16)}.")
    if options.data is None:
        name, _ = backbone_for((), options.clip, options.pretrained)
        names = default_data("few-shot", broad_set(name), None)  # without shifted variants, for both protocols
        options = options.model_copy(update={"data": tuple(names)})
    return run_bench(
        options.protocol,
        options,
        on_cell=on_cell,
        on_step=on_step,
        on_refused=on_refused,
        refuse=False,
        record_options=record_options,
    )
