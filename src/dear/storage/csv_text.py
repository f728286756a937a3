"""Rows as CSV that every spreadsheet reads as they are: quoted on every Python, and never a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence


def csv_table(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    """Rows as CSV below the names of the columns; what a row lacks is empty, and nothing is a formula."""
    lines = ([no_formula(row.get(name, "")) for name in columns] for row in rows)
    return "".join(map(csv_line, (columns, *lines)))


def csv_line(row: Sequence[str]) -> str:
    """A row of a CSV table.

    Python before 3.11.9 quotes only the letters of the line ending, so rows are written with both of them.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(row)
    return text.getvalue().removesuffix("\r\n") + "\n"


def no_formula(text: str) -> str:
    """Quote text that a spreadsheet would take for a formula, such as a name that begins with "="."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
