"""The tables of published methods in docs/explanation/results.md, from the cells in results/.

python benchmarks/results_tables.py            # print them
python benchmarks/results_tables.py --write    # put them into the page
"""

from __future__ import annotations

import argparse
import json

from honest_selection import summary
from which_method import RESULTS, ROOT, between, comparison, link

from dear.evaluation.summary import Row
from dear.reports.compare_data import Comparison
from dear.storage.markdown import table

PAGE = ROOT / "docs" / "explanation" / "results.md"
HALVES = ("base", "novel", "hm")


def named(row: Row) -> str:
    """A method's name, linked to its page."""
    return link({"method": row.method, "variant": row.variant})


def number(made: Comparison, row: Row, column: str, digits: int) -> str:
    """A mean over data sets, with its spread over seeds if there are several."""
    stat = made.mean(row, column)
    if stat is None:
        return "–"
    return f"{stat.mean:.{digits}f}" if stat.std is None else f"{stat.mean:.{digits}f} ± {stat.std:.{digits}f}"


def by_set(made: Comparison, row: Row, column: str) -> list[str]:
    """The mean of every data set."""
    stats = [made.summary.stat(row, data, column) for data in sorted(made.summary.averaged)]
    return ["–" if stat is None else f"{stat.mean:.1f}" for stat in stats]


def halves_table(name: str, digits: int, *, sets: bool) -> str:
    """Base, novel and HM, the best method first; with HM of every data set."""
    made = comparison(name)
    data = [one.removeprefix("world-") for one in sorted(made.summary.averaged)] if sets else []
    rows = []
    for row in made.rows:
        base, novel, hm = (number(made, row, column, digits) for column in HALVES)
        rows.append((named(row), base, novel, f"**{hm}**", *(by_set(made, row, "hm") if sets else ())))
    return table(("method", "base", "novel", "HM", *data), rows)


def few_shot_table(name: str) -> str:
    """Accuracy by number of shots, the best method with the most shots first."""
    made = comparison(name)
    data = [one.removeprefix("world-") for one in sorted(made.summary.averaged)]
    head = ("method", *(f"{column} shots" for column in made.columns))
    head += tuple(f"{one}, {column}" for column in made.columns for one in data)
    order = sorted(made.rows, key=lambda row: -(stat.mean if (stat := made.mean(row, made.main)) else 0.0))
    lines = []
    for row in order:
        means = (f"**{number(made, row, column, 1)}**" for column in made.columns)
        lines.append((named(row), *means, *(one for column in made.columns for one in by_set(made, row, column))))
    return table(head, lines)


def tables() -> dict[str, str]:
    """Every table by the name of its place."""
    return {
        "world": halves_table("world", 2, sets=True),
        "own": halves_table("own", 1, sets=False),
        "few-shot": few_shot_table("few-shot"),
        "own-few-shot": few_shot_table("own-few-shot"),
        "selection": summary(json.loads((RESULTS / "honest-selection.json").read_text(encoding="utf-8"))),
        "photographs": halves_table("photographs", 1, sets=False),
    }


def page(text: str) -> str:
    """The page with its tables replaced."""
    return between(text, tables())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    if parser.parse_args().write:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(*tables().values(), sep="\n\n")


if __name__ == "__main__":
    main()
