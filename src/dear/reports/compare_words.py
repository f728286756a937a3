"""What a comparison says, in sentences that are computed from its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dear.evaluation.defaults import WORLD
from dear.evaluation.pairwise import LEVEL
from dear.evaluation.statistics import smallest_p
from dear.evaluation.summary import Row
from dear.reports.compare_data import Comparison, label

MOST_NAMES = 5
MOST_OF_THE_GAIN, SOME_OF_THE_GAIN = 0.9, 1 / 3
FAR = 2.0
"""Points below plain CLIP that are told, though a test does not show them."""
GOALS = {
    "hm": ("For trained and new classes together", "HM (harmonic mean of base and novel accuracy)"),
    "base": ("For the trained classes alone", "base accuracy"),
    "novel": ("For classes that were not trained on", "novel accuracy"),
}


def verdict(found: Comparison) -> list[str]:
    """Which method to take for what, and how sure that is: a sentence or two for each question."""
    if len(found.complete) < 2:
        return ["There is nothing to compare: fewer than two methods were run on all data sets with all seeds."]
    ordered = [found.main, *(column for column in found.columns if column != found.main)]
    if min(1.0, len(found.pairs[found.main]) * smallest_p(found.results_per_pair)) >= LEVEL:
        return [*filter(None, [_backbone(found), _too_few(found, ordered)])]
    sentences = [_backbone(found), *(_goal(found, column) for column in ordered)]
    others = [_against_plain(found), _cheap(found), _by_data(found), _sureness(found)]
    return [*filter(None, [*sentences, *others])]


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
    wins = {row: _beaten(found, column, row) for row in (best, *tied)}
    surest = max(wins, key=lambda row: (wins[row], _mean(found, row, column)))
    shown = "not shown to be better than any other method"
    if wins[best]:
        others = f"{wins[best]} of the {len(found.complete) - 1} others"
        shown = f"shown to be better than {others}, but not than {_rest(found, column, tied)}"
    sure = (
        f"; {label(surest)} ({_mean(found, surest, column):.1f}) is the surer choice, shown to be better than "
        f"{wins[surest]}"
        if wins[surest] > wins[best]
        else ""
    )
    choice = _choice(found, [best, *tied]) if column == found.main else ""
    caution = " Not shown to differ is not the same as equally good." if column == found.main else ""
    return f"{purpose}, {label(best)} has the highest {what}: {score}. It is {shown}{sure}.{choice}{caution}"


def _beaten(found: Comparison, column: str, row: Row) -> int:
    """How many methods a row is better than, by more than chance explains."""
    pairs = [found.pair(column, row, other) for other in found.complete if other != row]
    return sum(pair.differs and pair.test.difference > 0 for pair in pairs)


def _rest(found: Comparison, column: str, tied: Sequence[Row]) -> str:
    """The rows that the best one is not shown to be better than, with their numbers."""
    learned = [row for row in found.complete if row not in (found.plain, found.best(column))]
    if len(tied) > MOST_NAMES and set(tied) == set(learned):
        return "any other method that was trained"
    return names_of([f"{label(row)} ({_mean(found, row, column):.1f})" for row in tied])


def _choice(found: Comparison, rows: Sequence[Row]) -> str:
    """How to choose among rows that may be equally good: by what they cost. One with little gain is none of them."""
    column, plain = found.main, found.plain
    base = _mean(found, plain, column) if plain else 0.0
    enough = base + SOME_OF_THE_GAIN * (_mean(found, rows[0], column) - base) if plain else 0.0
    rows = [row for row in rows if row != plain and _mean(found, row, column) >= enough]
    told: dict[Row, list[str]] = {}
    for field, what in (("parameters", "trains the fewest parameters"), ("seconds", "takes the least time")):
        costs = {row: value for row in rows if (value := getattr(found.effort[row], field)) is not None}
        if len(costs) > 1 and len(set(costs.values())) > 1:
            told.setdefault(min(costs, key=lambda row: (costs[row], row)), []).append(what)
    if not told:
        return ""
    names = [f"{label(row)} ({_mean(found, row, column):.1f}) {' and '.join(what)}" for row, what in told.items()]
    which = "Of these" if plain is None else "Of those among them with at least a third of its gain over plain CLIP"
    return f" {which}, {' and '.join(names)}."


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
    plainly = f"plain CLIP ({_mean(found, plain, column):.1f} %) {where}"
    if not better and not worse:
        return f"No method can be told from {plainly}."
    above = f"{len(better)} of {len(others)} methods" if better else "No method"
    told = f"{above} {'are' if len(better) > 1 else 'is'} shown to be better than {plainly}"
    told += f" ({names_of([label(row) for row in better])})" if better else ""
    if worse:
        told += f"; {names_of([label(row) for row in worse])} {'are' if len(worse) > 1 else 'is'} shown to be worse"
    open_ = [row for row in others if row not in (*better, *worse)]
    if not open_:
        return f"{told}."
    lowest = min(open_, key=lambda row: _mean(found, row, column))
    below = _mean(found, plain, column) - _mean(found, lowest, column)
    though = f", though {label(lowest)} is {below:.1f} points below it on average" if below >= FAR else ""
    return f"{told}; the others cannot be told from it{though}."


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


def _by_data(found: Comparison) -> str:
    """On how many data sets each method is the best: one that is best on average is not so everywhere."""
    sets = found.summary.averaged
    firsts: Counter[Row] = Counter()
    for name in sets:
        stats = {row: stat.mean for row in found.complete if (stat := found.summary.stat(row, name, found.main))}
        if stats:
            firsts[max(stats, key=lambda row: stats[row])] += 1
    if len(firsts) < 2:
        return ""
    told = [f"{label(row)} on {times}" for row, times in firsts.most_common()]
    return f"The best method differs by data set: of {many(len(sets), 'data set')}, {names_of(told)}."


def _sureness(found: Comparison) -> str:
    """How much the numbers can show at all."""
    pairs = len(found.pairs[found.main])
    differ = sum(pair.differs for pair in found.pairs[found.main])
    alike = " Seeds of one data set are alike, so it is rather the number of data sets that counts."
    return (
        f"How sure: {_compared(found)} by Wilcoxon's signed-rank test, corrected for {many(pairs, 'pair')}; "
        f"{differ} of them differ{'s' if differ == 1 else ''} in "
        f"{goal(found, found.main)[1].partition(' (')[0]} by more than chance explains (p < {LEVEL:g}), which is what "
        f'"shown" means here.{alike if len(found.seeds) > 1 else ""}'
    )


def _backbone(found: Comparison) -> str:
    """A warning where the backbone is nobody's own."""
    if found.section.backbone.name != WORLD:
        return ""
    return (
        "Measured on drawings, with the small CLIP of the embedded world that comes with this package: on photographs "
        "and with your CLIP the order may be another."
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
