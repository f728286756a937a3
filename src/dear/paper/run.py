"""The whole paper in one resumable run: look what is there, run what is not done, measure, write the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.cluster.connection import connected
from dear.data.families import WORLD
from dear.data.open import open_dataset
from dear.engine.ranks import local_device
from dear.engine.workspace import Workspace
from dear.errors import ConfigError, RoleMapError, option
from dear.evaluation.cell_run import RUNS, done_before
from dear.evaluation.cells import Cell
from dear.evaluation.eta import RemainingTime
from dear.evaluation.grid import OLD, locked_for, own_share, run_grid
from dear.evaluation.results import CellResult, Protocol
from dear.evaluation.shared_model import GRIDS
from dear.evaluation.tables import to_csv, to_markdown
from dear.methods.dear.roles import roles_for
from dear.model.load import load
from dear.options.fields import IfExists
from dear.paper.measures import Gallery, cached_ablation, cached_retrieval, dataset_gallery, world_gallery
from dear.paper.page import FIGURES, PAGE, RESULTS, TABLES, Findings, write_paper
from dear.paper.plan import (
    ALWAYS,
    cells_by_protocol,
    identity,
)
from dear.paper.survey import MEASURES, PaperRequest, Survey, missing_sets, survey
from dear.progress.stages import duration, stage
from dear.roles.known import is_chosen, shipped_map
from dear.roles.rolemap import LAST_LAYERS, RoleMap
from dear.storage.files import write_atomic
from dear.storage.locks import check_ours, remove_leftovers, remove_ours

Say = Callable[[str], None]


def make_paper(request: PaperRequest, say: Say = lambda remark: None, *, if_exists: IfExists = "resume") -> Path:
    """Run everything that is not done, and write the report; returns the page's path; a share has no report.

    Whatever can be refused is refused before anything is written or, with `overwrite`, removed.
    """
    resume, overwrite = if_exists == "resume", if_exists == "overwrite"
    check_ours(request.out, "paper", resume=resume, overwrite=overwrite)
    clip = load_clip(request.clip, request.pretrained, local_device(request.device))
    roles = _roles(request, clip)
    missing_sets(request.sets, request.data_root)
    with connected(request.on) if request.on else nullcontext(), locked_for(request.cells, request.out, "paper"):
        check_ours(request.out, "paper", resume=resume, overwrite=overwrite)  # another one may just have ended
        return _run_locked(request, clip, roles, say, overwrite=overwrite)


def _run_locked(request: PaperRequest, clip: FrozenClip, roles: RoleMap, say: Say, *, overwrite: bool) -> Path:
    """Run a paper in a locked folder."""
    _prepare(request.out, overwrite=overwrite)
    workspace = Workspace()
    looked = survey(request, lambda request, cell: done_before(cell, request.options(cell.protocol), workspace))
    for name, how in looked.missing.items():
        say(f"missing {name}: {how}")
    say(looked.cost.sentence())
    results: list[CellResult] = []
    refused: dict[str, str] = {}
    found = Findings(
        kind=request.kind,
        sets=request.sets,
        experiments=looked.experiments,
        results=results,
        setting=request.sentence(),
        roles=roles,
        assigned_heads=request.clip == WORLD,
        missing=looked.missing,
        refused=refused,
    )
    planned = _share_of_each(cells_by_protocol(looked.experiments), request.cells)
    waiting = [cell for cells in planned.values() for cell in cells if identity(cell) not in looked.done]
    pace = RemainingTime((cell.method for cell in waiting), request.jobs)
    with stage("cells", looked.cost.cells, done=looked.cost.done, outer=True) as advance:

        def after_cell(result: CellResult) -> float | None:
            pace.add(result.method, result.seconds + (result.encoding_seconds or 0.0))
            advance(looked.cost.cells - pace.waiting, left=pace.left())
            return pace.left() if pace.waiting else None

        for protocol, cells in planned.items():
            results += _run_protocol(request, protocol, cells, looked, workspace, say, refused, after_cell)
            if request.cells is None:
                write_paper(request.out, found)
    if request.cells is not None:
        say(f"share {request.cells}: {len(results)} cells done; after all shares, add {option(resume=True)} instead.")
        return request.out
    write_paper(request.out, _measured(request, clip, roles, found, say))
    shutil.rmtree(request.out / OLD, ignore_errors=True)
    return request.out / PAGE


def _share_of_each(planned: dict[Protocol, list[Cell]], share: str | None) -> dict[Protocol, list[Cell]]:
    """The cells of a share, by protocol."""
    own = set(own_share([cell for cells in planned.values() for cell in cells], share))
    return {protocol: [cell for cell in cells if cell in own] for protocol, cells in planned.items()}


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
    request: PaperRequest,
    protocol: Protocol,
    cells: Sequence[Cell],
    looked: Survey,
    workspace: Workspace,
    say: Say,
    refused: dict[str, str],
    count: Callable[[CellResult], float | None],
) -> list[CellResult]:
    """What is done is there already; the rest runs, several at a time. A method that refuses is put into `refused`."""
    options = request.options(protocol)
    before = [looked.done[identity(cell)] for cell in cells if identity(cell) in looked.done]
    rest = [cell for cell in cells if identity(cell) not in looked.done]

    def report(done: int, result: CellResult) -> None:
        scores = ", ".join(f"{one.data} {one.half} {result.reading(one):.1f}" for one in result.scores[:3])
        name = f"{result.method} {result.variant}".strip()
        left = count(result)
        place = f"{protocol} {len(before) + done}/{len(cells)}{'' if left is None else f', {duration(left)} left'}"
        say(f"[{place}] {name}, seed {result.seed}, {result.shots} shots: {scores}")
        if result.unreadable or result.skipped:
            say(f"  unreadable images: {result.unreadable} in tests, counted as wrong; {result.skipped} in training")

    found, why = list(before), dict[Cell, str]()
    if rest:
        options = options.model_copy(update={"jobs": min(request.jobs, len(rest))})
        found += run_grid(rest, options, workspace=workspace, on_cell=report, refused=why)
    if own := [sentence for cell, sentence in why.items() if cell.method in ALWAYS]:
        raise ConfigError(own[0])
    refused.update({cell.method: sentence for cell, sentence in why.items()})
    by_identity = {identity(result): result for result in found}
    ordered = [by_identity[identity(cell)] for cell in cells if identity(cell) in by_identity]
    if request.cells is not None:
        return ordered
    write_atomic(options.out / "table.csv", to_csv(ordered).encode())
    write_atomic(options.out / "table.md", to_markdown(ordered).encode())
    return ordered


def _measured(request: PaperRequest, clip: FrozenClip, roles: RoleMap, found: Findings, say: Say) -> Findings:
    """The findings with searches and ablations, where the data set they need is there."""
    runs = {one.key: one for one in found.experiments if not one.blocked}
    if not {"figure-3", "mean-ablation"} & runs.keys():
        return found
    gallery = _gallery(request)
    folder = request.out / MEASURES
    if "mean-ablation" in runs:
        say(f"mean-ablation on {len(gallery.images):,} images")
        ablation = cached_ablation(folder / "ablation.json", clip, roles, gallery, workers=request.workers)
        found = replace(found, ablation=ablation)
    if "figure-3" in runs:
        say(f"searches among {len(gallery.images):,} images")
        cell = runs["figure-3"].cells[0]
        model = load(request.options(cell.protocol).out / RUNS / cell.slug, clip)
        retrieval = cached_retrieval(folder / "retrieval.json", model, gallery, workers=request.workers)
        found = replace(found, retrieval=retrieval, gallery=gallery)
    return found


def _gallery(request: PaperRequest) -> Gallery:
    if request.kind == "mini":
        return world_gallery(request.images)
    return dataset_gallery(open_dataset(request.sets.source, request.data_root), request.images)


def _roles(request: PaperRequest, clip: FrozenClip) -> RoleMap:
    """The paper's role map; all parts use the same one, so none is found from the images of a training."""
    if not is_chosen(request.roles) and shipped_map(clip) is None:
        raise RoleMapError(
            f"There is no role map for {clip.name} with these weights: find one with 'dear roles discover', and name "
            f"it with {option(roles='MAP')}."
        )
    first = max(1, clip.geometry.vision_layers - LAST_LAYERS + 1)
    return roles_for(clip, request.roles, first_layer=first)
