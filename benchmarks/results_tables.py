"""Write every table and number of README and docs that is a result, from the cells and JSON files in results/.

python benchmarks/results_tables.py            # list the pages that would change
python benchmarks/results_tables.py --write    # change them
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import clip_tables
import measured_tables as measured
import which_method
from documented_numbers import DEAR, PLAIN, ROOT, by_readout, cells, compared, document, filled
from honest_selection import summary as selection_table
from which_method import between, link

from dear.evaluation.statistics import Stat, mean_and_std
from dear.evaluation.summary import Row, Summary
from dear.reports.compare_data import Comparison
from dear.storage.markdown import table

DOCS = ROOT / "docs"
PAGE = DOCS / "explanation" / "results.md"
HALVES = ("base", "novel", "hm")
SEVEN = tuple(f"world-{one}" for one in ("textures", "blooms", "things", "places", "emblems", "scenes", "broad"))
ELEVEN = (*SEVEN, *(f"world-broad-{one}" for one in ("v2", "sketch", "a", "r")))
MASKS = {
    "zero-shot": PLAIN,
    "DeAR": DEAR,
    "all-mixed": Row("dear", "mask=all_mixed"),
    "all-generalization": Row("dear", "mask=all_generalization"),
    "shuffled roles": Row("dear", "mask=shuffled"),
}


def named(row: Row) -> str:
    """A method's name, linked to its page."""
    return link({"method": row.method, "variant": row.variant})


def shown(stat: Stat | None, digits: int = 1) -> str:
    """A mean, with its spread over seeds if there are several."""
    if stat is None:
        return "–"
    return f"{stat.mean:.{digits}f}" if stat.std is None else f"{stat.mean:.{digits}f} ± {stat.std:.{digits}f}"


def by_set(made: Comparison, row: Row, column: str) -> list[str]:
    """The mean of every data set."""
    stats = [made.summary.stat(row, data, column) for data in sorted(made.summary.averaged)]
    return ["–" if stat is None else f"{stat.mean:.1f}" for stat in stats]


def halves_table(name: str, digits: int, *, sets: bool) -> str:
    """Base, novel and HM, the best method first; with HM of every data set."""
    made = compared(name)
    data = [one.removeprefix("world-") for one in sorted(made.summary.averaged)] if sets else []
    rows = []
    for row in made.rows:
        base, novel, hm = (shown(made.mean(row, column), digits) for column in HALVES)
        rows.append((named(row), base, novel, f"**{hm}**", *(by_set(made, row, "hm") if sets else ())))
    return table(("method", "base", "novel", "HM", *data), rows)


def moved_table() -> str:
    """The world by the tuned recipe, beside the shared one: HM, and places among the methods that have both."""
    tuned, shared = compared("world-tuned"), compared("world")
    before = [row for row in shared.rows if row in tuned.rows]
    lines = []
    for place, row in enumerate(tuned.rows, 1):
        base, novel, hm = (shown(tuned.mean(row, column)) for column in HALVES)
        old, new = shared.mean(row, "hm"), tuned.mean(row, "hm")
        assert old
        assert new
        change = f"{new.mean - old.mean:+.1f}".replace("-", "−")
        lines.append((named(row), base, novel, f"**{hm}**", change, str(place), str(before.index(row) + 1)))
    return table(("method", "base", "novel", "HM", "change of HM", "place", "place, shared"), lines)


def seeds_table(name: str) -> str:
    """Base, novel and HM of a folder whose methods have different numbers of seeds."""
    made, lines = compared(name), []
    for row in sorted(made.summary.values, key=lambda one: -(stat.mean if (stat := made.mean(one, "hm")) else 0.0)):
        base, novel, hm = (shown(made.mean(row, column)) for column in HALVES)
        lines.append((named(row), str(made.summary.seeds(row, None, "hm")), base, novel, f"**{hm}**"))
    return table(("method", "seeds", "base", "novel", "HM"), lines)


def few_shot_table(name: str) -> str:
    """Accuracy by number of shots, the best method with the most shots first."""
    made = compared(name)
    data = [one.removeprefix("world-") for one in sorted(made.summary.averaged)]
    head = ("method", *(f"{column} shots" for column in made.columns))
    head += tuple(f"{one}, {column}" for column in made.columns for one in data)
    order = sorted(made.rows, key=lambda row: -(stat.mean if (stat := made.mean(row, made.main)) else 0.0))
    lines = []
    for row in order:
        means = (f"**{shown(made.mean(row, column))}**" for column in made.columns)
        lines.append((named(row), *means, *(one for column in made.columns for one in by_set(made, row, column))))
    return table(head, lines)


