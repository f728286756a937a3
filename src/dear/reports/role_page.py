"""One self-contained HTML page of a role map: a grid of layers and heads, and what each head says and looks at."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from PIL import Image

from dear.roles.examples import Example, Examples
from dear.roles.rolemap import HeadRole, Role, RoleMap

COLORS = {
    "color": "#d9485f",
    "shape": "#e8872e",
    "texture": "#b8860b",
    "object": "#2b8a57",
    "location": "#2f6fd0",
    Role.OTHER.value: "#8a5fbf",
    Role.GENERALIZATION.value: "#5c6b7a",
    Role.MIXED.value: "#b9bfc6",
}
MEANINGS = {
    Role.CORE: "sees the image and its own attribute's token",
    Role.OTHER: "another speciality: shielded from new tokens",
    Role.GENERALIZATION: "abstract or global: shielded from new tokens",
    Role.MIXED: "no single focus: sees everything",
}
SHORT = {Role.GENERALIZATION: "general", Role.MIXED: "mixed"}


def role_page(
    roles: RoleMap,
    *,
    title: str,
    examples: Mapping[tuple[int, int], Examples] | None = None,
    tables: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
) -> str:
    """The page as text; it needs no other file and no network."""
    layers = sorted({head.layer for head in roles.heads})
    grid = "\n".join(_grid_row(roles, layer) for layer in layers)
    details = "\n".join(
        _details(head, (examples or {}).get((head.layer, head.head))) for layer in layers for head in roles.layer(layer)
    )
    further = "\n".join(_table(name, rows) for name, rows in (tables or {}).items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_CSS}</style></head><body><main>
<h1>{escape(title)}</h1>
<p class="source">{escape(roles.provenance.source)}</p>
{_legend(roles)}
<div class="scroll"><table class="grid"><tbody>
{grid}
</tbody></table></div>
<p class="hint">Rows are layers, columns heads. Choose a head to see its phrases.</p>
{details}
{further}
{_provenance(roles)}
</main><script>{_OPEN_TARGET}</script></body></html>
"""


def head_label(head: HeadRole) -> str:
    """A word for what a head does."""
    return head.concept or SHORT.get(head.role, head.role.value)


def head_color(head: HeadRole) -> str:
    """The colour of what a head does."""
    return COLORS.get(head.concept or "", "#333") if head.role is Role.CORE else COLORS[head.role.value]


def _grid_row(roles: RoleMap, layer: int) -> str:
    cells = "".join(
        f'<td><a class="{head.role.value}" href="#h{head.layer}-{head.head}" style="--c:{head_color(head)}" '
        f'title="{escape(", ".join(head.phrases[:3]))}"><b>{head.head}</b>'
        f"<span>{escape(head_label(head))}</span></a></td>"
        for head in roles.layer(layer)
    )
    return f"<tr><th>{layer}</th>{cells}</tr>"


def _legend(roles: RoleMap) -> str:
    counts = Counter(head.role for head in roles.heads)
    attributes = Counter(head.concept for head in roles.heads if head.role is Role.CORE)
    core = ", ".join(
        f'<span class="dot" style="--c:{COLORS.get(name, "#333")}"></span>{escape(name)} {attributes[name]}'
        for name in roles.attributes
    )
    rows = "".join(
        f'<li><span class="dot" style="--c:{COLORS.get(role.value, "#fff0")}"></span>'
        f"<b>{role.value.replace('_', ' ')}</b> {counts[role]} &middot; {MEANINGS[role]}"
        f"{f' &middot; {core}' if role is Role.CORE else ''}</li>"
        for role in Role
    )
    return f'<ul class="legend">{rows}</ul>'


