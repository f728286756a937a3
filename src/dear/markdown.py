"""Markdown tables, written once: aligned in their source too, safe against what names may contain."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """A table; the first `words` columns are text and left-aligned, the others are numbers."""
    cells = [[_cell(cell) for cell in row] for row in (head, *rows)]
    widths = [max(3, *(len(row[place]) for row in cells)) for place in range(len(head))]
    rule = ["-" * width if place < words else "-" * (width - 1) + ":" for place, width in enumerate(widths)]

    def line(row: Sequence[str]) -> str:
        padded = [
            f"{c:<{w}}" if place < words else f"{c:>{w}}" for place, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])


def plain(text: str) -> str:
    """Somebody's text with what would start an HTML tag escaped."""
    return text.replace("\\", "\\\\").replace("<", "\\<")


def _cell(text: str) -> str:
    """Text that can neither break a table nor become markup of its own."""
    return plain(" ".join(text.split())).replace("|", "\\|")
