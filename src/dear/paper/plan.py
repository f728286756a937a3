"""The plan of the paper: the cells that each table and figure needs, on the embedded world or on the real data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dear.data.catalog import declarations
from dear.data.families import IMAGENETS
from dear.errors import ConfigError, did_you_mean
from dear.evaluation.cells import Cell, make_cells
from dear.evaluation.published import data_sets, published_table
from dear.evaluation.results import CellResult, Protocol
from dear.methods.registry import get_method, list_methods
from dear.world.catalog import DATASETS

SHOTS = 16
ALSO = {"figure-5": "figure-4"}
"""Figures that are made together with another one."""
FEW_SHOTS = (1, 2, 4, 8, 16)
MASKS = ("all_generalization", "all_mixed")
LOSSES: tuple[dict[str, Any], ...] = ({"lambda_reg": 0, "lambda_fusion": 0}, {"lambda_fusion": 0})
THRESHOLDS = (10, 20, 30, 40)
ATTRIBUTE_COUNTS = (3, 7)
ALWAYS = ("zero_shot", "dear")
"""The methods that every report includes."""
WITH_ROLES = ("dear", "role_gains")
"""The methods that use a role map."""
PRINTED = ("base-to-novel", "cross-dataset", "domain")
"""The paper's tables of several methods."""


@dataclass(frozen=True)
class Sets:
    """The data sets of a paper: those of Table 2, the one that represents ImageNet, and its shifted variants."""

    learned: tuple[str, ...]
    source: str
    shifted: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Every one of them, once."""
        return tuple(dict.fromkeys((*self.learned, self.source, *self.shifted)))

    @property
    def others(self) -> tuple[str, ...]:
        """The data sets of Table 2 without the source."""
        return tuple(name for name in self.learned if name != self.source)


MINI = Sets(
    learned=tuple(name for name in DATASETS if not name.startswith("world-broad-")),
    source="world-broad",
    shifted=tuple(name for name in DATASETS if name.startswith("world-broad-")),
)
FULL = Sets(
    learned=data_sets("base-to-novel"),
    source=IMAGENETS[0],
    shifted=IMAGENETS[1:],
)


@dataclass(frozen=True)
class Experiment:
    """One table or figure: the cells that it needs, the missing data sets, and why it cannot run (or "")."""

    key: str
    title: str
    cells: tuple[Cell, ...] = ()
    lacks: tuple[str, ...] = ()
    """Data sets that are missing."""
    blocked: str = ""


@dataclass(frozen=True)
class Scale:
    """The extent of a paper: seeds, shots of the few-shot curves, methods, and the role map of all cells."""

    seeds: tuple[int, ...] = (1, 2, 3)
    few_shots: tuple[int, ...] = FEW_SHOTS
    roles: str | None = None
    has_entropies: bool = True
    """Whether the role map records entropies, so that it can be cut at other thresholds."""
    methods: tuple[str, ...] = ALWAYS
    """Methods of Tables 2 to 4: plain CLIP, DeAR and perhaps others."""
    as_printed: bool = False
    """Whether each table has only those other methods that the paper's own table lists."""

    def others(self, table: str) -> list[str]:
        """The methods of a table besides plain CLIP and DeAR."""
        named = {row.method for row in published_table(table).rows}
        return [name for name in self.methods if name not in ALWAYS and (not self.as_printed or name in named)]


def plan_paper(sets: Sets, scale: Scale | None = None, present: Iterable[str] | None = None) -> tuple[Experiment, ...]:
    """Plan every table and figure in the paper's order; shared cells are equal objects and are computed once."""
    scale = scale or Scale()
    there = frozenset(sets.all if present is None else present)
    learned = [name for name in sets.learned if name in there]
    none = "" if learned else "all of its data sets are missing"
    no_source = "" if sets.source in there else f"{sets.source} is missing"
    lacks = tuple(name for name in sets.learned if name not in there)
    adapted = _base_to_novel(learned, scale)
    plain = _base_to_novel(learned, scale, method="zero_shot")
    peers = [cell for name in scale.others("base-to-novel") for cell in _base_to_novel(learned, scale, method=name)]
    masks = [cell for mask in MASKS for cell in _base_to_novel(learned, scale, mask=mask)]
    losses = [cell for choices in LOSSES for cell in _base_to_novel(learned, scale, **choices)]
    at_source = [sets.source] if not no_source else []
    of_source = [cell for cell in adapted if cell.data == sets.source]
    cuts = [cell for percent in THRESHOLDS for cell in _base_to_novel(at_source, scale, threshold=percent)]
    roles = _base_to_novel(at_source, scale, mask="shuffled")
    roles += [cell for count in ATTRIBUTE_COUNTS for cell in _base_to_novel(at_source, scale, attributes=count)]
    gains = _base_to_novel(learned, scale, method="role_gains")
    curves = _few_shot(learned, scale)
    searched = [cell for cell in curves if (cell.method, cell.data, cell.shots) == ("dear", sets.source, SHOTS)][:1]
    no_cuts = "" if scale.has_entropies else "the role map records no entropies to cut at another threshold"

    def one(
        key: str, title: str, cells: Sequence[Cell], blocked: str = "", lacking: tuple[str, ...] = ()
    ) -> Experiment:
        return Experiment(key, title, () if blocked else tuple(cells), lacking, blocked)

    return (
        one("table-2", "Table 2: base-to-novel generalisation", [*plain, *peers, *adapted], none, lacks),
        _transfer("table-3", "Table 3: cross-dataset", "cross-dataset", sets, sets.others, there, scale),
        _transfer("table-4", "Table 4: domain generalisation", "domain", sets, sets.shifted, there, scale),
        one("table-5", "Table 5: mask strategies", [*masks, *adapted], none, lacks),
        one("table-6", "Table 6: parts of the loss", [*losses, *adapted], none, lacks),
        one("figure-3", "Figure 3: retrieval by attribute", searched, no_source or _no_search(searched)),
        one("figure-4", "Figures 4 and 5: few-shot learning", curves, none, lacks),
        one("supplement-table-2", "Supplement, Table 2: roles of heads", ()),
        one("supplement-table-3", "Supplement, Table 3: seeds", adapted, none, lacks),
        one("supplement-table-5", "Supplement, Table 5: inference strategy", adapted, none, lacks),
        one("supplement-table-6-left", "Supplement, Table 6 (left): entropy threshold", cuts, no_source or no_cuts),
        one("supplement-table-6-right", "Supplement, Table 6 (right): roles", [*roles, *of_source], no_source),
        one("supplement-figure-2", "Supplement, Figure 2: fusion weights", adapted, none, lacks),
        one("role-gains", "Beside it: role gains by data set (ours, not the paper's)", gains, none, lacks),
        one("mean-ablation", "Supplement, A.3: mean-ablation of heads and layers", (), no_source),
    )