def average(summary: Summary, row: Row, column: str) -> Stat | None:
    """The average over data sets, if there is any."""
    found = summary.average(row, column) if row in summary.values else None
    return found and found.stat


def sets_table(columns: Mapping[str, tuple[Summary, Row]], data: tuple[str, ...], *, seven: bool) -> str:
    """HM of every data set of the world, then the averages; `seven` adds that of the sets without a shift."""
    lines = []
    for one in data:
        lines.append(
            (one.removeprefix("world-"), *(shown(found.stat(row, one, "hm")) for found, row in columns.values()))
        )
    for column, name in (("base", "base"), ("novel", "novel"), ("hm", "**HM**")):
        stats = (shown(average(found, row, column), 2) for found, row in columns.values())
        lines.append((f"{name}, {len(data)} sets", *(f"**{one}**" if column == "hm" else one for one in stats)))
    if seven:
        parts = ((_only(found, SEVEN), row) for found, row in columns.values())
        lines.append(("HM, the first 7", *(shown(average(found, row, "hm"), 2) for found, row in parts)))
    return table(("data", *columns), lines)


def _only(summary: Summary, data: tuple[str, ...]) -> Summary:
    values = {
        row: {seed: {key: one for key, one in of_seed.items() if key[0] in data} for seed, of_seed in seeds.items()}
        for row, seeds in summary.values.items()
    }
    return Summary(summary.section, summary.readout, summary.rows, data, summary.columns, values)


def eleven_table() -> str:
    """Plain CLIP and DeAR on all sets of the world."""
    made = compared("eleven")
    whole, alone = made.summary, by_readout(made, "decoupled")
    return sets_table(
        {"zero-shot": (whole, PLAIN), "DeAR": (whole, DEAR), "DeAR, decoupled": (alone, DEAR)}, ELEVEN, seven=True
    )


def masks_table() -> str:
    """DeAR with other masks on the seven sets, seed 1."""
    made = compared("masks")
    return sets_table({name: (made.summary, row) for name, row in MASKS.items()}, SEVEN, seven=False)


def photograph_masks_table() -> str:
    """The same on photographs, with the number of seeds of each."""
    made = compared("photographs-100")
    alone = by_readout(made, "decoupled")
    lines = []
    for name, row in MASKS.items():
        if row in made.summary.values:
            stats = [shown(made.mean(row, column)) for column in HALVES]
            other = shown(average(alone if row != PLAIN else made.summary, row, "hm"))
            lines.append((name, str(made.summary.seeds(row, None, "hm")), *stats[:2], f"**{stats[2]}**", other))
    return table(("", "seeds", "base", "novel", "HM", "HM, decoupled"), lines)


def zero_shot_table() -> str:
    """Plain CLIP on the base and novel classes of every set of the world."""
    made, lines = compared("eleven"), []
    first = {cell.data: cell for cell in made.cells[PLAIN] if cell.seed == 1}
    for data in ELEVEN:
        halves = [first[data].score(half) for half in ("base", "novel")]
        sizes = (sum(len(one.per_class) for one in halves), sum(one.images for one in halves))
        lines.append((data, *(f"{size:,}" for size in sizes), *(f"{one.accuracy['logits']:.1f}" for one in halves)))
    means = [shown(average(made.summary, PLAIN, column)).split(" ")[0] for column in ("base", "novel")]
    return table(("data set", "classes", "images", "base", "novel"), [*lines, ("mean", "", "", *means)])


def weights_table(method: str, kinds: tuple[str, ...], digits: int, *, accuracy: bool) -> str:
    """Learned weights by data set, means over seeds, with the HM of plain CLIP and of the method."""
    made = compared("world")
    lines = []
    for data in SEVEN:
        found = [cell for cell in cells("world") if (cell.method, cell.data) == (method, data)]
        means = (mean_and_std([cell.weights[kind] for cell in found]).mean for kind in kinds)
        hms = [made.summary.stat(row, data, "hm") for row in (PLAIN, Row(method, ""))] if accuracy else []
        numbers = (f"{value:.{digits}f}".replace("-", "−") for value in means)
        lines.append((data.removeprefix("world-"), *numbers, *(f"{one.mean:.1f}" for one in hms if one)))
    return table(("data", *kinds, *(("HM plain", "HM gains") if accuracy else ())), lines)


