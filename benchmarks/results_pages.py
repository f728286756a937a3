"""Write the tables and the page of folders in results/ again, from their cells; nothing is trained.

python benchmarks/results_pages.py world few-shot photographs
"""

from __future__ import annotations

import csv
import sys

from documented_numbers import RESULTS, cells

from dear.evaluation.tables import to_csv, to_markdown
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import write_comparison
from dear.storage.files import write_atomic


def write(folder: str) -> int:
    """Write what `dear compare` writes next to the cells; returns the number of cells.

    Data sets stay in the order of the table that is replaced.
    """
    out = RESULTS / folder
    with (out / "table.csv").open(encoding="utf-8", newline="") as file:
        before = list(dict.fromkeys(row["data"] for row in csv.DictReader(file)))
    found = sorted(cells(folder), key=lambda cell: before.index(cell.data))
    write_atomic(out / "table.csv", to_csv(found).encode())
    write_atomic(out / "table.md", to_markdown(found).encode())
    write_comparison(out, make_comparison(found, {}))
    return len(found)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"results/{name}: {write(name)} cells")
