"""Small parts of self-contained HTML pages: a frame, tables, pictures, curves. No script, no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape

from PIL import Image

INK = ("#2f6fd0", "#d9485f", "#2b8a57", "#e8872e", "#8a5fbf", "#5c6b7a")


def page(title: str, body: str, *, subtitle: str = "") -> str:
    """A whole page."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_CSS}</style></head><body><main>
<h1>{escape(title)}</h1>
<p class="quiet">{escape(subtitle)}</p>
{body}
</main></body></html>
"""


def section(title: str, *parts: str, note: str = "") -> str:
    """A headed part of a page."""
    remark = f'<p class="quiet">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{remark}{''.join(parts)}</section>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table; the first column is text, the others numbers."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def heat_map(rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], *, digits: int = 2) -> str:
    """A table whose cells are darker the larger their value is among all."""
    largest = max((value for row in values for value in row), default=0.0) or 1.0
    top = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = ""
    for name, row in zip(rows, values, strict=True):
        cells = "".join(_heat_cell(value, largest, digits) for value in row)
        body += f"<tr><th>{escape(name)}</th>{cells}</tr>"
    head = f"<thead><tr><th></th>{top}</tr></thead>"
    return f'<div class="scroll"><table class="heat">{head}<tbody>{body}</tbody></table></div>'


def _heat_cell(value: float, largest: float, digits: int) -> str:
    share = max(0.0, value / largest)
    ink = "#fff" if share > 0.55 else "#1d2630"
    return f'<td style="background:rgba(47,111,208,{share:.2f});color:{ink}">{value:.{digits}f}</td>'


def strip(pictures: Sequence[tuple[Image.Image, str]]) -> str:
    """Pictures in a row, each with a line below it."""
    cells = "".join(
        f'<figure><img alt="{escape(text)}" src="{data_url(image)}" loading="lazy">'
        f"<figcaption>{escape(text)}</figcaption></figure>"
        for image, text in pictures
    )
    return f'<div class="strip">{cells}</div>'


def data_url(image: Image.Image) -> str:
    """A picture as part of the page."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def curves(title: str, lines: Mapping[str, Sequence[float]], *, width: int = 480, height: int = 220) -> str:
    """Lines over the steps as SVG, with their last values in the legend."""
    values = [value for line in lines.values() for value in line]
    if not values:
        return ""
    low, high = min(0.0, *values), max(values)
    span = (high - low) or 1.0
    drawn, legend = [], []
    for (name, line), ink in zip(lines.items(), INK * 9, strict=False):
        steps = max(1, len(line) - 1)
        points = " ".join(
            f"{52 + (width - 62) * i / steps:.1f},{height - 24 - (height - 40) * (value - low) / span:.1f}"
            for i, value in enumerate(line)
        )
        drawn.append(f'<polyline fill="none" stroke="{ink}" stroke-width="1.5" points="{points}"/>')
        legend.append(f'<li><span class="dot" style="background:{ink}"></span>{escape(name)} {line[-1]:.3g}</li>')
    axes = (
        f'<line x1="52" y1="{height - 24}" x2="{width - 10}" y2="{height - 24}" stroke="#b9bfc6"/>'
        f'<text x="48" y="20" text-anchor="end">{high:.3g}</text>'
        f'<text x="48" y="{height - 24}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{width - 10}" y="{height - 8}" text-anchor="end">{max(map(len, lines.values()))} steps</text>'
    )
    return (
        f'<figure class="curves"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{axes}{"".join(drawn)}</svg>'
        f'<ul class="legend">{"".join(legend)}</ul></figure>'
    )


_CSS = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:#f6f7f9;color:#1d2630;font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:24px;margin:0;overflow-wrap:anywhere}
h2{font-size:18px;margin:32px 0 8px}
.quiet{color:#5b6672;margin:4px 0 12px;overflow-wrap:anywhere}
.scroll{overflow-x:auto}
.scroll+.scroll{margin-top:12px}
table{border-collapse:collapse;background:#fff}
td,th{border:1px solid #dfe3e8;padding:4px 10px;text-align:right;font-variant-numeric:tabular-nums}
td:first-child,th:first-child{text-align:left}
.heat td{min-width:44px;text-align:center;padding:3px 6px}
.heat th{font-weight:500;white-space:nowrap}
.strip{display:flex;flex-wrap:wrap;gap:8px;margin:4px 0 12px}
.strip figure{margin:0;width:112px}
.strip img{width:112px;height:112px;object-fit:cover;border-radius:6px;background:#dfe3e8}
.strip figcaption{font-size:12px;line-height:1.3;color:#5b6672;overflow-wrap:anywhere}
.row{display:grid;grid-template-columns:repeat(auto-fill,minmax(280px,1fr));gap:16px}
.curves{margin:0;flex:1 1 320px;background:#fff;border:1px solid #dfe3e8;border-radius:8px;padding:8px}
.curves svg{width:100%;height:auto}
.curves text{font-size:11px;fill:#5b6672}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;margin:0;padding:0;font-size:13px}
.dot{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.35em}
h3{font-size:15px;margin:20px 0 6px}
td.word,th.word{text-align:left}
.plain td,.plain th{white-space:nowrap}
.plain td.long{white-space:normal;min-width:280px;overflow-wrap:anywhere}
td.paper,th.paper{background:#eef2f8;color:#45525f}
.says{margin:10px 0 4px;padding:6px 12px;border-left:3px solid #2f6fd0;background:#fff}
.notes{color:#5b6672;margin:8px 0;padding-left:20px;font-size:14px;overflow-wrap:anywhere}
.contents{columns:2 320px;padding-left:20px;margin:12px 0}
.contents a{color:#2f6fd0}
.figures{display:flex;flex-wrap:wrap;gap:12px;margin:8px 0}
.drawn{margin:0;background:#fff;border:1px solid #dfe3e8;border-radius:8px;padding:8px;max-width:100%}
.drawn svg,.drawn img{display:block;max-width:none}
.drawn figcaption{font-size:13px;margin-bottom:6px}
"""
