"""The figure of a role map: one cell per layer and head, and how stable each is, as SVG or PDF."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import wrap

from dear.errors import ConfigError, option
from dear.reports.colors import ROLES, attribute_fill, head_fill, ink_on
from dear.reports.drawing import Box, Drawing, Label, text_width
from dear.reports.svg import GRID, LETTER, LIGHT, TEXT, shortened
from dear.roles.grid import head_word, role_name
from dear.roles.rolemap import LEAST_KAPPA, HeadRole, Role, RoleMap, Stability
from dear.storage.files import write_result

SUFFIXES = (".svg", ".pdf")
WIDE, TALL, LEFT, TOP, LINE = 78, 32, 70, 54, 18
"""Width and height of a head, position of the first one, height of a line of text, in pixels."""
BAR = 6
"""Height of the bar below a head."""


def role_figure(roles: RoleMap, title: str | None = None) -> Drawing:
    """A grid with one row per layer and one cell per head, in the colour of its role and with a word for it.

    If the map records its stability, a bar below each head shows how often resampled images give it the same role.
    """
    title = title or _title(roles)
    stability = roles.stability if roles.stability and roles.stability.kappas else None
    places = [(head.layer, head.head) for head in roles.heads]
    same = dict(zip(places, stability.same if stability else (), strict=False))
    layers = sorted({head.layer for head in roles.heads})
    most = max(len(roles.layer(layer)) for layer in layers)
    tall = TALL + (BAR + 4 if stability else 0)
    width = max(LEFT + WIDE * most + 8, 400, round(24 + 1.1 * text_width(title)))
    parts: list[Box | Label] = [Label(8, 18, title, bold=True)]
    parts += [Label(LEFT + WIDE * (j + 0.5), TOP - 8, f"head {j}", "middle", LIGHT) for j in range(most)]
    for i, layer in enumerate(layers):
        parts.append(Label(LEFT - 8, TOP + tall * i + 20, f"layer {layer}", "end", LIGHT))
        for j, head in enumerate(roles.layer(layer)):
            parts += _cell(head, LEFT + WIDE * j, TOP + tall * i)
            if stability:
                parts += _bar(same[layer, head.head], LEFT + WIDE * j, TOP + tall * i + TALL - 1)
    below, bottom = _below(roles, width, TOP + tall * len(layers) + LINE)
    return Drawing(width, bottom, title, (*parts, *below))


def check_figure(path: Path) -> None:
    """Refuse a file that is neither SVG nor PDF."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{option(figure=str(path))} is neither an SVG nor a PDF file: use a name in .svg or .pdf.")


def write_figure(roles: RoleMap, path: Path) -> None:
    """Write the figure of a role map as the kind of file that the suffix names."""
    check_figure(path)
    figure = role_figure(roles)
    write_result(path, figure.svg() if path.suffix.lower() == ".svg" else figure.pdf())


def _title(roles: RoleMap) -> str:
    model = roles.provenance.model
    return f"Roles of the heads of {Path(model).name}" if model else "Roles of heads"


def _cell(head: HeadRole, x: float, y: float) -> list[Box | Label]:
    fill = head_fill(head)
    word = shortened(head_word(head), WIDE - 6)
    box = Box(x, y, WIDE - 3, TALL - 3, fill, hint=", ".join(head.phrases[:3]))
    return [box, Label(x + WIDE / 2 - 1, y + 19, word, "middle", ink_on(fill))]


def _bar(share: float, x: float, y: float) -> list[Box | Label]:
    hint = f"the same role in {100 * share:.0f} % of the resamples"
    track = Box(x, y, WIDE - 3, BAR, GRID, hint)
    return [track, Box(x, y, share * (WIDE - 3), BAR, TEXT, hint)] if share else [track]


def _below(roles: RoleMap, width: int, y: float) -> tuple[list[Box | Label], int]:
    """Legend and caption from a height on, and the height at which they end."""
    parts: list[Box | Label] = []
    x = 8.0
    for name, fill in _legend(roles):
        wide = 18 + LETTER * len(name) + 12
        if x > 8 and x + wide > width:
            x, y = 8.0, y + LINE
        parts += [Box(x, y - 10, 12, 12, fill), Label(x + 18, y, name)]
        x += wide
    for line in wrap(_caption(roles), int((width - 16) / LETTER)):
        y += LINE
        parts.append(Label(8, y, line, fill=LIGHT))
    return parts, round(y + 10)


def _legend(roles: RoleMap) -> list[tuple[str, str]]:
    """Every attribute and role that occurs, with its number of heads and its colour."""
    core = Counter(head.concept for head in roles.heads if head.role is Role.CORE)
    counts = Counter(head.role for head in roles.heads)
    entries = [(f"{name}: {core[name]}", attribute_fill(name)) for name in roles.attributes if core[name]]
    return entries + [(f"{role_name(role)}: {counts[role]}", fill) for role, fill in ROLES.items() if counts[role]]


def _caption(roles: RoleMap) -> str:
    if roles.stability is None:
        return ""
    if (kappa := roles.stability.kappa) is None:
        return "Stability unknown: too few images to test whether resampling confirms it."
    return _measured(roles.stability, kappa) + (
        f" This is below {LEAST_KAPPA}: the map is unstable." if roles.is_unstable else ""
    )


def _measured(stability: Stability, kappa: float) -> str:
    count, low, high = len(stability.kappas), min(stability.kappas), max(stability.kappas)
    return (
        f"Bars: share of {count} resamples of the images in which a head has the same role and concept. "
        f"Cohen's kappa with the resampled maps: median {kappa:.2f}, from {low:.2f} to {high:.2f}."
    )