def descriptions_table() -> str:
    """Methods on photographs without and with sentences that a language model wrote about the classes."""
    without, described, lines = compared("descriptions-none"), compared("descriptions"), []
    for row in described.rows:
        found = [shown(made.mean(row, column)) for made in (without, described) for column in HALVES]
        lines.append((named(row), str(described.summary.seeds(row, None, "hm")), *found))
    head = (f"{column}{more}" for more in ("", ", described") for column in ("base", "novel", "HM"))
    return table(("method", "seeds", *head), lines)


ATTRIBUTES = ("color", "shape", "texture", "object", "location")


TABLES: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    PAGE: {
        "eleven": eleven_table,
        "masks": masks_table,
        "photographs-100": photograph_masks_table,
        "world": lambda: halves_table("world", 2, sets=True),
        "world-tuned": moved_table,
        "photographs-tuned": lambda: seeds_table("photographs-tuned"),
        "own": lambda: halves_table("own", 1, sets=False),
        "few-shot": lambda: few_shot_table("few-shot"),
        "own-few-shot": lambda: few_shot_table("own-few-shot"),
        "selection": lambda: selection_table(document("honest-selection")),
        "photographs": lambda: halves_table("photographs", 1, sets=False),
        "language": lambda: halves_table("language", 1, sets=True),
        "language-photographs": lambda: halves_table("language-photographs", 1, sets=False),
        "descriptions": descriptions_table,
        "attribute-search": measured.search_table,
        "proposed-score": measured.proposed_table,
        "photograph-search": measured.photograph_search_table,
        "heat-maps": measured.heat_map_table,
        "fusion-weights": lambda: weights_table("dear", ("cls", *ATTRIBUTES), 3, accuracy=False),
        "gains": lambda: weights_table("role_gains", (*ATTRIBUTES, "mixed", "rest"), 2, accuracy=True),
        "method-step": measured.method_step_table,
        "search-size": measured.search_size_table,
        "class-scale": measured.class_scale_table,
        "class-memory": measured.class_memory_table,
        "many-classes": measured.many_classes_table,
        "feature-epoch": measured.feature_epoch_table,
    },
    DOCS / "explanation" / "roles.md": {
        "table-2": measured.agreement_table,
        "stability": measured.stability_table,
        "removal": measured.removal_table,
    },
    DOCS / "how-to" / "which-clip.md": {
        "families": clip_tables.family_table,
        "needs": clip_tables.needs_table,
        "clip-costs": clip_tables.cost_table,
        "clip-steps": clip_tables.step_table,
    },
    DOCS / "how-to" / "choose-automatically.md": {"regret": measured.regret_table, "rules": measured.rules_table},
    DOCS / "explanation" / "dear-on-small-clips.md": {
        "dear-settings-world": lambda: measured.dear_settings_table("dear-settings-world"),
        "dear-settings-photographs": lambda: measured.dear_settings_table("dear-settings-photographs"),
    },
    DOCS / "reference" / "methods.md": {"tuned": measured.tuned_table},
    DOCS / "how-to" / "several-processes.md": {"waiting": measured.waiting_table},
    DOCS / "how-to" / "export-onnx.md": {"onnx": measured.onnx_table},
    DOCS / "how-to" / "deploy.md": {"service": measured.service_table, "hostile": measured.hostile_table},
    DOCS / "explanation" / "world.md": {
        "attributes": measured.attribute_table,
        "zero-shot": zero_shot_table,
        "siglip-attributes": lambda: measured.attribute_table("world-siglip-score"),
        "siglip-removal": lambda: measured.removal_table("world-siglip-roles"),
        "siglip": lambda: halves_table("world-siglip", 1, sets=True),
    },
}


def pages() -> list[Path]:
    """README and every page of the documentation."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def written(path: Path, text: str) -> str:
    """A page with its tables and numbers replaced."""
    if path == which_method.PAGE:
        text = which_method.page(text)
    return filled(between(text, {name: make() for name, make in TABLES.get(path, {}).items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="change the pages")
    write = parser.parse_args().write
    for path in pages():
        before = path.read_text(encoding="utf-8")
        if (after := written(path, before)) != before:
            print(path.relative_to(ROOT))
            if write:
                path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
