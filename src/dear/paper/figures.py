"""Builds the paper's figures, its table of roles and the ablations from results and measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from dear.evaluation.results import CellResult
from dear.evaluation.statistics import Stat, mean_and_std
from dear.evaluation.summary import Summary
from dear.paper.measures import Gallery, Retrieval, picture
from dear.paper.numbers import paper_titles, yes
from dear.paper.plan import Experiment, Sets, results_of
from dear.paper.tables import DEAR, NAMES, ZERO_SHOT, empty_section, percent_note, stat_of, state_notes, summary_of
from dear.reports.grid_charts import heat_chart
from dear.reports.line_charts import line_chart
from dear.reports.page_sections import Figure, PageSection, Table, Value
from dear.reports.render import Picture
from dear.reports.role_figure import role_figure
from dear.reports.sheet import Sheet, SheetRow, sheet_png
from dear.roles.ablation import Ablation
from dear.roles.rolemap import Role, RoleMap

SIDE, GAP = 64, 6


def few_shot_section(experiment: Experiment, results: Sequence[CellResult]) -> PageSection:
    """Figures 4 and 5: accuracy over shots, on average and on every data set."""
    summary = summary_of(experiment, results)
    if summary is None or DEAR not in summary.values:
        return empty_section(experiment, results)
    shots = [column for column in summary.columns if stat_of(summary, DEAR, None, column)]
    rows: list[tuple[Value, ...]] = []
    figures = []
    for data in (None, *summary.data):
        plain = _plain(summary, data)
        curve = [stat_of(summary, DEAR, data, column) for column in shots]
        rows.append((data or "average", plain, *curve))
        lines: dict[str, list[float | None]] = {"DeAR": [stat.mean if stat else None for stat in curve]}
        if plain is not None:
            lines[NAMES[ZERO_SHOT]] = [plain.mean] * len(shots)
        name, title = ("figure-4", "Average") if data is None else (f"figure-5-{data}", data)
        width, height = (440, 270) if data is None else (308, 230)
        chart = line_chart(
            title, shots, lines, x_title="shots per class", y_title="accuracy, %", width=width, height=height
        )
        figures.append(Figure(name, f"Few-shot learning: {title}", svg=chart))
    table = Table(
        ("data", NAMES[ZERO_SHOT], *(f"{shot} shot{'' if shot == '1' else 's'}" for shot in shots)), tuple(rows)
    )
    notes = (
        percent_note(experiment, results),
        "Over all classes, by fusion. Plain CLIP is not trained.",
        "The paper shows curves without numbers, so there are none to compare with.",
        *state_notes(experiment, results),
    )
    return PageSection(
        experiment.key, experiment.title, (table,), tuple(figures), _few_shot_says(summary, shots), notes
    )


def _plain(summary: Summary, data: str | None) -> Stat | None:
    found = [stat_of(summary, ZERO_SHOT, data, column) for column in summary.columns]
    return next((stat for stat in found if stat), None)


def _few_shot_says(summary: Summary, shots: Sequence[str]) -> tuple[str, ...]:
    curve = [stat.mean for shot in shots if (stat := stat_of(summary, DEAR, None, shot))]
    plain = _plain(summary, None)
    says = []
    if len(curve) > 1:
        rises = yes(all(a < b for a, b in pairwise(curve)))
        says.append(
            f"In the paper accuracy rises with the number of shots; on average it does so at every step here: {rises}."
        )
    if plain is not None:
        above = [shot for shot, value in zip(shots, curve, strict=True) if value > plain.mean]
        says.append(
            f"In the paper DeAR is above the other methods at every number of shots; here its average is above "
            f"plain CLIP ({plain.mean:.2f}) at {len(above)} of {len(shots)}: {', '.join(above) or 'none'}."
        )
    return tuple(says)


def fusion_section(experiment: Experiment, results: Sequence[CellResult], sets: Sets) -> PageSection:
    """Supplement, Figure 2: the learned fusion weights by data set."""
    cells = [cell for cell in results_of(experiment, results) if cell.weights]
    if not cells:
        return empty_section(experiment, results)
    kinds = ("cls", *(name for name in cells[0].weights if name != "cls"))
    by_data: dict[str, list[CellResult]] = {}
    for cell in cells:
        by_data.setdefault(cell.data, []).append(cell)
    stats = {
        data: [mean_and_std([cell.weights[kind] for cell in found]) for kind in kinds]
        for data, found in by_data.items()
    }
    means = [[stat.mean for stat in row] for row in stats.values()]
    titles = [f"{data} ({paper_titles(data)})" if paper_titles(data) != data else data for data in stats]
    title = "Fusion weights α by data set"
    figures = [
        Figure("supplement-figure-2", title, svg=heat_chart(title, titles, kinds, means)),
        Figure(
            "supplement-figure-2-attributes",
            "The same without [CLS]",
            svg=heat_chart("The same without [CLS]", titles, kinds[1:], [row[1:] for row in means], digits=4),
        ),
    ]
    rows: list[tuple[Value, ...]] = [(data, *row) for data, row in stats.items()]
    table = Table(("data", *kinds), tuple(rows), digits=4)
    seeds = max(len(found) for found in by_data.values())
    of_seeds = "of one seed" if seeds == 1 else f"mean over {seeds} seeds"
    notes = (
        f"Weights of the models of Table 2: 16 shots of the base classes, {of_seeds}. They sum to 1.",
        "The paper shows colours without numbers; its text says that DTD weighs texture more than the others do.",
        *state_notes(experiment, results),
    )
    return PageSection(
        experiment.key, experiment.title, (table,), tuple(figures), _fusion_says(stats, kinds, sets), notes
    )


def _fusion_says(stats: dict[str, list[Stat]], kinds: Sequence[str], sets: Sets) -> tuple[str, ...]:
    says = []
    textures = next((data for data in stats if "DTD" in paper_titles(data)), None)
    if textures and "texture" in kinds:
        place = kinds.index("texture")
        most = max(stats, key=lambda data: stats[data][place].mean)
        own = max(range(1, len(kinds)), key=lambda i: stats[textures][i].mean)
        found = most == textures and own == place
        says.append(
            f"The paper finds a higher texture weight on DTD: among the data sets it is largest on {most}, and on "
            f"{textures} the largest attribute weight is that of {kinds[own]}. The paper's finding appears here: "
            f"{yes(found)}."
        )
        apart = max(max(one.mean for one in row[1:]) - min(one.mean for one in row[1:]) for row in stats.values())
        if not found:
            says.append(
                f"Supplement, Figure 2 is not reproduced: within a data set the attributes' weights differ by at most "
                f"{apart:.4f}."
            )
    if sets.source in stats:
        first = max(range(len(kinds)), key=lambda i: stats[sets.source][i].mean)
        says.append(
            f"The paper finds a strong reliance on [CLS] on ImageNet: on {sets.source} the largest weight is that of "
            f"{kinds[first]} ({stats[sets.source][first].mean:.3f}). The paper's finding appears here: "
            f"{yes(first == 0)}."
        )
    return tuple(says)


def retrieval_section(
    experiment: Experiment, retrieval: Retrieval, gallery: Gallery, *, assigned: str = ""
) -> PageSection:
    """Figure 3: searches by each kind of feature, and the share of results with the query's properties.

    `assigned`, here and below, is the sentence that follows a statement about heads assigned by pre-training.
    """
    rows: list[tuple[Value, ...]] = [
        (f"by {kind}", *values) for kind, values in zip(retrieval.kinds, retrieval.precision, strict=True)
    ]
    rows.append(("by chance", *retrieval.chance))
    table = Table(
        ("feature", *(f"same {name}" for name in retrieval.properties)),
        tuple(rows),
        title=f"Per cent of the {retrieval.k} nearest images that share the query's …",
        digits=1,
    )
    figures = tuple(
        Figure(
            f"figure-3-query-{number}", f"Query {number}", png=_contact_sheet(retrieval.kinds, query, found, gallery)
        )
        for number, (query, found) in enumerate(retrieval.searches, start=1)
    )
    notes = (
        f"{retrieval.images:,} images, each searched among all the others, by the features of one adapter (first "
        f"seed, 16 shots of all classes).",
        "A green frame: shares the attribute of its row with the query.",
        "The paper shows pictures only, so there are no numbers to compare with.",
    )
    return PageSection(experiment.key, experiment.title, (table,), figures, _retrieval_says(retrieval, assigned), notes)


def _retrieval_says(retrieval: Retrieval, assigned: str) -> tuple[str, ...]:
    own = [name for name in retrieval.properties if name in retrieval.kinds]
    if not own:
        return ()
    best = []
    for name in own:
        column = retrieval.properties.index(name)
        values = [row[column] for row in retrieval.precision]
        mine = values[retrieval.kinds.index(name)]
        if all(mine > value for kind, value in zip(retrieval.kinds, values, strict=True) if kind != name):
            best.append(name)
    names = f" ({', '.join(best)})" if best else ""
    return (
        f"The paper's pictures suggest that an attribute's feature finds images alike in that attribute; here an "
        f"attribute's own feature finds it better than every other feature for {len(best)} of {len(own)}{names}."
        f"{assigned}",
    )


def _contact_sheet(kinds: Sequence[str], query: int, found: Sequence[Sequence[int]], gallery: Gallery) -> bytes:
    """One row per kind of feature; pictures that share the row's attribute with the query have a frame."""
    labels = {task.name: task.labels_N.tolist() for task in gallery.tasks}

    def shown(kind: str, hit: int) -> Picture:
        alike = kind in labels and labels[kind][hit] == labels[kind][query]
        return Picture(picture(gallery, hit, SIDE), framed=alike)

    rows = [SheetRow(tuple(shown(kind, hit) for hit in hits), kind) for kind, hits in zip(kinds, found, strict=True)]
    asked = Picture(picture(gallery, query, SIDE))
    return sheet_png(Sheet(tuple(rows), query=asked), side=SIDE, gap=GAP, columns=max(map(len, found)))


