"""A role map as plain text."""

from __future__ import annotations

from dear.roles.rolemap import HeadRole, Role, RoleMap


def role_grid(roles: RoleMap) -> str:
    """A role map as text: a row a layer, a word a head, and the counts."""
    width = max(len(_word(head)) for head in roles.heads) + 1
    lines = []
    layers = sorted({head.layer for head in roles.heads})
    numbers = "".join(f"{head.head:<{width}}" for head in roles.layer(layers[0]))
    lines.append(f"{'layer':<6}{numbers}".rstrip())
    lines += [f"{layer:<6}{''.join(f'{_word(h):<{width}}' for h in roles.layer(layer))}".rstrip() for layer in layers]
    counts = {role: sum(head.role is role for head in roles.heads) for role in Role}
    lines.append("")
    lines.append(", ".join(f"{count} {role.value.replace('_', ' ')}" for role, count in counts.items()))
    return "\n".join(lines)


def _word(head: HeadRole) -> str:
    """Core attributes by name, other specialities in brackets, shielded and mixed heads by their role."""
    if head.role is Role.CORE:
        return head.concept or ""
    if head.role is Role.OTHER:
        return f"({head.concept})"
    return "general" if head.role is Role.GENERALIZATION else "mixed"
