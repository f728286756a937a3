"""Write the tables of docs/how-to/which-method.md from the cells in results/.

python benchmarks/which_method.py            # print them
python benchmarks/which_method.py --write    # put them into the page
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from documented_numbers import ROOT, compared

from dear.methods.registry import get_method
from dear.storage.markdown import table

PAGE = ROOT / "docs" / "how-to" / "which-method.md"
PLAIN = "zero_shot"
WITHOUT_PAGE = ("zero_shot", "dear")
Records = dict[str, dict[str, Any]]


def read(name: str) -> Records:
    """What the cells of a folder say by method and variant, in their order."""
    rows = compared(name).records
    return {", ".join(filter(None, (row["method"], row["variant"]))): row for row in rows}


def link(row: dict[str, Any]) -> str:
    """A method's name, linked to its page."""
    name, more = row["method"], f" ({row['variant']})" if row["variant"] else ""
    return f"`{name}`{more}" if name in WITHOUT_PAGE else f"[`{name}`](../methods/{name}.md){more}"


def number(value: float | None, spread: float | None = None) -> str:
    """Per cent with one digit, with the spread if it is known."""
    if value is None:
        return "–"
    return f"{value:.1f}" if spread is None else f"{value:.1f} ± {spread:.1f}"


def change(row: dict[str, Any], plain: dict[str, Any], column: str) -> str:
    """Points above or below plain CLIP."""
    value, start = row.get(f"{column}_mean"), plain.get(f"{column}_mean")
    return "–" if value is None or start is None else f"{value - start:+.1f}".replace("-", "−")


def accuracy_table(world: Records, photographs: Records, few: Records) -> str:
    """Accuracy and forgetting, the best method on the world first."""
    head = ("method", "world: HM", "trained classes", "other classes")
    head += ("photographs: HM", "trained classes", "other classes", "4 shots", "16 shots")
    rows = []
    star = " *" if not all(row["tied_with_best"] for row in world.values()) else ""
    names = [*world, *(name for name in {**photographs, **few} if name not in world)]
    for name in names:
        one, two, three = (found.get(name, {}) for found in (world, photographs, few))
        rows.append(
            (
                link(one or two or three),
                number(one.get("hm_mean"), one.get("hm_spread")) + (star if one.get("tied_with_best") else ""),
                *(change(one, world.get(PLAIN, {}), column) for column in ("base", "novel")),
                number(two.get("hm_mean"), two.get("hm_spread")),
                *(change(two, photographs.get(PLAIN, {}), column) for column in ("base", "novel")),
                *(number(three.get(f"accuracy_{shots}_mean")) for shots in (4, 16)),
            )
        )
    return table(head, rows)


def cost_table(world: Records, few: Records) -> str:
    """What each method costs and needs, the quickest first."""
    head = ("method", "seconds", "peak memory, MB", "adapter, KB", "trained numbers", "needs besides labelled photos")
    rows = {**few, **world}
    ordered = sorted(rows.values(), key=lambda row: (row["seconds"], row["method"]))
    return table(head, [(link(row), *_costs(row), _needs(row["method"])) for row in ordered])


def _costs(row: dict[str, Any]) -> tuple[str, ...]:
    size = row["artefact_bytes"] / 1024
    kilobytes = f"{size:,.0f}" if size >= 1 else f"{size:.1f}"
    return f"{row['seconds']:,.1f}", f"{row['peak_memory_mb']:,.0f}", kilobytes, f"{row['parameters']:,.0f}"


def _needs(method: str) -> str:
    about = get_method(method).about
    return about.needs if about and about.needs != "nothing" else "–"


def between(text: str, tables: Mapping[str, str]) -> str:
    """A page with every table put between the two marks that bear its name."""
    for name, made in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, mark, rest = text.partition(begin)
        if not mark or end not in rest:
            raise ValueError(f"the page has no place for the table {name!r}: {begin} … {end}")
        text = f"{before}{begin}\n{made}\n{end}{rest.partition(end)[2]}"
    return text


def tables() -> dict[str, str]:
    """The tables of the page by name."""
    few = read("few-shot")
    accuracy = accuracy_table(read("world-tuned"), read("photographs-tuned"), few)
    return {"accuracy": accuracy, "cost": cost_table(read("world"), few)}


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
