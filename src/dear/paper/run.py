"""The whole paper in one resumable run: look what is there, run what is not done, measure, write the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.catalog import declarations
from dear.data.open import open_dataset
from dear.engine.workspace import Workspace
from dear.errors import ConfigError, DataError, DearError, RoleMapError, option
from dear.evaluation.cell_run import CELLS, RUNS, done_before
from dear.evaluation.cells import Cell
from dear.evaluation.eta import RemainingTime
from dear.evaluation.grid import OLD, run_grid
from dear.evaluation.results import CellResult, Protocol
from dear.evaluation.tables import to_csv, to_markdown
from dear.methods.dear.roles import roles_for
from dear.methods.recipe import Case, resolve
from dear.methods.registry import get_method
from dear.model.load import load
from dear.options.fields import IfExists
from dear.options.parts import Bench, Training
from dear.paper.measures import Gallery, cached_ablation, cached_retrieval, dataset_gallery, world_gallery
from dear.paper.page import FIGURES, PAGE, RESULTS, TABLES, Findings, Kind, write_paper
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
from dear.progress.stages import duration, stage
from dear.roles.known import AUTO
from dear.roles.rolemap import LAST_LAYERS, RoleMap, shipped_maps
from dear.storage.files import write_atomic
from dear.storage.locks import check_ours, held, remove_leftovers, remove_ours
from dear.world.catalog import DATASETS

GRIDS, MEASURES = "grids", "measures"
GUESSED = {"mini": 0.16, "full": 0.25}
"""Seconds per update, tests included, before anything has been measured: the world on one core, ViT-B/16 on a GPU."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Order:
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
    device: str = "cpu"

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
        return self.train.epochs or resolve(method.recipe, method.special, self.train.recipe, case).epochs

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
            threads=self.threads or max(1, torch.get_num_threads() // self.jobs),
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


def survey(order: Order, find: Callable[[Order, Cell], CellResult | None] | None = None) -> Survey:
    """Look, and compute nothing; `find` says what a cell found before, by default as its file alone tells."""
    missing = missing_sets(order.sets, order.data_root)
    roles = _expected_roles(order)
    named = methods_of_the_paper() if order.methods is None else order.methods
    scale = Scale(
        order.seeds,
        order.few_shots,
        order.roles,
        roles is None or _has_entropies(roles),
        methods=named,
        as_printed=order.methods is None,
    )
    there = [name for name in order.sets.all if name not in missing]
    experiments = chosen(plan_paper(order.sets, scale, there), order.only)
    cells = [cell for found in cells_by_protocol(experiments).values() for cell in found]
    found = {identity(cell): (find or _on_file)(order, cell) for cell in cells}
    done = {key: result for key, result in found.items() if result is not None}
    return Survey(experiments, missing, done, estimate(order, cells, done.values()))


def estimate(order: Order, cells: Sequence[Cell], done: Iterable[CellResult]) -> Cost:
    """The cost of what is left, from what the cells that are done took."""
    finished = list(done)
    keys = {identity(result) for result in finished}
    trained = [result for result in finished if result.steps]
    a_step = sum(one.seconds for one in trained) / sum(one.steps for one in trained) if trained else 0.0
    return Cost(
        cells=len(cells),
        done=len(finished),
        steps_left=sum(steps_of(cell, order.epochs_of(cell)) for cell in cells if identity(cell) not in keys),
        seconds_a_step=a_step or GUESSED[order.kind],
        measured=bool(a_step),
        jobs=order.jobs,
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


def describe_plan(order: Order, looked: Survey) -> str:
    """The plan as text: every table and figure, how many of its cells are done, and what is missing."""
    lines = []
    for one in looked.experiments:
        done = sum(identity(cell) in looked.done for cell in one.cells)
        state = f"{done} of {len(one.cells)} cells done" if one.cells else "no cells of its own"
        state = f"cannot run: {one.blocked}" if one.blocked else state
        lacks = f"; without {', '.join(one.lacks)}" if one.lacks and not one.blocked else ""
        lines.append(f"{one.title} ({one.key}): {state}{lacks}")
    lines += [f"missing {name}: {how}" for name, how in looked.missing.items()]
    if _expected_roles(order) is None:
        lines.append(
            f"missing: a role map for {order.clip}; make one with 'dear roles discover' and give it by "
            f"{option(roles='MAP')}"
        )
    return "\n".join([*lines, looked.cost.sentence()])


def make_paper(order: Order, say: Say = lambda remark: None, *, if_exists: IfExists = "resume") -> Path:
    """Run everything that is not done, and write the report; returns the page's path.

    Whatever can be refused is refused before anything is written or, with `overwrite`, removed.
    """
    resume, overwrite = if_exists == "resume", if_exists == "overwrite"
    check_ours(order.out, "paper", resume=resume, overwrite=overwrite)
    clip = load_clip(order.clip, order.pretrained, order.device)
    roles = _roles(order, clip)
    missing_sets(order.sets, order.data_root)
    with held(order.out, "paper"):
        check_ours(order.out, "paper", resume=resume, overwrite=overwrite)  # another one may just have ended
        return _run_held(order, clip, roles, say, overwrite=overwrite)


def _run_held(order: Order, clip: FrozenClip, roles: RoleMap, say: Say, *, overwrite: bool) -> Path:
    """Run a paper in a folder that is held."""
    _prepare(order.out, overwrite=overwrite)
    workspace = Workspace()
    looked = survey(order, lambda order, cell: done_before(cell, order.options(cell.protocol), workspace))
    for name, how in looked.missing.items():
        say(f"missing {name}: {how}")
    say(looked.cost.sentence())
    results: list[CellResult] = []
    refused: dict[str, str] = {}
    found = Findings(
        kind=order.kind,
        sets=order.sets,
        experiments=looked.experiments,
        results=results,
        setting=order.sentence(),
        roles=roles,
        missing=looked.missing,
        refused=refused,
    )
    planned = cells_by_protocol(looked.experiments)
    waiting = [cell for cells in planned.values() for cell in cells if identity(cell) not in looked.done]
    pace = RemainingTime((cell.method for cell in waiting), order.jobs)
    with stage("cells", looked.cost.cells, done=looked.cost.done, outer=True) as advance:

        def after_cell(result: CellResult) -> float | None:
            pace.add(result.method, result.seconds)
            advance(looked.cost.cells - pace.waiting, left=pace.left())
            return pace.left() if pace.waiting else None

        for protocol, cells in planned.items():
            results += _run_protocol(order, protocol, cells, looked, workspace, say, refused, after_cell)
            write_paper(order.out, found)
    write_paper(order.out, _measured(order, clip, roles, found, say))
    shutil.rmtree(order.out / OLD, ignore_errors=True)
    return order.out / PAGE


def _prepare(out: Path, *, overwrite: bool) -> None:
    """Starting over sets a paper's parts, but no cache, aside until the new one is whole."""
    for part in (MEASURES, TABLES, FIGURES):
        remove_leftovers(out / part)
    if not overwrite:
        return
    remove_ours(out, (OLD,))
    (out / OLD).mkdir()
    for name in (PAGE, RESULTS, GRIDS, MEASURES, TABLES, FIGURES):
        if (out / name).exists():
            (out / name).replace(out / OLD / name)


def _run_protocol(
    order: Order,
    protocol: Protocol,
    cells: Sequence[Cell],
    looked: Survey,
    workspace: Workspace,
    say: Say,
    refused: dict[str, str],
    count: Callable[[CellResult], float | None],
) -> list[CellResult]:
    """What is done is there already; the rest runs, several at a time. A method that refuses is put into `refused`."""
    options = order.options(protocol)
    before = [looked.done[identity(cell)] for cell in cells if identity(cell) in looked.done]
    rest = [cell for cell in cells if identity(cell) not in looked.done]

    def tell(done: int, result: CellResult) -> None:
        scores = ", ".join(f"{one.data} {one.half} {result.reading(one):.1f}" for one in result.scores[:3])
        name = f"{result.method} {result.variant}".strip()
        left = count(result)
        place = f"{protocol} {len(before) + done}/{len(cells)}{'' if left is None else f', {duration(left)} left'}"
        say(f"[{place}] {name}, seed {result.seed}, {result.shots} shots: {scores}")
        if result.unreadable or result.skipped:
            say(f"  unreadable images: {result.unreadable} in tests, counted as wrong; {result.skipped} in training")

    found, why = list(before), dict[Cell, str]()
    if rest:
        options = options.model_copy(update={"jobs": min(order.jobs, len(rest))})
        found += run_grid(rest, options, workspace=workspace, on_cell=tell, refused=why)
    if own := [sentence for cell, sentence in why.items() if cell.method in ALWAYS]:
        raise ConfigError(own[0])
    refused.update({cell.method: sentence for cell, sentence in why.items()})
    by_identity = {identity(result): result for result in found}
    ordered = [by_identity[identity(cell)] for cell in cells if identity(cell) in by_identity]
    write_atomic(options.out / "table.csv", to_csv(ordered).encode())
    write_atomic(options.out / "table.md", to_markdown(ordered).encode())
    return ordered


def _measured(order: Order, clip: FrozenClip, roles: RoleMap, found: Findings, say: Say) -> Findings:
    """The findings with searches and ablations, where the data set they need is there."""
    runs = {one.key: one for one in found.experiments if not one.blocked}
    if not {"figure-3", "mean-ablation"} & runs.keys():
        return found
    gallery = _gallery(order)
    folder = order.out / MEASURES
    if "mean-ablation" in runs:
        say(f"mean-ablation on {len(gallery.images):,} images")
        ablation = cached_ablation(folder / "ablation.json", clip, roles, gallery, workers=order.workers)
        found = replace(found, ablation=ablation)
    if "figure-3" in runs:
        say(f"searches among {len(gallery.images):,} images")
        cell = runs["figure-3"].cells[0]
        model = load(order.options(cell.protocol).out / RUNS / cell.slug, clip)
        retrieval = cached_retrieval(folder / "retrieval.json", model, gallery, workers=order.workers)
        found = replace(found, retrieval=retrieval, gallery=gallery)
    return found


def _gallery(order: Order) -> Gallery:
    if order.kind == "mini":
        return world_gallery(order.images)
    return dataset_gallery(open_dataset(order.sets.source, order.data_root), order.images)


def _on_file(order: Order, cell: Cell) -> CellResult | None:
    """A cell's result if its file seems to be of the same setting; only loading the backbone would make it sure."""
    path = order.options(cell.protocol).out / CELLS / f"{cell.slug}.json"
    try:
        found = CellResult.read(path)
    except (OSError, UnicodeDecodeError, DearError):
        return None
    same = found.cached_views == order.cached_views and found.epochs in (None, order.epochs_of(cell))
    return found if same and identity(found) == identity(cell) else None


def _roles(order: Order, clip: FrozenClip) -> RoleMap:
    first = max(1, clip.geometry.vision_layers - LAST_LAYERS + 1)
    return roles_for(clip, order.roles, first_layer=first)


def _expected_roles(order: Order) -> RoleMap | None:
    """The role map that a run will use, as far as one can tell without loading the backbone."""
    if order.roles not in (None, AUTO):
        return RoleMap.load(order.roles)
    wanted = order.clip.removesuffix("-quickgelu")
    try:
        maps = shipped_maps()
    except RoleMapError:
        return None
    return next((one for one in maps if (one.provenance.model or "").removesuffix("-quickgelu") == wanted), None)


def _has_entropies(roles: RoleMap) -> bool:
    return all(head.entropy is not None and head.shares is not None for head in roles.heads)