def roles_section(experiment: Experiment, roles: RoleMap, published: RoleMap, *, assigned: str = "") -> PageSection:
    """Supplement, Table 2: the number of heads per role here and in the paper, and every head with its phrases."""
    rows = []
    for name in (*(f"core: {attribute}" for attribute in published.attributes), *_OTHER_ROLES):
        ours, theirs = _counts(roles)[name], _counts(published)[name]
        shares = [f"{100 * count / len(one.heads):.0f} %" for count, one in ((ours, roles), (theirs, published))]
        rows.append((name, str(ours), shares[0], str(theirs), shares[1]))
    head = ("role", f"of {len(roles.heads)} heads", "share", f"paper, of {len(published.heads)}", "paper, share")
    heads = tuple(
        (
            f"({one.layer}, {one.head})",
            one.role.value.replace("_", " "),
            one.concept or "",
            "" if one.entropy is None else f"{one.entropy:.2f}",
            ", ".join(one.phrases[:3]),
        )
        for one in roles.heads
    )
    tables = (
        Table(head, tuple(rows), title="Heads by role", paper=(3, 4)),
        Table(("head", "role", "concept", "entropy", "phrases"), heads, title="Every head", words=5),
    )
    there = [name for name in published.attributes if _counts(roles)[f"core: {name}"]]
    says = (
        f"In the paper every core attribute has heads of its own; here {len(there)} of {len(published.attributes)} "
        f"have: {', '.join(there) or 'none'}.{assigned}",
    )
    figure = Figure("supplement-table-2", "Roles of heads", svg=role_figure(roles, "Roles of heads").svg())
    notes = (f"Role map: {roles.provenance.source}.", "The paper's counts are of layers 9 to 12 of ViT-B/16.")
    return PageSection(experiment.key, experiment.title, tables, (figure,), says, notes)


