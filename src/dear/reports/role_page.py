"""The page of a role map: a grid of layers and heads, and the phrases and example images of each head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dear.reports.colors import ROLES
from dear.reports.page_sections import Table
from dear.reports.render import Picture, render
from dear.roles.examples import Example, Examples
from dear.roles.rolemap import LEAST_KAPPA, HeadRole, Role, RoleMap
from dear.roles.stability import doubt

MEANINGS = {
    Role.CORE: "sees the image and its own attribute's token",
    Role.OTHER: "another speciality: shielded from new tokens",
    Role.GENERALIZATION: "abstract or global: shielded from new tokens",
    Role.MIXED: "no single focus: sees everything",
}
SAYS = {
    "Stability": "Share of heads whose role and concept stay the same if one choice is changed. Kappa corrects for "
    "chance: 1 is full agreement, 0 is chance. A map whose median kappa with resampled images is below "
    f"{LEAST_KAPPA} is unstable.",
    "Clusters of phrases": "Groups of phrases with similar meaning, and the name of each group.",
    "Number of attributes": "Separation of the groups of phrases for each number of attributes; higher is better.",
}
"""Explanation of a table, by its title."""


@dataclass(frozen=True)
class LegendEntry:
    """A role with its colour (if it has its own), its number of heads, and the number of heads per attribute."""

    role: Role
    fill: str
    heads: int
    meaning: str
    attributes: Mapping[str, int]


def role_page(
    roles: RoleMap,
    *,
    title: str,
    examples: Mapping[tuple[int, int], Examples] | None = None,
    tables: Sequence[Table] = (),
) -> str:
    """Return the page as one self-contained HTML file."""

    def pictures(head: HeadRole) -> dict[str, list[Picture]]:
        found = (examples or {}).get((head.layer, head.head))
        if found is None or not found.most:
            return {}
        return {"Responds most to": _pictures(found.most), "Responds least to": _pictures(found.least)}

    return render(
        "roles.html",
        title=title,
        subtitle=roles.provenance.source,
        doubt=doubt(roles),
        roles=roles,
        legend=_legend(roles),
        shares=_shares,
        pictures=pictures,
        tables=tables,
        says=SAYS,
        provenance=_provenance(roles),
    )


def _legend(roles: RoleMap) -> list[LegendEntry]:
    counts = Counter(head.role for head in roles.heads)
    core = Counter(head.concept for head in roles.heads if head.role is Role.CORE)
    by_attribute = {name: core[name] for name in roles.attributes}
    return [
        LegendEntry(role, ROLES.get(role, ""), counts[role], MEANINGS[role], by_attribute if role is Role.CORE else {})
        for role in Role
    ]


def _shares(head: HeadRole) -> list[tuple[str, float]]:
    return sorted((head.shares or {}).items(), key=lambda item: (-item[1], item[0]))


def _pictures(examples: Sequence[Example]) -> list[Picture]:
    return [Picture(example.thumbnail, example.name) for example in examples]


def _provenance(roles: RoleMap) -> dict[str, str]:
    items = roles.provenance.model_dump(exclude_none=True).items()
    return {key.replace("_", " "): _text(value) for key, value in items if value}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{str(key).replace('_', ' ')}: {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
