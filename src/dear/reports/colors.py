"""Colours of pages and charts: lines, roles of heads, heat maps, and readable text colours for each."""

from __future__ import annotations

from dear.roles.rolemap import HeadRole, Role

LINES = ("#2f6fd0", "#c93a52", "#237a4b", "#b0590c", "#7a4fb0", "#5c6b7a")
HEAT = "#1c5bb8"
"""The colour of the largest value of a heat map."""
FOR, AGAINST = "#1c5bb8", "#d9620f"
"""Evidence for and against a class: blue and orange, which colour-blind people can distinguish."""
STRONGEST = 0.85
"""Opacity of the strongest evidence over a picture."""
UNKNOWN = "#333333"
"""The colour of any other attribute."""
ATTRIBUTES = {
    "color": "#c93a52",
    "shape": "#b0590c",
    "texture": "#8a6508",
    "object": "#237a4b",
    "location": "#2f6fd0",
}
ROLES = {Role.OTHER: "#7a4fb0", Role.GENERALIZATION: "#5c6b7a", Role.MIXED: "#d3d8de"}


def attribute_fill(name: str) -> str:
    """The colour of a core attribute."""
    return ATTRIBUTES.get(name, UNKNOWN)


def head_fill(head: HeadRole) -> str:
    """The colour of what a head does."""
    return attribute_fill(head.concept or "") if head.role is Role.CORE else ROLES[head.role]


def heat_fill(share: float) -> str:
    """Blue for a share from 0 (white) to 1; values below zero are white."""
    weight = min(1.0, max(0.0, share))
    return "#" + "".join(f"{round(255 + weight * (part - 255)):02x}" for part in _parts(HEAT))


def two_way_fill(share: float) -> str:
    """Blue for a share from 0 (white) to 1, orange for a share from 0 to -1."""
    weight, tint = min(1.0, abs(share)), FOR if share > 0 else AGAINST
    return "#" + "".join(f"{round(255 + weight * (part - 255)):02x}" for part in _parts(tint))


def ink_on(fill: str) -> str:
    """Black or white, whichever has more contrast with a colour; the contrast is at least 4.5."""
    return max(("#ffffff", "#000000"), key=lambda ink: contrast(ink, fill))


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours as defined by WCAG 2, from 1 to 21."""
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = [part / 255 for part in _parts(color)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _parts(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
