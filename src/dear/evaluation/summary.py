"""From the results of cells to means over seeds and averages over data sets. Pure arithmetic, no text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple, get_args

from dear.errors import DataError
from dear.evaluation.results import Backbone, CellResult, Protocol, RecipeKind, harmonic_mean
from dear.evaluation.statistics import Stat, mean_and_std

PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


class Average(NamedTuple):
    """An average over data sets, and which."""

    stat: Stat
    data: tuple[str, ...]


class Section(NamedTuple):
    """What has to be equal for numbers to stand in one table."""

    protocol: Protocol
    backbone: Backbone
    shots: int | None
    """None for few-shot, because there shots are the columns."""
    source: str | None
    """The data set that was trained on, if the table is about other ones."""
    tested_on: Literal["test", "validation"] = "test"
    recipe: RecipeKind = "own"


class Row(NamedTuple):
    """A method, as it is or varied."""

    method: str
    variant: str


@dataclass(frozen=True)
class Summary:
    """The numbers of one section: `values[row][seed][data, column]`."""

    section: Section
    readout: str | None
    """By which readout everything is read; None: by those that each method has for the protocol."""
    rows: tuple[Row, ...]
    data: tuple[str, ...]
    columns: tuple[str, ...]
    values: dict[Row, dict[int, dict[tuple[str, str], float]]]

    @property
    def averaged(self) -> tuple[str, ...]:
        """The data sets that an average goes over when all is done: only the targets, if there are targets."""
        return tuple(name for name in self.data if name != self.section.source)

    def stat(self, row: Row, data: str, column: str) -> Stat | None:
        """Over all seeds that are done."""
        found = [values[data, column] for values in self.values[row].values() if (data, column) in values]
        return mean_and_std(found) if found else None

    def average(self, row: Row, column: str) -> Average | None:
        """Over the row's data sets (only targets, if there are any), per seed, then over the seeds that have all.

        A harmonic mean is that of the seed's average base and novel accuracies, as in the paper.
        """
        seeds = self.values[row].values()
        done = tuple(name for name in self.averaged if any((name, column) in values for values in seeds))
        complete = [values for values in seeds if all((name, column) in values for name in done)]
        if not done or not complete:
            return None

        def over_data(values: dict[tuple[str, str], float], column: str) -> float:
            return fmean(values[name, column] for name in done)

        if column == "hm":
            found = [harmonic_mean(over_data(values, "base"), over_data(values, "novel")) for values in complete]
        else:
            found = [over_data(values, column) for values in complete]
        return Average(mean_and_std(found), done)

    def seeds(self, row: Row, data: str | None, column: str) -> int:
        """How many seeds a number is the mean of; `data` is None for the average."""
        if data is not None:
            return sum((data, column) in values for values in self.values[row].values())
        average = self.average(row, column)
        return average.stat.seeds if average else 0


def readings(cell: CellResult, readout: str | None = None) -> dict[tuple[str, str], float]:
    """What a cell says, by data set and column: by the protocol's readouts, or by the one named."""
    if cell.protocol == "base-to-novel":
        return {
            (cell.data, "base"): cell.reading(cell.score("base"), readout),
            (cell.data, "novel"): cell.reading(cell.score("novel"), readout),
            (cell.data, "hm"): cell.harmonic_mean(readout),
        }
    if cell.protocol == "few-shot":
        return {(cell.data, str(cell.shots)): cell.reading(cell.source, readout)}
    return {(one.data, "accuracy"): cell.reading(one, readout) for one in cell.scores}


def further_readouts(cells: Iterable[CellResult]) -> tuple[str, ...]:
    """The readouts that show something new: those that are not what the protocol uses for every test of a method."""
    return tuple(
        first_seen(
            name
            for cell in cells
            for name in cell.readout_names
            if any(cell.readout(scores) != name for scores in cell.scores)
        )
    )


def in_order(results: Sequence[CellResult]) -> list[CellResult]:
    """By protocol, data set (as first seen), method, variant, shots and seed."""
    data = first_seen(cell.data for cell in results)

    def key(cell: CellResult) -> tuple[int, int, str, str, int, int]:
        places = PROTOCOLS.index(cell.protocol), data.index(cell.data)
        return (*places, cell.method, cell.variant, cell.shots, cell.seed)

    return sorted(results, key=key)


def by_section(results: Sequence[CellResult]) -> dict[Section, list[CellResult]]:
    """The cells of each section, in order; the same weights are the same backbone, whatever it was called."""
    sections: dict[Section, list[CellResult]] = {}
    backbones: dict[str, Backbone] = {}
    for cell in in_order(results):
        shots = None if cell.protocol == "few-shot" else cell.shots
        source = cell.data if cell.protocol in ("cross-dataset", "domain") else None
        backbone = backbones.setdefault(cell.backbone.weights_sha256, cell.backbone)
        section = Section(cell.protocol, backbone, shots, source, cell.tested_on, cell.recipe)
        sections.setdefault(section, []).append(cell)
    return sections


def summarise(section: Section, cells: Sequence[CellResult], readout: str | None = None) -> Summary:
    """Gather a section's numbers by the protocol's readouts, or those of the methods that have the readout named."""
    values: dict[Row, dict[int, dict[tuple[str, str], float]]] = {}
    for cell in cells:
        if readout is not None and readout not in cell.readout_names:
            continue
        of_seed = values.setdefault(Row(cell.method, cell.variant), {}).setdefault(cell.seed, {})
        found = readings(cell, readout)
        if of_seed.keys() & found.keys():
            name = ", ".join(filter(None, (cell.method, cell.variant)))
            raise DataError(f"There are two {cell.protocol} results of {name} on {cell.data} with seed {cell.seed}.")
        of_seed.update(found)
    columns = first_seen(column for cell in cells for _, column in readings(cell))
    if section.protocol == "few-shot":
        columns.sort(key=int)
    data = first_seen(score.data for cell in cells for score in cell.scores)
    return Summary(section, readout, tuple(sorted(values)), tuple(data), tuple(columns), values)


def first_seen(names: Iterable[str]) -> list[str]:
    """Each name once, in the order of their first appearance."""
    return list(dict.fromkeys(names))
