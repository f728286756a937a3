"""A part of a report: tables, figures and sentences, written once and shown as Markdown, HTML and JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from dear.evaluation.statistics import Stat
from dear.reports import html

MISSING = "—"
LONG = 40
"""Letters from which on an entry may be broken into lines."""

Value = str | float | Stat | None
"""An entry of a table: words, a number, a mean with its deviation, or nothing yet."""


@dataclass(frozen=True)
class Table:
    """Rows of entries under a head; the first `words` columns are text. `paper` tells which columns are the paper's."""

    head: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""
    words: int = 1
    digits: int = 2
    paper: tuple[int, ...] = ()

    def texts(self) -> list[list[str]]:
        """The entries as they are shown."""
        return [[self._text(value) for value in row] for row in self.rows]

    def _text(self, value: Value) -> str:
        if value is None:
            return MISSING
        if isinstance(value, str):
            return value
        if isinstance(value, Stat):
            spread = "" if value.std is None else f" ± {value.std:.{self.digits}f}"
            return f"{value.mean:.{self.digits}f}{spread}"
        return f"{value + 0.0:.{self.digits}f}"


@dataclass(frozen=True)
class Figure:
    """A picture with its file's name: SVG text, or the bytes of a PNG."""

    name: str
    title: str
    svg: str = ""
    png: bytes = b""

    @property
    def file(self) -> str:
        """Name of the file with its ending."""
        return f"{self.name}.png" if self.png else f"{self.name}.svg"

    @property
    def data(self) -> bytes:
        """What the file holds."""
        return self.png or self.svg.encode()


@dataclass(frozen=True)
class Part:
    """A table or figure of the paper, as it came out here."""

    key: str
    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    says: tuple[str, ...] = ()
    """What the numbers say about the paper's claims."""
    notes: tuple[str, ...] = ()
    """How to read them, and what is missing."""


def part_markdown(part: Part) -> str:
    """A part as a Markdown file; its figures are links to the folder of figures."""
    blocks = [f"# {part.title}"]
    for table in part.tables:
        blocks += [f"## {table.title}"] if table.title else []
        blocks.append(_markdown(table))
    blocks += [f"![{figure.title}](../figures/{figure.file})" for figure in part.figures]
    blocks += part.says
    if part.notes:
        blocks.append("\n".join(f"- {note}" for note in part.notes))
    return "\n\n".join(blocks) + "\n"


def part_html(part: Part) -> str:
    """A part as a section of a page, its figures after its first table; everything is in it."""
    body = [(f"<h3>{escape(table.title)}</h3>" if table.title else "") + _html_table(table) for table in part.tables]
    if part.figures:
        body.insert(1, f'<div class="figures">{"".join(map(_html_figure, part.figures))}</div>')
    body += [f'<p class="says">{escape(sentence)}</p>' for sentence in part.says]
    if part.notes:
        body.append(f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in part.notes)}</ul>')
    return f'<section id="{part.key}"><h2>{escape(part.title)}</h2>{"".join(body)}</section>'


def part_json(part: Part) -> dict[str, Any]:
    """A part as plain values, with all digits."""
    return {
        "key": part.key,
        "title": part.title,
        "tables": [
            {
                "title": table.title,
                "head": list(table.head),
                "paper_columns": list(table.paper),
                "rows": [[_plain(value) for value in row] for row in table.rows],
            }
            for table in part.tables
        ],
        "figures": [figure.file for figure in part.figures],
        "says": list(part.says),
        "notes": list(part.notes),
    }


def _plain(value: Value) -> Any:
    if isinstance(value, Stat):
        return {name: _rounded(number) for name, number in value._asdict().items()}
    return _rounded(value)


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rule = ["---" if place < table.words else "---:" for place in range(len(table.head))]
    return "\n".join([line(table.head), line(rule), *map(line, table.texts())])


def _html_table(table: Table) -> str:
    def kind(place: int, text: str = "") -> str:
        roles = {"word": place < table.words, "paper": place in table.paper, "long": len(text) > LONG}
        names = [name for name, holds in roles.items() if holds]
        return f' class="{" ".join(names)}"' if names else ""

    top = "".join(f"<th{kind(i)}>{escape(cell)}</th>" for i, cell in enumerate(table.head))
    body = "".join(
        "<tr>" + "".join(f"<td{kind(i, cell)}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in table.texts()
    )
    return f'<div class="scroll"><table class="plain"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _html_figure(figure: Figure) -> str:
    if figure.svg:
        drawn = figure.svg.replace(' xmlns="http://www.w3.org/2000/svg"', "")
        return f'<figure class="drawn scroll">{drawn}</figure>'
    source = "data:image/png;base64," + base64.b64encode(figure.png).decode()
    caption = f"<figcaption>{escape(figure.title)}</figcaption>"
    return f'<figure class="drawn scroll">{caption}<img alt="{escape(figure.title)}" src="{source}"></figure>'


def report_page(title: str, subtitle: str, intro: Sequence[str], parts: Sequence[Part]) -> str:
    """All parts as one page with a list of contents."""
    links = "".join(f'<li><a href="#{part.key}">{escape(part.title)}</a></li>' for part in parts)
    told = "".join(f"<p>{escape(sentence)}</p>" for sentence in intro)
    body = f'{told}<nav><ul class="contents">{links}</ul></nav>{"".join(map(part_html, parts))}'
    return html.page(title, body, subtitle=subtitle)