_OTHER_ROLES = ("generalization", "mixed", "other specialized")


def _counts(roles: RoleMap) -> Counter[str]:
    return Counter(
        f"core: {head.concept}" if head.role is Role.CORE else head.role.value.replace("_", " ") for head in roles.heads
    )


def ablation_result_section(experiment: Experiment, ablation: Ablation, *, assigned: str = "") -> PageSection:
    """Supplement, A.3: the cost of mean-ablating the heads of an attribute, whole layers and single heads."""
    tasks = ablation.tasks
    groups: list[tuple[Value, ...]] = [("nothing (accuracy)", *(100 * value for value in ablation.base))]
    for group in ablation.groups:
        groups.append((f"{group.removed.what} removed", *(f"{-100 * drop + 0.0:+.1f}" for drop in group.removed.drops)))
        pairs = zip(group.random_means, group.random_spreads, strict=True)
        groups.append(
            (
                "— the same number of random heads",
                *(f"{-100 * mean + 0.0:+.1f} ± {100 * std:.1f}" for mean, std in pairs),
            )
        )
    layers: list[tuple[Value, ...]] = [
        (drop.what, *(f"{-100 * one + 0.0:+.1f}" for one in drop.drops)) for drop in ablation.layers
    ]
    tables = (
        Table(("heads", *tasks), tuple(groups), title="The heads of one attribute", digits=1),
        Table(("removed", *tasks), tuple(layers), title="One whole layer, heads and MLP"),
    )
    costs = {task: [100 * drop.drops[i] for drop in ablation.layers] for i, task in enumerate(tasks)}
    names = [str(number) for number in range(1, len(ablation.layers) + 1)]
    by_layer = line_chart("Cost of a layer", names, costs, x_title="layer removed", y_title="points lost")
    figures = (
        Figure("mean-ablation-layers", "Cost of a layer", svg=by_layer),
        Figure("mean-ablation-heads", "Cost of a head", svg=_head_costs(ablation)),
    )
    notes = (
        f"Zero-shot accuracy in per cent on {ablation.images:,} images; changes in points, so a loss is negative. "
        f"Random heads: {ablation.draws} samples from the same layers, mean ± standard deviation.",
        "This is the direct effect on the embedding: later layers still see the original. The paper prints no numbers.",
    )
    return PageSection(experiment.key, experiment.title, tables, figures, _ablation_says(ablation, assigned), notes)


