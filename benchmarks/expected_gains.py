"""Write what `--method auto` knows of methods before it sees a photo: their gains over plain CLIP in our own tables.

A gain is the difference of the log-odds of an accuracy, averaged over seeds, then over the data sets of the world and
the photographs, each of which counts once. A method that one of the two lacks gets the mean of all others there. The
spread is the standard deviation of gains of the combined score on a data set of the world around those on its other
sets. How far trials are from tests comes from sixteen earlier searches, which no later choice is judged by.

    python benchmarks/expected_gains.py            # print the file
    python benchmarks/expected_gains.py --write    # write src/dear/evaluation/expected_gains.json
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from math import exp, log
from statistics import fmean

from documented_numbers import PLAIN, ROOT, compared, document

from dear.evaluation.choice import Expected, Gain
from dear.evaluation.results import harmonic_mean
from dear.storage.files import write_atomic

FILE = ROOT / "src/dear/evaluation/expected_gains.json"
SEARCHES = "auto-regret-development"
"""Searches whose candidates were all tested, and by which no choice is judged."""
GROUNDS = ("world-tuned", "photographs-tuned")
Halves = tuple[float, float]
"""Accuracies on taught and on other classes."""
Table = dict[str, dict[str, Halves]]
"""By data set and method."""


def measured(name: str) -> Table:
    """Accuracies of a folder of results, means over seeds."""
    comparison, found = compared(name), defaultdict(dict)
    for row in comparison.summary.values:
        if row.variant and row.method not in ("tac",):
            continue
        for data in comparison.summary.averaged:
            stats = [comparison.summary.stat(row, data, half) for half in ("base", "novel")]
            if all(stats):
                found[data][row.method] = tuple(stat.mean for stat in stats if stat)
    return dict(found)


def log_odds(accuracy: float) -> float:
    """Of an accuracy in per cent, half a per cent from the ends at least."""
    return log((accuracy + 0.5) / (100.5 - accuracy))


def gains_on(table: Table) -> dict[str, Halves]:
    """Mean gain of each method over the data sets of a table."""
    found = defaultdict(list)
    for methods in table.values():
        plain = methods[PLAIN.method]
        for name, accuracies in methods.items():
            found[name].append([log_odds(one) - log_odds(start) for one, start in zip(accuracies, plain, strict=True)])
    return {name: (fmean(one for one, _ in rows), fmean(two for _, two in rows)) for name, rows in found.items()}


def expected(without: str = "") -> Expected:
    """Gains by method; `without` names a data set that does not count, for tests on it."""
    tables = [{data: rows for data, rows in measured(name).items() if data != without} for name in GROUNDS]
    grounds = [(gains_on(table), len(table)) for table in tables if table]
    methods = sorted({name for one, _ in grounds for name in one} - {PLAIN.method})
    gains = {name: _rounded([_of(one, name) for one, sets in grounds for _ in range(sets)]) for name in methods}
    return Expected(
        spread=round(spread(tables[0]), 1), trials=round(document(SEARCHES)["summary"]["off_in_trials"], 1), gains=gains
    )


def _of(ground: Mapping[str, Halves], method: str) -> Halves:
    others = [gain for name, gain in ground.items() if name != PLAIN.method]
    return ground.get(method) or (fmean(one for one, _ in others), fmean(two for _, two in others))


def _rounded(gains: list[Halves]) -> Gain:
    return Gain(learned=round(fmean(one for one, _ in gains), 3), novel=round(fmean(two for _, two in gains), 3))


def spread(table: Table) -> float:
    """Root mean square of what the gain on a data set is off from the one that the other sets predict, in HM."""
    errors = []
    for data, methods in table.items():
        elsewhere = gains_on({name: rows for name, rows in table.items() if name != data})
        plain = methods[PLAIN.method]
        for name, accuracies in methods.items():
            if name != PLAIN.method:
                usual = [_after(start, gain) for start, gain in zip(plain, elsewhere[name], strict=True)]
                errors.append(harmonic_mean(*accuracies) - harmonic_mean(*usual))
    return fmean(one**2 for one in errors) ** 0.5


def _after(accuracy: float, gain: float) -> float:
    return 100 / (1 + exp(-(log_odds(accuracy) + gain)))


def main() -> None:
    """Print or write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    text = expected().model_dump_json(indent=1) + "\n"
    if parser.parse_args().write:
        write_atomic(FILE, text.encode())
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
