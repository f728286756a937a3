"""The roles of heads as a coloured grid for a page."""

from __future__ import annotations

from html import escape

from dear.reports.role_page import head_color, head_label
from dear.roles.rolemap import RoleMap


def role_grid_html(roles: RoleMap) -> str:
    """Layers down, heads across, each cell in its role's colour with the first phrases as a hint."""
    rows = ""
    for layer in sorted({head.layer for head in roles.heads}):
        cells = "".join(
            f'<td style="background:{head_color(head)};color:#fff;text-align:center" '
            f'title="{escape(", ".join(head.phrases[:3]))}">{escape(head_label(head))}</td>'
            for head in roles.layer(layer)
        )
        rows += f"<tr><th>{layer}</th>{cells}</tr>"
    return f'<div class="scroll"><table class="roles"><tbody>{rows}</tbody></table></div>'
