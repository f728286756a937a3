"""Compare methods in one call: run the grid that is not done yet, and write the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from dear.engine.loop import Metrics
from dear.engine.ranks import local_device
from dear.errors import ConfigError, did_you_mean
from dear.evaluation.cells import Cell, Setting, make_cells
from dear.evaluation.defaults import backbone_for, broad_set, default_data
from dear.evaluation.grid import run_grid
from dear.evaluation.results import CellResult
from dear.evaluation.summary import Row
from dear.methods.registry import list_methods
from dear.reports.compare_data import Comparison, make_comparison
from dear.reports.compare_page import write_comparison
from dear.storage.locks import check_ours

ALL = "all"
Compared = Literal["base-to-novel", "few-shot"]


def compare(
    data: str | Path | Sequence[str | Path] | None = None,
    clip: str | None = None,
    *,
    out: str | Path,
    methods: str | Sequence[str] = ALL,
    protocol: Compared = "base-to-novel",
    seeds: Sequence[int] = (1, 2, 3),
    shots: Sequence[int] = (16,),
    settings: Mapping[str, Any] | None = None,
    jobs: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    on_cell: Callable[[int, int, CellResult], None] | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    **how: Any,
) -> Comparison:
    """Compare methods on data sets × seeds, and write `compare.html` with tables for people and programs into `out`.

    The folder is a grid, as `dear bench` writes it: cells that are done there are not run again.

    Args:
        data: data sets, folders or lists; by default the world's or, with another backbone, the paper's.
        clip: a backbone's name; the world's data sets use the world's by default.
        out: folder of the grid.
        methods: "all", or names; a method that cannot be run is listed with its reason.
        protocol: "base-to-novel" or "few-shot".
        seeds: random seeds.
        shots: training images per class; for base-to-novel one number.
        settings: settings of methods, each one value or a list of values, of which each is a variant.
        jobs: number of cells to run in parallel.
        resume: continue in a folder that holds a grid.
        overwrite: start over in such a folder.
        on_cell: called with the number of cells done, the number of all, and the cell's result.
        on_step: called with every step's metrics.
        **how: fields of `dear.evaluation.grid.Setting`: pretrained, data_root, device, recipe, train (a
            `TrainSettings` for all methods), epochs (other numbers of epochs, by method; the page marks them),
            cached_views, cache (by default a folder in `out`), workers, threads, validate.
    """
    folder = Path(out)
    check_ours(folder, "grid", resume=resume, overwrite=overwrite)
    named = [str(one) for one in ([data] if isinstance(data, str | Path) else data or ())]
    setting = _setting(folder, named, clip, how)
    cells = _cells(
        protocol,
        named or default_data("few-shot", broad_set(setting.clip), None),
        seeds,
        shots,
        **{"methods": named_methods(methods), "choices": _lists(settings or {})},
    )
    _check_epochs(setting.epochs, [cell.method for cell in cells])
    told = (lambda done, result: on_cell(done, len(cells), result)) if on_cell else None
    refused: dict[Cell, str] = {}
    run = {"jobs": jobs, "resume": resume, "overwrite": overwrite, "on_cell": told, "on_step": on_step}
    results = run_grid(cells, setting, **run, refused=refused)  # type: ignore[arg-type]
    found = make_comparison(results, {Row(cell.method, cell.variant): why for cell, why in refused.items()})
    write_comparison(folder, found)
    return found


def _setting(out: Path, data: Sequence[str], clip: str | None, how: Mapping[str, Any]) -> Setting:
    """What all cells share; every word of `how` must be known."""
    known = [one.name for one in fields(Setting) if one.name not in ("out", "clip")]
    for name in how:
        if name not in known:
            raise ConfigError(f"compare takes no {name!r}.{did_you_mean(name, known) or ' Known: ' + ', '.join(known)}")
    name, weights = backbone_for(data, clip, how.get("pretrained"))
    places = {key: Path(how[key]) for key in ("data_root", "cache") if how.get(key) is not None}
    usual = {"cache": None if "cache" in how else out / "cache"}
    device = local_device(how.get("device"))
    return Setting(**{**usual, **how, **places, "out": out, "clip": name, "pretrained": weights, "device": device})


def _cells(protocol: Any, data: Sequence[str], seeds: Sequence[int], shots: Sequence[int], **what: Any) -> list[Cell]:
    if protocol not in get_args(Compared):
        raise ConfigError(f"The protocol is {protocol!r}, but can be base-to-novel or few-shot.")
    if protocol == "base-to-novel" and len(set(shots)) > 1:
        raise ConfigError("base-to-novel compares methods with one number of shots: give one.")
    return make_cells(protocol, data, seeds=seeds, shots=shots, **what)


def _lists(settings: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    return {name: value if isinstance(value, list | tuple) else [value] for name, value in settings.items()}


def named_methods(methods: str | Sequence[str]) -> list[str]:
    """The methods that were asked for, by name."""
    if methods == ALL or list(methods) == [ALL]:
        return list_methods()
    return [methods] if isinstance(methods, str) else list(methods)


def _check_epochs(epochs: Mapping[str, int], methods: Sequence[str]) -> None:
    for name, count in epochs.items():
        if name not in methods:
            raise ConfigError(f"Epochs are given for {name!r}, which is not among the methods that are compared.")
        if type(count) is not int or count < 1:
            raise ConfigError(f"Epochs of {name} are {count!r}, but must be a whole number from 1 on.")
