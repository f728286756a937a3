"""The section on role gains: the learned importance of the heads of each role, by data set (not in the paper)."""

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
    """Gains by data set, and the accuracies that they give compared with plain CLIP's."""
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
        Table(
            ("data", *kinds),
            tuple(rows),
            title="Gain of the heads of each role and concept, and of the rest of the feature",
        ),
        _worth(by_data),
    )
    seeds = max(len(found) for found in by_data.values())
    notes = (
        f"One factor for what the heads of each role add to the image feature, fitted on 16 shots of the base classes, "
        f"{'one seed' if seeds == 1 else f'mean over {seeds} seeds'}. Gains below 1 in all groups only "
        f"make answers less certain; only their differences matter.",
        "Regularisation pulls the gain of an uninformative group towards 1, so a larger gain than others is not a "
        "proof that the data set is about this attribute.",
        "A method of this project: the paper has no counterpart.",
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
    return Table(head, tuple(rows), title="Accuracy with these gains, top-1 in per cent")


def _says(stats: dict[str, list[Stat]], kinds: Sequence[str]) -> tuple[str, ...]:
    attributes = [index for index, kind in enumerate(kinds) if kind in CORE_ATTRIBUTES]
    if not attributes:
        return ()
    largest = {data: kinds[max(attributes, key=lambda index: row[index].mean)] for data, row in stats.items()}
    listed = ", ".join(f"{data} {name}" for data, name in largest.items())
    says = [f"The attribute with the largest gain: {listed}."]
    if textures := next((data for data in stats if "DTD" in paper_titles(data)), None):
        says.append(
            f"The paper concludes from its fusion weights that texture matters most on DTD: on {textures} the largest "
            f"gain is that of {largest[textures]}. The gains agree: {yes(largest[textures] == 'texture')}."
        )
    return tuple(says)
