"""A part of a report: tables, figures and sentences, written once and shown as Markdown, HTML and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from dear.evaluation.statistics import Stat
from dear.reports.render import render
from dear.storage import markdown

MISSING = "—"

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
class PageSection:
    """A table or figure of the paper, as it came out here."""

    key: str
    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    says: tuple[str, ...] = ()
    """What the numbers say about the paper's claims."""
    notes: tuple[str, ...] = ()
    """How to read them, and what is missing."""


def section_markdown(part: PageSection) -> str:
    """A part as a Markdown file; its figures are links to the folder of figures."""
    plain = markdown.plain
    blocks = [f"# {plain(part.title)}"]
    for table in part.tables:
        blocks += [f"## {plain(table.title)}"] if table.title else []
        blocks.append(markdown.table(table.head, table.texts(), words=table.words))
    blocks += [f"![{plain(figure.title)}](../figures/{quote(figure.file)})" for figure in part.figures]
    blocks += map(plain, part.says)
    if part.notes:
        blocks.append("\n".join(f"- {plain(note)}" for note in part.notes))
    return "\n\n".join(blocks) + "\n"


def section_json(part: PageSection) -> dict[str, Any]:
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


def report_page(
    title: str, subtitle: str, intro: Sequence[str], parts: Sequence[PageSection], *, lead: Sequence[str] = ()
) -> str:
    """All parts as one page with a list of contents, the figures of a part after its first table.

    `lead` are sentences on top that say what comes out.
    """
    return render("sections.html", title=title, subtitle=subtitle, lead=lead, intro=intro, sections=parts)
