"""Turns the results of a grid into a comparison of its methods: ranking, pairs, cost, footnotes. No page text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dear.errors import ConfigError
from dear.evaluation.deviations import Deviations, find_deviations, marked
from dear.evaluation.pairwise import Effort, Gap, MethodPair, all_pairs, effort, gaps_to
from dear.evaluation.paper_numbers import why_none
from dear.evaluation.published import PublishedEntry, find_published, own_publication
from dear.evaluation.results import CellResult
from dear.evaluation.statistics import Stat
from dear.evaluation.summary import Row, Section, Summary, by_section, summarise
from dear.methods.base import Method
from dear.methods.registry import get_method

NOTHING = "nothing"
NOISE = 1e-9
"""Means that differ by less are equal: their numbers were summed in another order."""


@dataclass(frozen=True)
class Comparison:
    """Methods on the same data sets and seeds: the numbers behind `compare.html`."""

    section: Section
    summary: Summary
    cells: Mapping[Row, tuple[CellResult, ...]]
    refused: Mapping[Row, str]
    """Why a method is not in the tables."""

    def __repr__(self) -> str:
        """Counts instead of every cell."""
        cells = sum(len(one) for one in self.cells.values())
        return f"Comparison({len(self.cells)} methods, {cells} cells, {len(self.refused)} refused)"

    @property
    def columns(self) -> tuple[str, ...]:
        """The measured quantities: base, novel and hm, or numbers of shots."""
        return self.summary.columns

    @property
    def main(self) -> str:
        """The column that methods are ranked by."""
        return self.columns[-1]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The methods, best first; incomplete ones are last."""

        def key(row: Row) -> tuple[bool, float, Row]:
            return not self.is_complete(row), -round(self.value(row, self.main), 9), row

        return tuple(sorted(self.summary.rows, key=key))

    @cached_property
    def complete(self) -> tuple[Row, ...]:
        """The rows that can be compared: all data sets and all seeds."""
        return tuple(row for row in self.rows if self.is_complete(row))

    def is_complete(self, row: Row) -> bool:
        """Whether a row has every data set and the largest number of seeds of any row."""
        average = self.summary.average(row, self.main)
        most = max(self.summary.seeds(one, None, self.main) for one in self.summary.rows)
        return average is not None and (len(average.data), average.stat.seeds) == (len(self.summary.averaged), most)

    def mean(self, row: Row, column: str) -> Stat | None:
        """Mean over data sets and seeds, with the deviation over seeds."""
        average = self.summary.average(row, column)
        return average.stat if average else None

    def value(self, row: Row, column: str) -> float:
        """The mean as a number, 0 without any result."""
        stat = self.mean(row, column)
        return stat.mean if stat else 0.0

    @cached_property
    def pairs(self) -> dict[str, list[MethodPair]]:
        """All pairs of complete rows, by column."""
        return {column: all_pairs(self.summary, column, self.complete) for column in self.columns}

    def pair(self, column: str, first: Row, second: Row) -> MethodPair:
        """Two rows, in this order."""
        for one in self.pairs[column]:
            if (one.first, one.second) == (first, second):
                return one
            if (one.second, one.first) == (first, second):
                test = one.test._replace(difference=-one.test.difference, better=one.test.worse, worse=one.test.better)
                return one._replace(first=first, second=second, test=test)
        raise KeyError((first, second))

    def leaders(self, column: str) -> list[Row]:
        """The complete rows with the highest mean: several if they tie, in the order of the table."""
        return highest({row: self.value(row, column) for row in self.complete})

    def best(self, column: str) -> Row:
        """The complete row with the highest mean; the first one of a tie."""
        return self.leaders(column)[0]

    @cached_property
    def places(self) -> dict[Row, int]:
        """Each row's rank by the main column; complete rows that tie share one, and the next rank is left out."""
        found: dict[Row, int] = {}
        for position, row in enumerate(self.rows, start=1):
            before = self.rows[position - 2] if position > 1 else row
            shared = row in self.complete and abs(self.value(before, self.main) - self.value(row, self.main)) < NOISE
            found[row] = found.get(before, position) if shared else position
        return found

    def tied(self, column: str) -> list[Row]:
        """The rows that are not significantly different from the best one, best first."""
        best = self.best(column)
        others = [row for row in self.complete if row != best and not self.pair(column, best, row).differs]
        return sorted(others, key=lambda row: -self.value(row, column))

    def gaps(self, column: str) -> list[Gap]:
        """The difference of every complete row to the best one."""
        return gaps_to(self.summary, column, self.complete, self.best(column))

    @cached_property
    def plain(self) -> Row | None:
        """The row of plain CLIP, which trained nothing; None if it was not run."""
        untrained = (
            row for row in self.complete if all(not one.steps and not one.adapter_sha256 for one in self.cells[row])
        )
        return next(untrained, None)

    @cached_property
    def effort(self) -> dict[Row, Effort]:
        """What each row costs."""
        return {row: effort(self.cells[row]) for row in self.rows}

    @property
    def seeds(self) -> list[int]:
        """All seeds, sorted."""
        return sorted({seed for values in self.summary.values.values() for seed in values})

    @property
    def results_per_pair(self) -> int:
        """Number of (data set, seed) results that a pair of methods is compared on."""
        return max(
            (pair.test.n for pair in self.pairs[self.main]), default=len(self.summary.averaged) * len(self.seeds)
        )

    @cached_property
    def deviations(self) -> Deviations:
        """How the training of each row deviated from the recipe in the heading."""
        return find_deviations({row: self.cells[row] for row in self.rows})

    def footnotes(self, row: Row) -> list[str]:
        """Restrictions to know before comparing a row with others."""
        notes = []
        method = known(row.method)
        asked = method.about.needs.split("; ") if method and method.about else []
        if further := [one for one in asked if one != NOTHING and not one.endswith("if any")]:
            notes.append(f"uses more than labelled photos: {', '.join(further)}")
        used = dict.fromkeys(f"{name}: {one}" for cell in self.cells[row] for name, one in cell.resources.items())
        notes += [", ".join(used)] if used else []
        notes += filter(None, [self.deviations.of(row)])
        if not self.is_complete(row):
            average = self.summary.average(row, self.main)
            sets, seeds = (len(average.data), average.stat.seeds) if average else (0, 0)
            notes.append(f"not compared with others: done on {sets} data set(s) with {seeds} seed(s) only")
        return notes

    @cached_property
    def marks(self) -> dict[str, str]:
        """The mark of each footnote, in the order of the rows."""
        return marked(dict.fromkeys(text for row in self.rows for text in self.footnotes(row)))

    @property
    def no_published(self) -> str:
        """Why published numbers are not shown, or ""."""
        return why_none(self.section)

    def published(self, row: Row) -> tuple[PublishedEntry | None, PublishedEntry | None]:
        """The averages that the paper and the method's own publication print."""
        if self.no_published:
            return None, None
        what = self.section.protocol, row.method, row.variant
        return find_published(*what), own_publication(*what)

    @property
    def records(self) -> list[dict[str, Any]]:
        """One flat record per method, for `pandas.DataFrame`."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: Row) -> dict[str, Any]:
        record: dict[str, Any] = {"place": self.places[row], "method": row.method, "variant": row.variant}
        for column in self.columns:
            stat = self.mean(row, column)
            record[f"{self.name(column)}_mean"] = stat and round(stat.mean, 6)
            record[f"{self.name(column)}_spread"] = stat and (None if stat.std is None else round(stat.std, 6))
        average = self.summary.average(row, self.main)
        record |= {"data_sets": len(average.data) if average else 0, "seeds": average.stat.seeds if average else 0}
        record["tied_with_best"] = row in self.complete and row in (self.best(self.main), *self.tied(self.main))
        record |= {name: value and _short(value) for name, value in self.effort[row]._asdict().items()}
        epochs = sorted({cell.epochs for cell in self.cells[row] if cell.epochs is not None})
        record["epochs"] = epochs[0] if len(epochs) == 1 else None
        record |= {"recipe": self.section.recipe, "shots": self.section.shots, "protocol": self.section.protocol}
        record |= {"backbone": self.section.backbone.name, "pretrained": self.section.backbone.pretrained}
        for what, found in zip(("paper", "own_publication"), self.published(row), strict=True):
            values = found.printed.model_dump() if found else {}
            record |= {f"{what}_{column}": values.get(column) for column in ("base", "novel", "hm")}
        record["deviations"] = "; ".join(self.deviations.by_row[row])
        record["notes"] = "; ".join(self.footnotes(row))
        return record

    @property
    def pair_records(self) -> list[dict[str, Any]]:
        """One flat record per pair of methods and column."""
        return [
            {
                "column": self.name(one.column),
                "first": one.first.method,
                "first_variant": one.first.variant,
                "second": one.second.method,
                "second_variant": one.second.variant,
                "difference": round(one.test.difference, 6),
                "better": one.test.better,
                "worse": one.test.worse,
                "results": one.test.n,
                "p": float(f"{one.test.p:.6g}"),
                "p_holm": float(f"{one.corrected:.6g}"),
                "differs": one.differs,
            }
            for pairs in self.pairs.values()
            for one in pairs
        ]

    def name(self, column: str) -> str:
        """A column's name in a file."""
        return f"accuracy_{column}" if self.section.protocol == "few-shot" else column


