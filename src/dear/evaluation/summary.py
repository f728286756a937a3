"""From the results of cells to means over seeds and averages over data sets. Pure arithmetic, no text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple, get_args

from dear.errors import DataError
from dear.evaluation.results import Backbone, CellResult, Protocol, Strategy, harmonic_mean
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
    """None for few-shot, where shots are the columns."""
    source: str | None
    """The data set that was trained on, where the tables are about other ones."""
    tested_on: Literal["test", "validation"] = "test"


class Row(NamedTuple):
    """A method, as it is or varied."""

    method: str
    variant: str


@dataclass(frozen=True)
class Summary:
    """The numbers of one section by one choice of inference strategies: `values[row][seed][data, column]`."""

    section: Section
    rows: tuple[Row, ...]
    data: tuple[str, ...]
    columns: tuple[str, ...]
    values: dict[Row, dict[int, dict[tuple[str, str], float]]]

    @property
    def averaged(self) -> tuple[str, ...]:
        """The data sets that an average goes over when all is done: the targets, where there are targets."""
        return tuple(name for name in self.data if name != self.section.source)

    def stat(self, row: Row, data: str, column: str) -> Stat | None:
        """Over all seeds that are done."""
        found = [values[data, column] for values in self.values[row].values() if (data, column) in values]
        return mean_and_std(found) if found else None

    def average(self, row: Row, column: str) -> Average | None:
        """Over the row's data sets (targets only, where there are), per seed, then over the seeds that have them all.

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


def strategies(protocol: Protocol, *, other: bool = False) -> tuple[Strategy, Strategy]:
    """How a protocol predicts on the data it trained on, and elsewhere; or the other way for both."""
    home: Strategy = "fusion"
    away: Strategy = "decoupled" if protocol in ("cross-dataset", "domain") else "fusion"
    return (opposite(home), opposite(away)) if other else (home, away)


def opposite(strategy: Strategy) -> Strategy:
    """The other of the two inference strategies."""
    return "decoupled" if strategy == "fusion" else "fusion"


def readings(cell: CellResult, *, other: bool = False) -> dict[tuple[str, str], float]:
    """What a cell says, by data set and column."""
    home, away = strategies(cell.protocol, other=other)
    if cell.protocol == "base-to-novel":
        return {
            (cell.data, "base"): cell.score("base").accuracy(home),
            (cell.data, "novel"): cell.score("novel").accuracy(home),
            (cell.data, "hm"): cell.harmonic_mean(home),
        }
    if cell.protocol == "few-shot":
        return {(cell.data, str(cell.shots)): cell.source.accuracy(home)}
    found = {(cell.data, "accuracy"): cell.source.accuracy(home)}
    return found | {(target.data, "accuracy"): target.accuracy(away) for target in cell.targets}


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
        sections.setdefault(Section(cell.protocol, backbone, shots, source, cell.tested_on), []).append(cell)
    return sections


def summarise(section: Section, cells: Sequence[CellResult], *, other: bool = False) -> Summary:
    """Gather a section's numbers, by its protocol's inference strategies or by the other ones."""
    values: dict[Row, dict[int, dict[tuple[str, str], float]]] = {}
    for cell in cells:
        of_seed = values.setdefault(Row(cell.method, cell.variant), {}).setdefault(cell.seed, {})
        found = readings(cell, other=other)
        if of_seed.keys() & found.keys():
            name = ", ".join(filter(None, (cell.method, cell.variant)))
            raise DataError(f"There are two {cell.protocol} results of {name} on {cell.data} with seed {cell.seed}.")
        of_seed.update(found)
    places = [place for seeds in values.values() for found in seeds.values() for place in found]
    columns = first_seen(column for _, column in places)
    if section.protocol == "few-shot":
        columns.sort(key=int)
    data = first_seen(score.data for cell in cells for score in cell.scores)
    return Summary(section, tuple(sorted(values)), tuple(data), tuple(columns), values)


def first_seen(names: Iterable[str]) -> list[str]:
    """Each name once, in the order in which they come."""
    return list(dict.fromkeys(names))
