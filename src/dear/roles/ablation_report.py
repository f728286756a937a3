"""The tables of `dear roles ablate`: what layers, single heads and groups of heads cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

from dear.backbone.clip import FrozenClip
from dear.roles.ablation import (
    Drop,
    Place,
    Task,
    Terms,
    ablate_each_head,
    ablate_each_layer,
    ablate_group,
    accuracies,
    class_features,
    random_groups,
)
from dear.roles.rolemap import Role, RoleMap


def ablation_report(
    clip: FrozenClip, roles: RoleMap, terms: Terms, tasks: Sequence[Task], *, draws: int = 20, seed: int = 0
) -> str:
    """Everything as Markdown; drops are in points of accuracy."""
    features = class_features(clip, tasks)
    base = accuracies(terms.embeddings_NE, tasks, features)
    places = [(head.layer, head.head) for head in roles.heads]
    layers = ablate_each_layer(terms, tasks, features)
    heads = ablate_each_head(terms, tasks, features, places)
    costly = sorted(heads, key=lambda drop: (-sum(drop.drops), drop.heads))[:10]
    groups = []
    for attribute in roles.attributes:
        chosen = [(h.layer, h.head) for h in roles.heads if h.role is Role.CORE and h.concept == attribute]
        if chosen:
            groups.append(
                (attribute, ablate_group(f"{attribute} ({len(chosen)} heads)", chosen, terms, tasks, features))
            )
    parts = [
        f"Zero-shot accuracy on {len(terms.embeddings_NE)} images: "
        + ", ".join(f"{task.name} {100 * value:.1f}" for task, value in zip(tasks, base, strict=True)),
        _table("Heads of one attribute removed", [drop for _, drop in groups], tasks),
        _table(
            f"As many heads drawn at random, mean of {draws}",
            _random(groups, places, terms, tasks, features, draws, seed),
            tasks,
        ),
        _table("One layer removed (heads and MLP)", layers, tasks),
        _table("The ten costliest heads, each removed alone", costly, tasks),
    ]
    return "\n\n".join(part for part in parts if part)


def _random(
    groups: Sequence[tuple[str, Drop]],
    places: Sequence[Place],
    terms: Terms,
    tasks: Sequence[Task],
    features: Sequence,  # type: ignore[type-arg]
    draws: int,
    seed: int,
) -> list[Drop]:
    rows = []
    for attribute, drop in groups:
        sets = random_groups(places, len(drop.heads), draws, seed)
        results = [ablate_group("", chosen, terms, tasks, features).drops for chosen in sets]
        columns = list(zip(*results, strict=True))
        spread = stdev([sum(r) / len(r) for r in results]) if draws > 1 else 0.0
        rows.append(
            Drop(f"{len(drop.heads)} as for {attribute} (± {100 * spread:.1f})", (), tuple(mean(c) for c in columns))
        )
    return rows


def _table(title: str, rows: Sequence[Drop], tasks: Sequence[Task]) -> str:
    if not rows:
        return ""
    lines = [f"### {title}", "", f"| removed | {' | '.join(task.name for task in tasks)} |"]
    lines.append("|---|" + "---:|" * len(tasks))
    lines += [f"| {row.what} | {' | '.join(f'{-100 * drop:+.1f}' for drop in row.drops)} |" for row in rows]
    return "\n".join(lines)
