"""Beside the paper's fusion weights: how much the heads of each role should count, by role gains, for each data set."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from dear.evaluation.results import CellResult, harmonic_mean
from dear.evaluation.statistics import Stat, mean_and_std
from dear.paper.numbers import paper_titles, yes
from dear.paper.plan import Experiment, results_of
from dear.paper.tables import empty_section, state_notes
from dear.reports.grid_charts import heat_chart
from dear.reports.page_sections import Figure, PageSection, Table, Value
from dear.roles.rolemap import CORE_ATTRIBUTES


def gains_section(experiment: Experiment, results: Sequence[CellResult]) -> PageSection:
    """Gains by data set, and what they are worth: base, novel and harmonic mean beside plain CLIP's."""
    by_data: dict[str, list[CellResult]] = {}
    for cell in results_of(experiment, results):
        if cell.weights:
            by_data.setdefault(cell.data, []).append(cell)
    if not by_data:
        return empty_section(experiment, results)
    kinds = tuple(next(iter(by_data.values()))[0].weights)
    stats = {
        data: [mean_and_std([cell.weights[kind] for cell in found]) for kind in kinds]
        for data, found in by_data.items()
    }
    titles = [f"{data} ({paper_titles(data)})" if paper_titles(data) != data else data for data in stats]
    title = "Role gains by data set; 1 is plain CLIP"
    means = [[stat.mean for stat in row] for row in stats.values()]
    figure = Figure("role-gains", title, svg=heat_chart(title, titles, kinds, means, digits=2, middle=1.0))
    rows: list[tuple[Value, ...]] = [(data, *row) for data, row in stats.items()]
    tables = (
        Table(("data", *kinds), tuple(rows), title="Gain of the heads of each role and concept, and of all else"),
        _worth(by_data),
    )
    seeds = max(len(found) for found in by_data.values())
    notes = (
        f"One factor for what the heads of each role add to the image feature, fitted on 16 shots of the base classes, "
        f"{'one seed' if seeds == 1 else f'mean over {seeds} seeds'}. Gains below 1 in all groups only "
        f"make answers less sure; what counts is how they differ.",
        "A group that says little about the classes keeps a gain near 1, where the pull holds it: a larger gain "
        "than others is no proof that the set is about it.",
        "A method of this project: the paper has nothing of the kind.",
        *state_notes(experiment, results),
    )
    return PageSection(experiment.key, experiment.title, tables, (figure,), _says(stats, kinds), notes)


def _worth(by_data: dict[str, list[CellResult]]) -> Table:
    """Base, novel and their harmonic mean in per cent, plain and by the gains."""

    def scores(found: Sequence[CellResult], readout: str) -> list[Value]:
        halves = [
            fmean(one.accuracy[readout] for cell in found for one in cell.scores if one.half == half)
            for half in ("base", "novel")
        ]
        return [*halves, harmonic_mean(*halves)]

    head = ("data", *(f"{readout}, {what}" for readout in ("plain", "gains") for what in ("base", "novel", "HM")))
    rows = ((data, *scores(found, "plain"), *scores(found, "gains")) for data, found in by_data.items())
    return Table(head, tuple(rows), title="What that is worth, top-1 in per cent")


def _says(stats: dict[str, list[Stat]], kinds: Sequence[str]) -> tuple[str, ...]:
    attributes = [place for place, kind in enumerate(kinds) if kind in CORE_ATTRIBUTES]
    if not attributes:
        return ()
    largest = {data: kinds[max(attributes, key=lambda place: row[place].mean)] for data, row in stats.items()}
    told = ", ".join(f"{data} {name}" for data, name in largest.items())
    says = [f"The attribute with the largest gain: {told}."]
    if textures := next((data for data in stats if "DTD" in paper_titles(data)), None):
        says.append(
            f"The paper reads from its fusion weights that texture counts most on DTD: on {textures} the largest gain "
            f"of an attribute is that of {largest[textures]}. So by gains: {yes(largest[textures] == 'texture')}."
        )
    return tuple(says)
