"""What a paper asks for, what of it is done, what is missing, and how long the rest takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from dear.data.catalog import declarations
from dear.data.open import open_dataset
from dear.errors import ConfigError, DataError, DearError, RoleMapError, option
from dear.evaluation.cell_run import CELLS
from dear.evaluation.cells import Cell
from dear.evaluation.results import CellResult, Protocol
from dear.evaluation.shared_model import GRIDS
from dear.methods.recipe import Case
from dear.methods.registry import get_method
from dear.methods.tuned import recipe_for
from dear.options.parts import Bench, Training
from dear.paper.page import Kind
from dear.paper.plan import (
    ALWAYS,
    FEW_SHOTS,
    FULL,
    MINI,
    SHOTS,
    Experiment,
    Scale,
    Sets,
    cells_by_protocol,
    chosen,
    identity,
    methods_of_the_paper,
    plan_paper,
    steps_of,
)
from dear.roles.known import AUTO
from dear.roles.rolemap import RoleMap, shipped_maps
from dear.world.catalog import DATASETS

MEASURES = "measures"


GUESSED = {"mini": 0.16, "full": 0.25}
"""Seconds per update, tests included, before anything has been measured: the world on one core, ViT-B/16 on a GPU."""


@dataclass(frozen=True)
class PaperRequest:
    """What was asked for. The defaults are those of the mini paper."""

    out: Path
    kind: Kind = "mini"
    clip: str = "world"
    pretrained: str | None = None
    data_root: Path | None = None
    roles: str | None = None
    methods: tuple[str, ...] | None = ALWAYS
    """Methods of Tables 2 to 4; None: all that the paper's own tables name."""
    seeds: tuple[int, ...] = (1, 2, 3)
    few_shots: tuple[int, ...] = FEW_SHOTS
    only: tuple[str, ...] | None = None
    """Tables and figures by their keys, such as "table-2"; None: all."""
    train: Training = field(default_factory=Training)
    images: int = 1000
    """Images for the searches and the ablations."""
    cache: Path | bool = True
    """Folder for the frozen layers' outputs, by default OUT/cache; False to compute them every time."""
    jobs: int = 2
    workers: int = 2
    threads: int | None = None
    """Threads of each cell; by default the cores shared by the jobs."""
    device: str | None = "cpu"
    on: str | None = None
    """The cluster that runs the cells; None for this machine."""
    gpus: float | None = None
    cells: str | None = None
    """Share of the cells to run, such as "3/20"; None: all, and then the report."""

    @property
    def cached_views(self) -> int:
        """Cached views per image; those of the mini paper unless a number is set."""
        usual = 4 if self.kind == "mini" else 0
        return usual if self.train.cached_views is None else self.train.cached_views

    @property
    def epochs(self) -> int:
        """Epochs of the method that the paper is about."""
        return self.train.epochs or get_method("dear").recipe.epochs

    @property
    def sets(self) -> Sets:
        """The data sets of this kind of paper."""
        return MINI if self.kind == "mini" else FULL

    def epochs_of(self, cell: Cell) -> int:
        """Epochs of a cell's method."""
        method = get_method(cell.method)
        case = Case(cell.protocol, cell.data, cell.shots)
        return self.train.epochs or recipe_for(method, self.train.recipe, case).epochs

    def options(self, protocol: Protocol) -> Bench:
        """What all cells of a protocol share; each protocol has its own folder, all use one cache."""
        cache = self.out / "cache" if self.cache is True else self.cache or None
        return Bench(
            **{name: getattr(self.train, name) for name in Training.model_fields}
            | {"roles": None, "cached_views": self.cached_views, "cache": cache, "no_cache": cache is None},
            out=self.out / GRIDS / protocol,
            clip=self.clip,
            pretrained=self.pretrained,
            data_root=self.data_root,
            device=self.device,
            workers=self.workers,
            threads=self.threads if self.on else self.threads or max(1, torch.get_num_threads() // self.jobs),
            on=self.on,
            gpus=self.gpus,
            cells=self.cells,
            resume=True,
        )

    def sentence(self) -> str:
        """How everything is trained, in one sentence."""
        views = f"{self.cached_views} cached views per image" if self.cached_views else "new views in every epoch"
        clip = " ".join(filter(None, (self.clip.rpartition("/")[2], self.pretrained)))
        seeds = ", ".join(map(str, self.seeds))
        alike = self.methods == ALWAYS or self.train.epochs
        number = f"{self.epochs} epoch{'' if self.epochs == 1 else 's'}"
        epochs = number if alike else "epochs as each method's recipe says"
        return (
            f"Backbone {clip}; seed{'s' if len(self.seeds) > 1 else ''} {seeds}; "
            f"{SHOTS} shots unless said otherwise, {epochs}, {views}."
        )


class Cost(NamedTuple):
    """How much there is to do, and how long it will take."""

    cells: int
    done: int
    steps_left: int
    seconds_a_step: float
    measured: bool
    jobs: int

    @property
    def minutes(self) -> float:
        """Of trainings and tests still to be run."""
        return self.steps_left * self.seconds_a_step / self.jobs / 60

    def sentence(self) -> str:
        """For the person who waits."""
        how = "as the cells that are done took" if self.measured else "a guess until some cells are done"
        left = f"{self.cells - self.done} to do, about {self.minutes:.0f} min with {self.jobs} at a time ({how})"
        return f"{self.cells} cells: {self.done} done, {left if self.done < self.cells else 'none to do'}"


@dataclass(frozen=True)
class Survey:
    """The plan with what is there, what is missing and what is done."""

    experiments: tuple[Experiment, ...]
    missing: dict[str, str]
    done: dict[tuple[str, str, str, str, int, int], CellResult]
    cost: Cost


def survey(request: PaperRequest, find: Callable[[PaperRequest, Cell], CellResult | None] | None = None) -> Survey:
    """Look, and compute nothing; `find` returns the earlier result of a cell, by default the one in its file."""
    missing = missing_sets(request.sets, request.data_root)
    roles = _expected_roles(request)
    named = methods_of_the_paper() if request.methods is None else request.methods
    scale = Scale(
        request.seeds,
        request.few_shots,
        request.roles,
        roles is None or _has_entropies(roles),
        methods=named,
        as_printed=request.methods is None,
    )
    there = [name for name in request.sets.all if name not in missing]
    experiments = chosen(plan_paper(request.sets, scale, there), request.only)
    cells = [cell for found in cells_by_protocol(experiments).values() for cell in found]
    found = {identity(cell): (find or _on_file)(request, cell) for cell in cells}
    done = {key: result for key, result in found.items() if result is not None}
    return Survey(experiments, missing, done, estimate(request, cells, done.values()))


def estimate(request: PaperRequest, cells: Sequence[Cell], done: Iterable[CellResult]) -> Cost:
    """The cost of what is left, from what the cells that are done took."""
    finished = list(done)
    keys = {identity(result) for result in finished}
    trained = [result for result in finished if result.steps]
    a_step = sum(one.seconds for one in trained) / sum(one.steps for one in trained) if trained else 0.0
    return Cost(
        cells=len(cells),
        done=len(finished),
        steps_left=sum(steps_of(cell, request.epochs_of(cell)) for cell in cells if identity(cell) not in keys),
        seconds_a_step=a_step or GUESSED[request.kind],
        measured=bool(a_step),
        jobs=request.jobs,
    )


def missing_sets(sets: Sets, root: Path | None) -> dict[str, str]:
    """The data sets that cannot be read, and what to do about each."""
    found = {}
    for name in sets.all:
        if name in DATASETS:
            continue
        if root is None:
            raise ConfigError(
                f"The full paper reads its data sets below a folder: name it, {option(data_root='FOLDER')}."
            )
        one = declarations()[name]
        try:
            open_dataset(name, root)
        except DataError as error:
            there = (root / one.folder).is_dir()
            found[name] = str(error) if there else f"put it in {root / one.folder}. {one.how_to_get}"
    return found


def describe_plan(request: PaperRequest, looked: Survey) -> str:
    """The plan as text: every table and figure, how many of its cells are done, and what is missing."""
    lines = []
    for one in looked.experiments:
        done = sum(identity(cell) in looked.done for cell in one.cells)
        state = f"{done} of {len(one.cells)} cells done" if one.cells else "no cells of its own"
        state = f"cannot run: {one.blocked}" if one.blocked else state
        lacks = f"; without {', '.join(one.lacks)}" if one.lacks and not one.blocked else ""
        lines.append(f"{one.title} ({one.key}): {state}{lacks}")
    lines += [f"missing {name}: {how}" for name, how in looked.missing.items()]
    if _expected_roles(request) is None:
        lines.append(
            f"missing: a role map for {request.clip}; make one with 'dear roles discover' and give it by "
            f"{option(roles='MAP')}"
        )
    return "\n".join([*lines, looked.cost.sentence()])


def _on_file(request: PaperRequest, cell: Cell) -> CellResult | None:
    """A cell's result if its file seems to be of the same setting; only loading the backbone would make it sure."""
    path = request.options(cell.protocol).out / CELLS / f"{cell.slug}.json"
    try:
        found = CellResult.read(path)
    except (OSError, UnicodeDecodeError, DearError):
        return None
    same = found.cached_views == request.cached_views and found.epochs in (None, request.epochs_of(cell))
    return found if same and identity(found) == identity(cell) else None


def _expected_roles(request: PaperRequest) -> RoleMap | None:
    """The role map that a run will use, as far as it is known without loading the backbone."""
    if request.roles not in (None, AUTO):
        return RoleMap.load(request.roles)
    wanted = request.clip.removesuffix("-quickgelu")
    try:
        maps = shipped_maps()
    except RoleMapError:
        return None
    return next((one for one in maps if (one.provenance.model or "").removesuffix("-quickgelu") == wanted), None)


def _has_entropies(roles: RoleMap) -> bool:
    return all(head.entropy is not None and head.shares is not None for head in roles.heads)
