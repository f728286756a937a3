"""The output of `dear roles ablate` as Markdown: the cost of removing layers, heads and the heads of an attribute."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from dear.roles.ablation import Ablation, Drop, Group
from dear.storage import markdown

COSTLIEST = 10


def ablation_markdown(ablation: Ablation) -> str:
    """Return all tables as Markdown; changes are in points of accuracy, so a loss is negative."""
    tasks = ablation.tasks
    costly = sorted(ablation.heads, key=lambda drop: (-sum(drop.drops), drop.heads))[:COSTLIEST]
    accuracy = ", ".join(
        f"{markdown.plain(name)} {100 * value:.1f}" for name, value in zip(tasks, ablation.base, strict=True)
    )
    parts = [
        f"Zero-shot accuracy on {ablation.images} images: {accuracy}",
        _table("Heads of one attribute removed", tasks, [_points(group.removed) for group in ablation.groups]),
        _table(
            f"The same number of random heads ({ablation.draws} samples, mean ± standard deviation)",
            tasks,
            [_random_row(group) for group in ablation.groups],
        ),
        _verdict(ablation),
        _table("One layer removed (heads and MLP)", tasks, [_points(drop) for drop in ablation.layers]),
        _table("The costliest heads, each removed alone", tasks, [_points(drop) for drop in costly]),
    ]
    return "\n\n".join(part for part in parts if part)


def _verdict(ablation: Ablation) -> str:
    """If tasks are named like attributes: whether removing an attribute's heads hurts that attribute most."""
    rows = []
    for group in ablation.groups:
        if group.attribute not in ablation.tasks or len(ablation.tasks) < 2:
            continue
        own = ablation.tasks.index(group.attribute)
        drops = group.removed.drops
        others = [drop for column, drop in enumerate(drops) if column != own]
        spread = group.random_spreads[own]
        distance = f"{(drops[own] - group.random_means[own]) / spread:+.1f}" if spread else "–"
        figures = [drops[own], mean(others), max(others), group.random_means[own]]
        most = "yes" if drops[own] > max(others) else "no"
        rows.append([group.removed.what, *map(_point, figures), distance, most])
    if not rows:
        return ""
    head = ["removed", "own task", "others, mean", "others, worst", "random heads, own task", "spreads away"]
    return f"### Does a role's removal hurt its own task?\n\n{markdown.table([*head, 'hurts most'], rows)}"


def _random_row(group: Group) -> list[str]:
    pairs = zip(group.random_means, group.random_spreads, strict=True)
    points = [f"{_point(average)} ± {100 * spread:.1f}" for average, spread in pairs]
    return [f"{len(group.removed.heads)} as for {group.attribute}", *points]


def _points(drop: Drop) -> list[str]:
    return [drop.what, *map(_point, drop.drops)]


def _point(drop: float) -> str:
    return f"{-100 * drop + 0.0:+.1f}"


def _table(title: str, tasks: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"### {title}\n\n{markdown.table(['removed', *tasks], rows)}" if rows else ""
