"""A word for what a head does, and a role map as plain text."""

from __future__ import annotations

from dear.roles.rolemap import HeadRole, Role, RoleMap

SHORT = {Role.GENERALIZATION: "general", Role.MIXED: "mixed"}
"""Roles without a concept that every head of them shares."""


def role_name(role: Role) -> str:
    """A role as it is written in a sentence."""
    return role.value.replace("_", " ")


def head_word(head: HeadRole) -> str:
    """A word for what a head does: its concept, or else its role."""
    return head.concept or SHORT.get(head.role, role_name(head.role))


def role_grid(roles: RoleMap) -> str:
    """A role map as text: one row per layer, one word per head, and the counts."""
    width = max(len(_plain_word(head)) for head in roles.heads) + 1
    layers = sorted({head.layer for head in roles.heads})
    rows = {layer: [_plain_word(head) for head in roles.layer(layer)] for layer in layers}
    numbers = [str(head.head) for head in roles.layer(layers[0])]
    lines = [
        f"{name:<6}{''.join(f'{word:<{width}}' for word in words)}".rstrip()
        for name, words in [("layer", numbers), *rows.items()]
    ]
    counts = {role: sum(head.role is role for head in roles.heads) for role in Role}
    return "\n".join([*lines, "", ", ".join(f"{count} {role_name(role)}" for role, count in counts.items())])


def _plain_word(head: HeadRole) -> str:
    """The word where no colour tells the role: other specialities in brackets, shielded and mixed heads by role."""
    if head.role is Role.OTHER:
        return f"({head_word(head)})"
    return SHORT.get(head.role) or head_word(head)