def chosen(experiments: Sequence[Experiment], only: Sequence[str] | None) -> tuple[Experiment, ...]:
    """Select experiments by their keys, in the paper's order; None selects all."""
    known = [one.key for one in experiments]
    wanted = {ALSO.get(key, key) for key in only or known}
    for key in sorted(wanted - set(known)):
        raise ConfigError(f"The paper has no {key!r}.{did_you_mean(key, known) or ' Known: ' + ', '.join(known) + '.'}")
    return tuple(one for one in experiments if one.key in wanted)


def methods_of_the_paper() -> tuple[str, ...]:
    """Every registered method that the paper's Tables 2 to 4 list."""
    named = (row.method for table in PRINTED for row in published_table(table).rows)
    there = list_methods()
    return tuple(dict.fromkeys((*ALWAYS, *(name for name in named if name in there))))


def cells_by_protocol(experiments: Iterable[Experiment]) -> dict[Protocol, list[Cell]]:
    """Every cell that any experiment needs, once."""
    found: dict[Protocol, list[Cell]] = {}
    for cell in dict.fromkeys(cell for experiment in experiments for cell in experiment.cells):
        found.setdefault(cell.protocol, []).append(cell)
    return found


def identity(one: Cell | CellResult) -> tuple[str, str, str, str, int, int]:
    """The key that a cell and its result share."""
    return one.protocol, one.method, one.variant, one.data, one.seed, one.shots


def results_of(experiment: Experiment, results: Iterable[CellResult]) -> list[CellResult]:
    """The available results of an experiment's cells."""
    found = {identity(result): result for result in results}
    return [found[identity(cell)] for cell in experiment.cells if identity(cell) in found]


def steps_of(cell: Cell, epochs: int, batch: int = 16) -> int:
    """Number of training steps of a cell, if each class has enough images for its shots."""
    recipe = get_method(cell.method).recipe
    if not recipe.epochs and not recipe.steps_per_shot:  # it looks at its images once
        return 0
    classes = _classes(cell.data)
    learned = -(-classes // 2) if cell.half == "base" else classes
    return epochs * -(-learned * cell.shots // batch)


def _classes(name: str) -> int:
    return len(DATASETS[name].classes) if name in DATASETS else declarations()[name].classes or 0


def _base_to_novel(data: Sequence[str], scale: Scale, *, method: str = "dear", **choices: Any) -> list[Cell]:
    return _cells("base-to-novel", data, scale, method, (SHOTS,), scale.seeds, choices=choices)


def _few_shot(data: Sequence[str], scale: Scale) -> list[Cell]:
    """Curves; plain CLIP learns nothing, so one number of shots is enough for it."""
    plain = _cells("few-shot", data, scale, "zero_shot", scale.few_shots[-1:], scale.seeds)
    return [*plain, *_cells("few-shot", data, scale, "dear", scale.few_shots, scale.seeds)]


def _transfer(
    key: str,
    title: str,
    protocol: Protocol,
    sets: Sets,
    targets: Sequence[str],
    there: frozenset[str],
    scale: Scale,
) -> Experiment:
    lacks = tuple(name for name in (sets.source, *targets) if name not in there)
    found = [name for name in targets if name in there]
    if sets.source in lacks or not found:
        absent = sets.source if sets.source in lacks else "each of its targets"
        return Experiment(key, title, lacks=lacks, blocked=f"{absent} is missing")
    cells: list[Cell] = []
    for method in ("zero_shot", *scale.others(protocol), "dear"):
        cells += _cells(protocol, found, scale, method, (SHOTS,), scale.seeds, source=sets.source)
    return Experiment(key, title, tuple(cells), lacks)


def _cells(
    protocol: Protocol,
    data: Sequence[str],
    scale: Scale,
    method: str,
    shots: Sequence[int],
    seeds: Sequence[int],
    *,
    source: str | None = None,
    choices: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """Cells of one method; nothing is random in plain CLIP, so one seed is enough for it."""
    if not data:
        return []
    shared = {"roles": scale.roles} if scale.roles and method in WITH_ROLES else {}
    chosen = {name: [value] for name, value in {**shared, **(choices or {})}.items()}
    seeds = seeds[:1] if method == "zero_shot" else seeds
    return make_cells(protocol, data, methods=[method], seeds=seeds, shots=shots, source=source, choices=chosen)


def _no_search(searched: Sequence[Cell]) -> str:
    return "" if searched else f"no adapter is trained on {SHOTS} shots of all classes"
