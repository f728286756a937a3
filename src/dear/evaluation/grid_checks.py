"""What is refused before a grid begins: data sets that cannot be used, and methods that cannot do what is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dear.data.descriptions import with_descriptions
from dear.data.open import refuse_inside
from dear.data.splits import labels_of
from dear.engine.workspace import Workspace
from dear.errors import REFUSALS, ConfigError, DataError, option
from dear.evaluation.cell_run import tested
from dear.evaluation.cells import Cell, fit_options
from dear.methods.parts.class_identity import shares_classes
from dear.methods.registry import get_method
from dear.model.load import check_named
from dear.model.model import Model
from dear.options.parts import Bench


def check_data(cells: Sequence[Cell], options: Bench, workspace: Workspace) -> None:
    """Open all data sets; name every problem at once."""
    _check_shots_file(cells, options)
    problems: list[str] = []
    called: dict[str, str] = {}
    for source in dict.fromkeys(name for cell in cells for name in (cell.data, *(test[0] for test in cell.tests))):
        trained_on = any(cell.data == source for cell in cells)
        try:
            dataset = workspace.dataset(source, options.data_root, options.descriptions)
            if trained_on:
                with_descriptions(dataset, options.descriptions)
        except DataError as error:
            problems.append(str(error))
            continue
        refuse_inside(dataset, options.out, options.cache_folder(options.out))
        if not dataset.train and trained_on:
            problems.append(f"{dataset.name} has no training images: it can only be tested on.")
        if (other := called.setdefault(dataset.name, source)) != source:
            problems.append(f"{other} and {source} would both be called {dataset.name}: rename one of them.")
    if not problems:
        problems = list(dict.fromkeys(_untestable(cells, options, workspace)))
    if len(problems) == 1:
        raise DataError(problems[0])
    if problems:
        raise DataError(f"{len(problems)} data sets cannot be used:\n- " + "\n- ".join(problems))


def _check_shots_file(cells: Sequence[Cell], options: Bench) -> None:
    """Refuse one sample for several cells that a table counts as different samples."""
    if options.shots_file is None:
        return
    counts = {
        ("{data}", "data sets", "one data set"): len({cell.data for cell in cells}),
        ("{shots}", "numbers of shots", "one number of shots"): len({cell.shots for cell in cells}),
        ("{seed}", "seeds", "one seed"): len({cell.seed for cell in cells}),
    }
    for (place, several, one), count in counts.items():
        if count > 1 and place not in str(options.shots_file):
            raise DataError(
                f"{option(shots_file=str(options.shots_file))} is one sample, but there are {count} {several}: put "
                f"{place} into its name, or give {one}."
            )


def _untestable(cells: Sequence[Cell], options: Bench, workspace: Workspace) -> Iterator[str]:
    for cell in cells:
        trained = workspace.dataset(cell.data, options.data_root)
        try:
            workspace.listed(trained, options.shots_file, cell.shots, cell.seed, cell.half)
        except DataError as error:
            yield str(error)
            continue
        for name, half in cell.tests:
            try:
                tested(cell, name, half, options, workspace)
            except DataError as error:
                yield str(error)


def check_methods(
    cells: Sequence[Cell], options: Bench, workspace: Workspace, refused: dict[Cell, str] | None
) -> list[Cell]:
    """The cells that can be run: every variant of a method is built once, and given classes that it will be tested on.

    A variant that names other models by data set, seed or shots is built for each of them, since one may be missing.

    With `refused`, what a method refuses is put there instead of being raised, unless nothing is left of a whole grid.
    """
    check_named([get_method(cell.method) for cell in cells], str(options.clip))
    clip = workspace.clip(str(options.clip), options.pretrained, options.device)
    for name, half in dict.fromkeys(test for cell in cells for test in cell.tests):  # every tested class is a prompt
        dataset = workspace.dataset(name, options.data_root)
        labels = labels_of(dataset, half)
        clip.text.tokenize(dataset.classes(dataset.names_in(labels)).prompts())
    first: dict[Any, Cell] = {}
    for cell in cells:
        first.setdefault(_built_as(cell), cell)
    reasons: dict[Any, str] = {}
    read: dict[Any, tuple[str, ...]] = {}
    for key, cell in first.items():
        try:
            wanted = fit_options(cell, options)
            prepared = workspace.prepare(wanted, protocol=cell.protocol, validate=options.validation)
            _try_classes(cell, prepared.model, options, workspace)
            read[key] = prepared.model.names()
        except REFUSALS as error:
            if refused is None or (options.cells is None and len(reasons) == len(first) - 1):
                raise
            reasons[key] = str(error)
    refusals = {cell: reasons[_built_as(cell)] for cell in cells if _built_as(cell) in reasons}
    if refused is not None:
        refused |= refusals
    left = [cell for cell in cells if cell not in refusals]
    also = {key: _of_clip(name for other, names in read.items() if other != key for name in names) for key in read}
    return [replace(cell, also=also[_built_as(cell)]) for cell in left]


def _of_clip(names: Iterable[str]) -> tuple[str, ...]:
    """The names that every model can compute: those without a companion or another prefix."""
    return tuple(dict.fromkeys(name for name in names if ":" not in name))


def _built_as(cell: Cell) -> tuple[Any, ...]:
    """The same for cells whose methods are built in the same way."""
    companions = get_method(cell.method).needs.companions
    differs = any("{" in str(value) for name, value in cell.choices if name in companions)
    return cell.method, cell.choices, *((cell.data, cell.seed, cell.shots) if differs else ())


def _try_classes(cell: Cell, model: Model, options: Bench, workspace: Workspace) -> None:
    """Pass two classes of each tested list to a method: one that knows only its own classes refuses them now."""
    for name, half in cell.tests:
        dataset = workspace.dataset(name, options.data_root)
        labels = labels_of(dataset, half)
        few = dataset.classes(dataset.names_in(labels)[:2])
        if all(one in model.trained_on for one in few.names) and shares_classes(cell.data, name):
            continue
        if not model.method.needs.novel:
            knows = f"{cell.method} knows only the classes it was trained on"
            raise ConfigError(f"{knows}, but {cell.protocol} tests others: leave it out.")
        model.for_classes(few).frozen_parts()
