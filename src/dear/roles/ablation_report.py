"""What `dear roles ablate` measures and prints: what layers, single heads and the heads of one attribute cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, pstdev

from dear.backbone.clip import FrozenClip
from dear.errors import RoleMapError
from dear.roles.ablation import Bench, Drop, Place, Task, Terms, class_features, random_groups
from dear.roles.rolemap import Role, RoleMap

COSTLIEST = 10


@dataclass(frozen=True)
class Group:
    """The heads of one attribute removed together, and as many heads drawn at random from the same map."""

    attribute: str
    removed: Drop
    random_means: tuple[float, ...]
    random_spreads: tuple[float, ...]


@dataclass(frozen=True)
class Ablation:
    """Accuracy on every task, and the drop after each intervention."""

    images: int
    tasks: tuple[str, ...]
    base: tuple[float, ...]
    groups: tuple[Group, ...]
    layers: tuple[Drop, ...]
    heads: tuple[Drop, ...]
    draws: int


def check_fits(clip: FrozenClip, roles: RoleMap) -> None:
    """Refuse a map of other heads or of other weights: its interventions would prove nothing."""
    sizes = clip.geometry
    problems = roles.misfits(
        first_layer=min(head.layer for head in roles.heads),
        layers=sizes.vision_layers,
        heads=sizes.vision_heads,
        weights_sha256=clip.weights_sha256,
    )
    if problems:
        raise RoleMapError(f"The role map does not fit {clip.name}: {'; '.join(problems)}.")


def measure(
    clip: FrozenClip, roles: RoleMap, terms: Terms, tasks: Sequence[Task], *, draws: int = 20, seed: int = 0
) -> Ablation:
    """Remove every layer, every head of the map, and the heads of each attribute; the latter beside random groups."""
    bench = Bench(terms, tasks, class_features(clip, tasks))
    places = [(head.layer, head.head) for head in roles.heads]
    return Ablation(
        images=len(terms.embeddings_NE),
        tasks=tuple(task.name for task in tasks),
        base=bench.base,
        groups=tuple(_group(bench, roles, attribute, places, draws, seed) for attribute in _present(roles)),
        layers=tuple(bench.layer(layer) for layer in range(1, terms.heads_NLHE.shape[1] + 1)),
        heads=tuple(bench.heads(f"head ({layer}, {head})", [(layer, head)]) for layer, head in places),
        draws=draws,
    )


def as_markdown(ablation: Ablation) -> str:
    """Everything as Markdown; changes are in points of accuracy, so what hurts is negative."""
    tasks = ablation.tasks
    costly = sorted(ablation.heads, key=lambda drop: (-sum(drop.drops), drop.heads))[:COSTLIEST]
    accuracy = ", ".join(f"{name} {100 * value:.1f}" for name, value in zip(tasks, ablation.base, strict=True))
    parts = [
        f"Zero-shot accuracy on {ablation.images} images: {accuracy}",
        _table("Heads of one attribute removed", tasks, [_points(group.removed) for group in ablation.groups]),
        _table(
            f"As many heads drawn at random ({ablation.draws} draws, mean ± standard deviation)",
            tasks,
            [_random_row(group) for group in ablation.groups],
        ),
        _verdict(ablation),
        _table("One layer removed (heads and MLP)", tasks, [_points(drop) for drop in ablation.layers]),
        _table("The costliest heads, each removed alone", tasks, [_points(drop) for drop in costly]),
    ]
    return "\n\n".join(part for part in parts if part)


def _present(roles: RoleMap) -> list[str]:
    return [a for a in roles.attributes if any(h.role is Role.CORE and h.concept == a for h in roles.heads)]


def _group(bench: Bench, roles: RoleMap, attribute: str, places: Sequence[Place], draws: int, seed: int) -> Group:
    chosen = [(h.layer, h.head) for h in roles.heads if h.role is Role.CORE and h.concept == attribute]
    removed = bench.heads(f"{attribute} ({len(chosen)} heads)", chosen)
    drawn = [bench.heads("", group).drops for group in random_groups(places, len(chosen), draws, seed)]
    columns = list(zip(*drawn, strict=True))
    return Group(attribute, removed, tuple(mean(c) for c in columns), tuple(pstdev(c) for c in columns))


def _verdict(ablation: Ablation) -> str:
    """Where tasks bear attributes' names: does losing an attribute's heads hurt that attribute most?"""
    lines = []
    for group in ablation.groups:
        if group.attribute not in ablation.tasks or len(ablation.tasks) < 2:
            continue
        own = ablation.tasks.index(group.attribute)
        drops = group.removed.drops
        others = [drop for column, drop in enumerate(drops) if column != own]
        spread = group.random_spreads[own]
        distance = f"{(drops[own] - group.random_means[own]) / spread:+.1f}" if spread else "–"
        figures = [_point(drops[own]), _point(mean(others)), _point(max(others)), _point(group.random_means[own])]
        most = "yes" if drops[own] > max(others) else "no"
        lines.append(f"| {group.removed.what} | {' | '.join(figures)} | {distance} | {most} |")
    if not lines:
        return ""
    head = "| removed | own task | others, mean | others, worst | random heads, own task | spreads away | hurts most |"
    return "\n".join(["### Does a role's removal hurt its own task?", "", head, "|---|" + "---:|" * 6, *lines])


def _random_row(group: Group) -> tuple[str, list[str]]:
    pairs = zip(group.random_means, group.random_spreads, strict=True)
    return (
        f"{len(group.removed.heads)} as for {group.attribute}",
        [f"{_point(average)} ± {100 * spread:.1f}" for average, spread in pairs],
    )


def _points(drop: Drop) -> tuple[str, list[str]]:
    return drop.what, [_point(value) for value in drop.drops]


def _point(drop: float) -> str:
    return f"{-100 * drop + 0.0:+.1f}"


def _table(title: str, tasks: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> str:
    if not rows:
        return ""
    lines = [f"### {title}", "", f"| removed | {' | '.join(tasks)} |", "|---|" + "---:|" * len(tasks)]
    lines += [f"| {what} | {' | '.join(cells)} |" for what, cells in rows]
    return "\n".join(lines)
