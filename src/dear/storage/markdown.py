"""Tables as text, written once: Markdown, aligned in its source too and safe against names; and plain for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from dear.storage.files import visible


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


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1, width: int = 80) -> str:
    """A plain table for a terminal: if it is too wide, the columns of numbers go on in further tables below."""
    cells = [[" ".join(cell.split()) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    taken = sum(widths[:words]) + 2 * (words - 1)
    blocks: list[list[int]] = [[]]
    for place in range(words, len(head)):
        if blocks[-1] and taken + sum(widths[one] + 2 for one in (*blocks[-1], place)) > width:
            blocks.append([])
        blocks[-1].append(place)

    def line(row: Sequence[str], block: Sequence[int]) -> str:
        named = [f"{row[place]:<{widths[place]}}" for place in range(words)]
        return "  ".join([*named, *(f"{row[place]:>{widths[place]}}" for place in block)]).rstrip()

    return "\n\n".join("\n".join(line(row, block) for row in cells) for block in blocks)


def plain(text: str) -> str:
    """Somebody's text with what would start an HTML tag escaped."""
    return visible(text).replace("\\", "\\\\").replace("<", "\\<")


def _cell(text: str) -> str:
    """Text that can neither break a table nor become markup of its own."""
    return plain(" ".join(text.split())).replace("|", "\\|")
