"""Agreement of two role maps."""

from __future__ import annotations

from dear.errors import RoleMapError
from dear.roles.entropy import kappa
from dear.roles.rolemap import HeadRole, Role, RoleMap
from dear.storage import markdown
from dear.storage.files import shown


def compare_maps(first: RoleMap, second: RoleMap) -> str:
    """Compare two maps, as Markdown: kappa of roles and concepts, a confusion table, and all heads that differ."""
    places = sorted((head.layer, head.head) for head in first.heads)
    if places != sorted((head.layer, head.head) for head in second.heads):
        raise RoleMapError("The two maps describe different heads: compare maps of the same layers of one backbone.")
    pairs = [(first[place], second[place]) for place in places]
    by_role = kappa([a.role.value for a, _ in pairs], [b.role.value for _, b in pairs])
    by_concept = kappa([label(a) for a, _ in pairs], [label(b) for _, b in pairs])
    same = sum(label(a) == label(b) for a, b in pairs)
    lines = [
        f"{same} of {len(pairs)} heads have the same role and concept.",
        f"kappa of roles {by_role:.3f}, of roles with concepts {by_concept:.3f}",
        "",
        confusion(pairs),
    ]
    differing = [
        f"- ({a.layer}, {a.head}): {shown(label(a))} / {shown(label(b))}" for a, b in pairs if label(a) != label(b)
    ]
    return "\n".join([*lines, *(["", "Heads that differ:", *differing] if differing else [])])


def confusion(pairs: list[tuple[HeadRole, HeadRole]]) -> str:
    """Table of role counts: one row per role of the first map, one column per role of the second."""
    names = {role: role.value.replace("_", " ") for role in Role}
    counts = [[str(sum(a.role is row and b.role is column for a, b in pairs)) for column in Role] for row in Role]
    rows = [[names[role], *row] for role, row in zip(Role, counts, strict=True)]
    return markdown.table(["first / second", *names.values()], rows)


def label(head: HeadRole) -> str:
    """Role and, if there is one, concept of a head."""
    return f"{head.role.value} {head.concept}" if head.role in (Role.CORE, Role.OTHER) else head.role.value