def _details(head: HeadRole, examples: Examples | None) -> str:
    phrases = "".join(f"<li>{escape(phrase)}</li>" for phrase in head.phrases)
    entropy = "" if head.entropy is None else f"<p>Concept entropy {head.entropy:.2f}</p>"
    bars = "".join(
        f'<div class="bar"><i style="width:{100 * share:.0f}%"></i>'
        f"<span>{escape(name)} {100 * share:.0f}&nbsp;%</span></div>"
        for name, share in sorted((head.shares or {}).items(), key=lambda item: (-item[1], item[0]))
    )
    pictures = ""
    if examples and examples.most:
        pictures = f"<p>Responds most to</p>{_strip(examples.most)}<p>Responds least to</p>{_strip(examples.least)}"
    role = head.role.value.replace("_", " ")
    return (
        f'<details id="h{head.layer}-{head.head}"><summary><span class="dot" style="--c:{head_color(head)}"></span>'
        f"Layer {head.layer}, head {head.head}: {role}{f' ({escape(head.concept)})' if head.concept else ''}</summary>"
        f'<div class="body"><ol>{phrases or "<li>no phrase spans what it writes</li>"}</ol>'
        f"<div>{entropy}{bars}{pictures}</div></div></details>"
    )


def _strip(examples: Sequence[Example]) -> str:
    images = (
        f'<img alt="{escape(e.name)}" title="{escape(e.name)}" src="{_data_url(e.thumbnail)}" loading="lazy">'
        for e in examples
    )
    return f'<div class="strip">{"".join(images)}</div>'


def _data_url(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _table(name: str, rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row.values()) + "</tr>" for row in rows)
    return (
        f'<h2>{escape(name)}</h2><div class="scroll"><table class="plain"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _provenance(roles: RoleMap) -> str:
    items = {key: value for key, value in roles.provenance.model_dump(exclude_none=True).items() if value}
    rows = "".join(
        f"<tr><th>{escape(key.replace('_', ' '))}</th><td>{_value(value)}</td></tr>" for key, value in items.items()
    )
    return f'<h2>Where this comes from</h2><div class="scroll"><table class="plain">{rows}</table></div>'


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "<br>".join(f"{escape(str(key).replace('_', ' '))}: {escape(str(item))}" for key, item in value.items())
    return escape(", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value))


_OPEN_TARGET = """
const open=()=>{const d=document.getElementById(location.hash.slice(1));if(d&&d.tagName==="DETAILS"){d.open=true;
d.scrollIntoView({block:"center"})}};addEventListener("hashchange",open);open();
"""

_CSS = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:#f6f7f9;color:#1d2630;font:15px/1.5 system-ui,sans-serif}
main{max-width:1060px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:24px;margin:0}
h2{font-size:18px;margin:32px 0 8px}
.source,.hint{color:#5b6672;margin:4px 0 16px}
.scroll{overflow-x:auto}
.legend{list-style:none;padding:0;margin:0 0 16px}
.legend li{margin:2px 0}
.dot{display:inline-block;width:.8em;height:.8em;border-radius:50%;background:var(--c);margin-right:.35em}
.grid{border-spacing:4px}
.grid th{color:#5b6672;font-weight:600;padding-right:6px}
.grid a{display:block;width:74px;padding:6px 4px;border-radius:6px;background:var(--c);color:#fff;
text-decoration:none;text-align:center;font-size:12px}
.grid a.mixed{color:#1d2630}
.grid a:hover{outline:2px solid #1d2630}
.grid b{display:block;font-size:11px;opacity:.75}
.grid span{display:block;overflow:hidden;text-overflow:ellipsis}
details{background:#fff;border:1px solid #dfe3e8;border-radius:8px;margin:6px 0}
summary{cursor:pointer;padding:8px 12px}
details:target{outline:2px solid #2f6fd0}
.body{display:flex;flex-wrap:wrap;gap:24px;padding:0 16px 16px}
.body ol{flex:1 1 280px;margin:0;padding-left:22px}
.body>div{flex:1 1 280px}
.body p{margin:8px 0 2px;color:#5b6672}
.bar{position:relative;background:#eef1f4;border-radius:4px;margin:2px 0;overflow:hidden}
.bar i{position:absolute;inset:0 auto 0 0;background:#c6d7f2}
.bar span{position:relative;padding:0 8px}
.strip{display:flex;flex-wrap:wrap;gap:4px}
.strip img{height:72px;border-radius:4px}
.plain{border-collapse:collapse;background:#fff}
.plain td,.plain th{border:1px solid #dfe3e8;padding:4px 10px;text-align:left;vertical-align:top;overflow-wrap:anywhere}
"""
