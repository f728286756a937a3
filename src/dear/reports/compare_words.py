"""What a comparison says, in sentences that are computed from its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from dear.evaluation.pairwise import LEVEL
from dear.evaluation.statistics import smallest_p
from dear.evaluation.summary import Row
from dear.reports.compare_data import Comparison, label

MOST_NAMES = 5
MOST_OF_THE_GAIN = 0.9
GOALS = {
    "hm": ("For trained and new classes together", "HM (harmonic mean of base and novel accuracy)"),
    "base": ("For the trained classes alone", "base accuracy"),
    "novel": ("For classes that were not trained on", "novel accuracy"),
}


def verdict(found: Comparison) -> str:
    """One paragraph: which method to take for what, and how sure that is."""
    if len(found.complete) < 2:
        return "There is nothing to compare: fewer than two methods were run on all data sets with all seeds."
    ordered = [found.main, *(column for column in found.columns if column != found.main)]
    if min(1.0, len(found.pairs[found.main]) * smallest_p(found.results_per_pair)) >= LEVEL:
        return _too_few(found, ordered)
    sentences = [_goal(found, column) for column in ordered]
    return " ".join(filter(None, [*sentences, _against_plain(found), _cheap(found), _sureness(found)]))


def _too_few(found: Comparison, columns: Sequence[str]) -> str:
    """Numbers from which nothing follows, whatever they are."""
    highest = []
    for one in columns:
        best, what = found.best(one), goal(found, one)[1].partition(" (")[0]
        highest.append(f"{label(best)} in {what} ({_mean(found, best, one):.1f} %)")
    return (
        f"These results are too few to recommend a method: {_compared(found)}, and from so few no difference between "
        f"{len(found.complete)} methods can be shown, however large it is. Add data sets or seeds. The highest numbers "
        f"are those of {', '.join(highest)}."
    )


def _compared(found: Comparison) -> str:
    sets, seeds = len(found.summary.averaged), len(found.seeds)
    results = many(found.results_per_pair, "result")
    return f"each pair of methods is compared on {results} ({many(sets, 'data set')} × {many(seeds, 'seed')})"


def goal(found: Comparison, column: str) -> tuple[str, str]:
    """What a column is for, and what it is called in a sentence."""
    if column in GOALS:
        return GOALS[column]
    photos = "1 photo" if column == "1" else f"{column} photos"
    return f"With {photos} per class", f"accuracy with {photos} per class"


def _goal(found: Comparison, column: str) -> str:
    purpose, what = goal(found, column)
    best, tied = found.best(column), found.tied(column)
    second = max((row for row in found.complete if row != best), key=lambda row: _mean(found, row, column))
    score = f"{_mean(found, best, column):.1f} %"
    if not tied:
        lead = _mean(found, best, column) - _mean(found, second, column)
        return (
            f"{purpose}, take {label(best)}: its {what} of {score} is the highest, {lead:.1f} points above "
            f"{label(second)}, and its lead over every other method is larger than chance explains."
        )
    names = names_of([f"{label(row)} ({_mean(found, row, column):.1f})" for row in tied])
    choice = f"; {_choice(found, [best, *tied])}" if column == found.main else ""
    return (
        f"{purpose}, {label(best)} has the highest {what} ({score}), but these results cannot tell it from "
        f"{names}{choice}."
    )


def _choice(found: Comparison, rows: Sequence[Row]) -> str:
    """How to choose among rows that are equally good: by what they cost."""
    told = []
    rows = [row for row in rows if row != found.plain]
    for field, what in (("parameters", "trains the fewest parameters"), ("seconds", "takes the least time")):
        costs = {row: value for row in rows if (value := getattr(found.effort[row], field)) is not None}
        if len(costs) > 1 and len(set(costs.values())) > 1:
            told.append((min(costs, key=lambda row: (costs[row], row)), what))
    if not told:
        return "choose among them by what you know best"
    if len({row for row, _ in told}) == 1:
        return f"of these, {label(told[0][0])} {' and '.join(what for _, what in told)}"
    return "of these, " + " and ".join(f"{label(row)} {what}" for row, what in told)


def _against_plain(found: Comparison) -> str:
    """Which methods gain or lose against plain CLIP where it matters most: on what was not trained on."""
    plain = found.plain
    if plain is None or len(found.complete) < 2:
        return ""
    column = "novel" if "novel" in found.columns else found.main
    others = [row for row in found.complete if row != plain]
    pairs = {row: found.pair(column, row, plain) for row in others}
    better = [row for row in others if pairs[row].differs and pairs[row].test.difference > 0]
    worse = [row for row in others if pairs[row].differs and pairs[row].test.difference < 0]
    where = "on classes that were not trained on" if column == "novel" else f"in {goal(found, column)[1]}"
    if not better and not worse:
        return f"No method can be told from plain CLIP ({_mean(found, plain, column):.1f} %) {where}."
    told = [f"{count(len(better), len(others))} better than plain CLIP ({_mean(found, plain, column):.1f} %) {where}"]
    told[0] += f" ({names_of([label(row) for row in better])})" if better else ""
    told.append(f"{len(worse)} worse" + (f" ({names_of([label(row) for row in worse])})" if worse else ""))
    return (
        f"{' and '.join(told)}; the others cannot be told from it."
        if len(better) + len(worse) < len(others)
        else (f"{' and '.join(told)}.")
    )


def count(some: int, all_of_them: int) -> str:
    """A count of methods as the beginning of a sentence."""
    return f"{some} of {all_of_them} methods {'is' if some == 1 else 'are'}"


def _cheap(found: Comparison) -> str:
    """The method with the fewest parameters that still has most of the best one's gain over plain CLIP."""
    plain, main = found.plain, found.main
    best = found.best(main)
    if plain is None or best == plain:
        return ""
    base, gain = _mean(found, plain, main), _mean(found, best, main) - _mean(found, plain, main)
    enough = [
        row
        for row in found.complete
        if row != plain and found.effort[row].parameters and _mean(found, row, main) - base >= MOST_OF_THE_GAIN * gain
    ]
    costs = {row: found.effort[row].parameters or 0.0 for row in enough}
    if gain <= 0 or len(costs) < 2 or (least := min(costs, key=lambda row: (costs[row], row))) == best:
        return ""
    share = 100 * (_mean(found, least, main) - base) / gain
    return (
        f"If size matters, {label(least)} has {share:.0f} % of the best one's gain over plain CLIP with "
        f"{costs[least]:,.0f} trained parameters instead of {costs.get(best, 0):,.0f}."
    )


def _sureness(found: Comparison) -> str:
    """How much the numbers can show at all."""
    pairs = len(found.pairs[found.main])
    differ = sum(pair.differs for pair in found.pairs[found.main])
    return (
        f"How sure: {_compared(found)} by Wilcoxon's signed-rank test, corrected for {many(pairs, 'pair')}; "
        f"{differ} of them differ{'s' if differ == 1 else ''} in "
        f"{goal(found, found.main)[1].partition(' (')[0]} by more than chance explains (p < {LEVEL:g})."
    )


def names_of(names: Sequence[str]) -> str:
    """Names in a row, the last ones counted if they are many."""
    shown = list(names[:MOST_NAMES])
    rest = len(names) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {many(rest, 'other')}"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]


def many(number: int, what: str) -> str:
    """A number of things, in the singular if it is one."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _mean(found: Comparison, row: Row, column: str) -> float:
    stat = found.mean(row, column)
    return stat.mean if stat else 0.0
