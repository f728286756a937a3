"""Role maps as plain text: one row per layer, one word per head."""

from __future__ import annotations

from dear.roles.rolemap import HeadRole, Role, RoleMap
from dear.storage.files import shown

SHORT = {Role.GENERALIZATION: "general", Role.MIXED: "mixed"}
"""Roles whose heads have no concept."""


def role_name(role: Role) -> str:
    """Readable name of a role."""
    return role.value.replace("_", " ")


def head_word(head: HeadRole) -> str:
    """One word for a head: its concept, or its role if it has none."""
    return head.concept or SHORT.get(head.role, role_name(head.role))


def role_grid(roles: RoleMap) -> str:
    """A role map as text: one row per layer, one word per head, and the counts of roles."""
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
    """The word for a head without colours: other specialities in brackets, shielded and mixed heads by role."""
    word = shown(head_word(head))
    return f"({word})" if head.role is Role.OTHER else SHORT.get(head.role) or word
