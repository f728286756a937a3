"""Summarises the results of cells: means over seeds and averages over data sets. Pure arithmetic, no text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple, get_args

from dear.errors import DataError
from dear.evaluation.results import Backbone, CellResult, Protocol, harmonic_mean
from dear.evaluation.statistics import Stat, mean_and_std
from dear.options.fields import RecipeName

PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
HEADS = {"base": "base", "novel": "novel", "hm": "HM"}
"""Columns as tables and pages write them."""
HM_NOTE = (
    "HM is the harmonic mean of the mean base and the mean novel accuracy, as published; its deviation is that of the "
    "HM of each seed."
)


class DataAverage(NamedTuple):
    """An average over data sets, and the names of these data sets."""

    stat: Stat
    data: tuple[str, ...]


class Section(NamedTuple):
    """What all numbers of one table have in common."""

    protocol: Protocol
    backbone: Backbone
    shots: int | None
    """None for few-shot, where each number of shots has its own column."""
    source: str | None
    """The training data set, if the table is about other data sets."""
    tested_on: Literal["test", "validation"] = "test"
    recipe: RecipeName = "own"


class Row(NamedTuple):
    """A method, and its variant: settings that differ from the defaults, or "" if none do."""

    method: str
    variant: str


@dataclass(frozen=True)
class Summary:
    """The numbers of one section: `values[row][seed][data, column]`."""

    section: Section
    readout: str | None
    """The readout of all numbers; None: the readouts that each method uses for the protocol."""
    rows: tuple[Row, ...]
    data: tuple[str, ...]
    columns: tuple[str, ...]
    values: dict[Row, dict[int, dict[tuple[str, str], float]]]

    @property
    def averaged(self) -> tuple[str, ...]:
        """The data sets of the average of a complete grid: only the targets, if there are any."""
        return tuple(name for name in self.data if name != self.section.source)

    def stat(self, row: Row, data: str, column: str) -> Stat | None:
        """Mean and deviation over all finished seeds; None without any."""
        return self._over_seeds(row, (data,), column)

    def average(self, row: Row, column: str) -> DataAverage | None:
        """Average over the row's data sets (only targets, if there are any), then over the seeds that have all."""
        seeds = self.values[row].values()
        done = tuple(name for name in self.averaged if any((name, column) in values for values in seeds))
        stat = self._over_seeds(row, done, column) if done else None
        return stat and DataAverage(stat, done)

    def _over_seeds(self, row: Row, data: Sequence[str], column: str) -> Stat | None:
        """Mean over data sets, then mean and deviation over the seeds that have all of them; None without any.

        HM is the harmonic mean of the mean base and the mean novel accuracy, as published. Its deviation is that of
        the seeds' HMs, each computed from the seed's means over data sets.
        """
        complete = [values for values in self.values[row].values() if all((name, column) in values for name in data)]
        if not complete:
            return None

        def per_seed(one: str) -> list[float]:
            return [fmean(values[name, one] for name in data) for values in complete]

        if column != "hm":
            return mean_and_std(per_seed(column))
        base, novel = per_seed("base"), per_seed("novel")
        deviation = mean_and_std(list(map(harmonic_mean, base, novel)))
        return deviation._replace(mean=harmonic_mean(fmean(base), fmean(novel)))

    def seeds(self, row: Row, data: str | None, column: str) -> int:
        """Number of seeds behind an entry; `data` is None for the average."""
        if data is not None:
            return sum((data, column) in values for values in self.values[row].values())
        average = self.average(row, column)
        return average.stat.seeds if average else 0


def readings(cell: CellResult, readout: str | None = None) -> dict[tuple[str, str], float]:
    """The numbers of a cell by data set and column, for the protocol's readouts or for the named one."""
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
    """Readouts that need a table of their own: those that the protocol does not use for every test of a method."""
    return tuple(
        first_seen(
            name
            for cell in cells
            for name in cell.readout_names
            if any(cell.readout(scores) != name for scores in cell.scores)
        )
    )


def in_order(results: Sequence[CellResult]) -> list[CellResult]:
    """Sort by protocol, data set (in the order of first appearance), method, variant, shots and seed."""
    data = first_seen(cell.data for cell in results)

    def key(cell: CellResult) -> tuple[int, int, str, str, int, int]:
        positions = PROTOCOLS.index(cell.protocol), data.index(cell.data)
        return (*positions, cell.method, cell.variant, cell.shots, cell.seed)

    return sorted(results, key=key)


def by_section(results: Sequence[CellResult]) -> dict[Section, list[CellResult]]:
    """The cells of each section, in order; backbones with the same weights count as one, whatever their names."""
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
    """Collect a section's numbers, for the protocol's readouts or for the named one where a method has it."""
    values: dict[Row, dict[int, dict[tuple[str, str], float]]] = {}
    for cell in cells:
        if readout is not None and readout not in cell.readout_names:
            continue
        of_seed = values.setdefault(Row(cell.method, cell.variant), {}).setdefault(cell.seed, {})
        numbers = readings(cell, readout)
        if of_seed.keys() & numbers.keys():
            name = ", ".join(filter(None, (cell.method, cell.variant)))
            raise DataError(f"There are two {cell.protocol} results of {name} on {cell.data} with seed {cell.seed}.")
        of_seed.update(numbers)
    columns = first_seen(column for cell in cells for _, column in readings(cell))
    if section.protocol == "few-shot":
        columns.sort(key=int)
    data = first_seen(score.data for cell in cells for score in cell.scores)
    return Summary(section, readout, tuple(sorted(values)), tuple(data), tuple(columns), values)


def first_seen(names: Iterable[str]) -> list[str]:
    """Each name once, in the order of first appearance."""
    return list(dict.fromkeys(names))