def _head_costs(ablation: Ablation) -> str:
    costs = {drop.heads[0]: 100 * fmean(drop.drops) for drop in ablation.heads}
    layers = sorted({layer for layer, _ in costs})
    heads = sorted({head for _, head in costs})
    values = [[costs.get((layer, head), 0.0) for head in heads] for layer in layers]
    title = "Points lost by one head's removal, mean over tasks"
    return heat_chart(title, [f"layer {n}" for n in layers], [f"head {n}" for n in heads], values, digits=1)


def _ablation_says(ablation: Ablation, assigned: str) -> tuple[str, ...]:
    says = []
    last = min(4, len(ablation.layers))
    costs = [fmean(drop.drops) for drop in ablation.layers]
    if len(costs) > last:
        late, early = fmean(costs[-last:]), fmean(costs[:-last])
        says.append(
            f"The paper places the specialisation of heads in the last layers: removing one of the last {last} costs "
            f"{100 * late:.1f} points on average, an earlier one {100 * early:.1f}. The paper's finding appears here: "
            f"{yes(late > early)}.{assigned}"
        )
    own = [group for group in ablation.groups if group.attribute in ablation.tasks]
    if own and len(ablation.tasks) > 1:
        hit = []
        for group in own:
            place = ablation.tasks.index(group.attribute)
            if all(group.removed.drops[place] > drop for i, drop in enumerate(group.removed.drops) if i != place):
                hit.append(group.attribute)
        names = f" ({', '.join(hit)})" if hit else ""
        says.append(
            f"Removing an attribute's heads hurts that attribute most for {len(hit)} of {len(own)}{names}.{assigned}"
        )
    return tuple(says)