def make_comparison(results: Sequence[CellResult], refused: Mapping[Row, str]) -> Comparison:
    """Compare the methods of one grid."""
    sections = by_section(results)
    if len(sections) != 1:
        raise ConfigError(f"Methods are compared within one table, but these results belong to {len(sections)} tables.")
    section, cells = next(iter(sections.items()))
    by_row: dict[Row, list[CellResult]] = {}
    for cell in cells:
        by_row.setdefault(Row(cell.method, cell.variant), []).append(cell)
    summary = summarise(section, cells)
    return Comparison(section, summary, {row: tuple(found) for row, found in by_row.items()}, dict(refused))


def highest(values: Mapping[Row, float]) -> list[Row]:
    """The rows with the highest value, in their order; values that differ by rounding only are equal."""
    most = max(values.values())
    return [row for row, value in values.items() if most - value < NOISE]


def _short(value: float) -> float:
    """A number with at most three decimals, as an integer if it is one."""
    return int(value) if value == int(value) else round(value, 3)


def known(method: str) -> type[Method] | None:
    """A method's class, or None if no such method is registered."""
    try:
        return get_method(method)
    except ConfigError:
        return None


def label(row: Row) -> str:
    """A row's name."""
    return f"{row.method}, {row.variant}" if row.variant else row.method
