"""Numbers inside sentences of the documentation, from the cells and JSON files in results/.

Such a number is between two comments, the first of which says where it comes from:

    DeAR gains <!-- = world dear-zero_shot hm -->2.6<!-- / --> points.

* `FOLDER METHOD COLUMN [FORMAT]`: the mean of a method in results/FOLDER. `A-B` is a difference of two methods,
  `METHOD,beta=0.5` a variant, `METHOD:decoupled` another readout, `@NAME` after all this one data set of the world,
  and the column `hm:spread` the deviation over seeds.
  Words: the column `rank` is the place (`rank:novel` by another column), `tied` the number of methods
  that the paired test does not separate from it, `better` the number of those that are significantly worse.
* `FILE PATH [FORMAT]`: the number at a path of results/FILE.json, such as `rows.0.median.live`, with `_` for a space.
  `PATH/PATH` is a ratio.

`FORMAT` is Python's, by default `.1f`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from dear.evaluation.results import CellResult
from dear.evaluation.summary import Row, Summary, summarise
from dear.methods.registry import get_method, list_methods
from dear.methods.tuned import LONGEST, Tuned, takes_steps, tuned_choices
from dear.reports.compare_data import Comparison, make_comparison

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
NUMBER = re.compile(r"<!-- = ([^>]+?) -->(.*?)<!-- / -->")
MINUS = re.compile(rf"-(?=(?:{'|'.join(list_methods())})(?:[,:]|$))")
"""The minus of a difference; other hyphens are part of a variant's name."""
PLAIN, DEAR = Row("zero_shot", ""), Row("dear", "")
WORDS = "no one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
WORDS += " eighteen nineteen twenty twenty-one twenty-two twenty-three twenty-four twenty-five"
PLACES = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth"
PLACES += " fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"


def filled(text: str) -> str:
    """A page with all numbers of its sentences written again."""
    return NUMBER.sub(lambda found: f"<!-- = {found[1]} -->{number(found[1])}<!-- / -->", text)


def number(expression: str) -> str:
    """The number that an expression describes, as text."""
    source, what, *more = expression.split()
    if (RESULTS / f"{source}.json").is_file():
        first, *others = (value_at(source, path) for path in what.split("/"))
        return shown(first / others[0] if others else first, *more)
    column, *form = more
    comparison = compared(source)
    if column.partition(":")[0] in ("rank", "tied", "better"):
        return in_words(comparison, row_of(what), column)
    methods, _, data = what.partition("@")
    values = [value_of(comparison, one, data, column) for one in MINUS.split(methods)]
    return shown(values[0] - sum(values[1:]), *form)


def shown(value: float, form: str = ".1f") -> str:
    """A number as pages print it."""
    return f"{value:{form}}".replace("-", "−") if "e" not in form else f"{value:{form}}".replace("e-0", "e-")


def value_at(name: str, path: str) -> Any:
    """The entry of results/NAME.json at a path of keys and places."""
    found = document(name)
    for key in path.split("."):
        if isinstance(found, list):
            found = found[int(key)]
        else:
            found = found[next(name for name in found if name.replace(" ", "_") == key.replace(" ", "_"))]
    return found


def value_of(comparison: Comparison, method: str, data: str, column: str) -> float:
    """A mean over seeds, of one data set of the world or over all."""
    (name, _, readout), (column, _, spread) = method.partition(":"), column.partition(":")
    summary = by_readout(comparison, readout) if readout else comparison.summary
    row, average = row_of(name), None
    stat = summary.stat(row, f"world-{data}", column) if data else None
    if not data and (average := summary.average(row, column)):
        stat = average.stat
    found = stat and (stat.std if spread else stat.mean)
    if found is None:
        raise ValueError(f"{method} has no {column} on {data or 'all data sets'}")
    return found


def by_readout(comparison: Comparison, readout: str) -> Summary:
    """The numbers of a comparison by another readout."""
    return summarise(comparison.section, [cell for found in comparison.cells.values() for cell in found], readout)


def in_words(comparison: Comparison, row: Row, column: str) -> str:
    """A place, or a number of methods, as a word."""
    what, _, by = column.partition(":")
    by = by or comparison.main
    if what == "rank":
        above = sum(comparison.value(one, by) > comparison.value(row, by) for one in comparison.rows)
        return PLACES.split()[above]
    pairs = [comparison.pair(by, row, one) for one in comparison.complete if one != row]
    if what == "tied":
        return WORDS.split()[sum(not one.differs for one in pairs)]
    return WORDS.split()[sum(one.differs and one.test.difference > 0 for one in pairs)]


def row_of(name: str) -> Row:
    """A method, with a variant after a comma."""
    method, _, variant = name.partition(",")
    return Row(method, variant)


@lru_cache
def document(name: str) -> Any:
    """A JSON file of results/."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@lru_cache
def cells(folder: str) -> tuple[CellResult, ...]:
    """The cells of a folder of results/."""
    paths = sorted((RESULTS / folder / "cells").glob("*.json"))
    if not paths:
        raise ValueError(f"results/ has neither {folder}.json nor cells in {folder}/")
    return tuple(CellResult.read(path) for path in paths)


@lru_cache
def compared(name: str) -> Comparison:
    """The comparison of a folder's cells.

    `world-tuned` has the cells of `world`, too, of methods that the tuned recipe trains as the shared one does.
    Three more are parts of folders: `eleven`, plain CLIP and DeAR on all sets of the world; `masks`, seed 1 of DeAR's
    masks on its seven sets without a shift; `photograph-masks`, seed 1 of the same on photographs.
    """
    if name == "photograph-masks":
        return make_comparison([cell for cell in cells("photographs-100") if cell.seed == 1], {})
    if name == "world-tuned":
        return make_comparison([*whole(cells(name)), *map(_as_tuned, filter(is_unchanged, cells("world")))], {})
    if name not in ("eleven", "masks"):
        return make_comparison(cells(name), {})
    both = [cell for cell in cells("world") if Row(cell.method, cell.variant) in (PLAIN, DEAR)]
    further = cells("masks")
    if name == "eleven":
        return make_comparison([*both, *(cell for cell in further if not cell.variant)], {})
    seven = {cell.data for cell in both}
    return make_comparison([cell for cell in (*both, *further) if cell.seed == 1 and cell.data in seven], {})


def is_unchanged(cell: CellResult) -> bool:
    """Whether the tuned recipe of a cell's method is the shared one, or the method takes no steps."""
    if not takes_steps(get_method(cell.method)):
        return True
    return tuned_choices().get(cell.method) == Tuned(optimiser="shared", rate=1.0, epochs=LONGEST)


def _as_tuned(cell: CellResult) -> CellResult:
    return cell.model_copy(update={"recipe": "tuned"})


def whole(found: tuple[CellResult, ...]) -> list[CellResult]:
    """The cells of methods that have as many as any other."""
    counts = Counter(cell.method for cell in found if cell.recipe == "tuned")
    return [cell for cell in found if counts[cell.method] == max(counts.values())]
