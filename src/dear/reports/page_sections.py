"""Sections of a report (tables, figures and sentences), and their output as Markdown, HTML and JSON."""

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
    """Rows of entries under a head; the first `words` columns are text, and `paper` lists the paper's columns."""

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
    """A figure with the name of its file: SVG text, or the bytes of a PNG."""

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
        """The content of the file."""
        return self.png or self.svg.encode()


@dataclass(frozen=True)
class PageSection:
    """A section of a report page, such as a table or figure of the paper with the numbers measured here."""

    key: str
    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    says: tuple[str, ...] = ()
    """Sentences on whether the numbers support the paper's claims."""
    notes: tuple[str, ...] = ()
    """How to read the numbers, and what is missing."""


def section_markdown(section: PageSection) -> str:
    """A section as a Markdown file; its figures are links to the folder of figures."""
    plain = markdown.plain
    blocks = [f"# {plain(section.title)}"]
    for table in section.tables:
        blocks += [f"## {plain(table.title)}"] if table.title else []
        blocks.append(markdown.table(table.head, table.texts(), words=table.words))
    blocks += [f"![{plain(figure.title)}](../figures/{quote(figure.file)})" for figure in section.figures]
    blocks += map(plain, section.says)
    if section.notes:
        blocks.append("\n".join(f"- {plain(note)}" for note in section.notes))
    return "\n\n".join(blocks) + "\n"


def section_json(section: PageSection) -> dict[str, Any]:
    """A section as plain values, with all digits."""
    return {
        "key": section.key,
        "title": section.title,
        "tables": [
            {
                "title": table.title,
                "head": list(table.head),
                "paper_columns": list(table.paper),
                "rows": [[_plain(value) for value in row] for row in table.rows],
            }
            for table in section.tables
        ],
        "figures": [figure.file for figure in section.figures],
        "says": list(section.says),
        "notes": list(section.notes),
    }


def _plain(value: Value) -> Any:
    if isinstance(value, Stat):
        return {name: _rounded(number) for name, number in value._asdict().items()}
    return _rounded(value)


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def report_page(
    title: str, subtitle: str, intro: Sequence[str], sections: Sequence[PageSection], *, lead: Sequence[str] = ()
) -> str:
    """Return a page with a list of contents and all sections; figures follow the first table of their section.

    `lead` are sentences at the top that summarise the results.
    """
    return render("sections.html", title=title, subtitle=subtitle, lead=lead, intro=intro, sections=sections)
