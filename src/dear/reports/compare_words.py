"""The verdict of a comparison: sentences that are computed from its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dear.data.families import WORLD
from dear.evaluation.deviations import recipe_note
from dear.evaluation.pairwise import LEVEL
from dear.evaluation.statistics import smallest_p
from dear.evaluation.summary import Row
from dear.reports.compare_data import Comparison, highest, label

MOST_NAMES = 5
MOST_OF_THE_GAIN, SOME_OF_THE_GAIN = 0.9, 1 / 3
FAR = 2.0
"""A method at least this many points below plain CLIP is mentioned, even if the difference is not significant."""
CHEAPEST = (
    ("parameters", "trains the fewest parameters", "tie for the fewest parameters"),
    ("seconds", "takes the least time", "tie for the least time"),
)
"""Costs, and the words for the one method with the least, or for several."""
GOALS = {
    "hm": ("For trained and new classes together", "HM (harmonic mean of base and novel accuracy)"),
    "base": ("For the trained classes alone", "base accuracy"),
    "novel": ("For new classes alone", "novel accuracy"),
}


def verdict(comparison: Comparison) -> list[str]:
    """Recommend a method for each goal and say how certain that is, in a sentence or two per question."""
    if len(comparison.complete) < 2:
        return ["There is nothing to compare: fewer than two methods were run on all data sets with all seeds."]
    ordered = [comparison.main, *(column for column in comparison.columns if column != comparison.main)]
    if min(1.0, len(comparison.pairs[comparison.main]) * smallest_p(comparison.results_per_pair)) >= LEVEL:
        return [*filter(None, [_backbone(comparison), _recipe(comparison), _too_few(comparison, ordered)])]
    sentences = [_backbone(comparison), _recipe(comparison), *(_goal(comparison, column) for column in ordered)]
    others = [_against_plain(comparison), _cheap(comparison), _by_data(comparison), _certainty(comparison)]
    return [*filter(None, [*sentences, *others])]


def _too_few(comparison: Comparison, columns: Sequence[str]) -> str:
    """The only sentence if there are too few results for any significant difference."""
    leading = []
    for one in columns:
        first, what = comparison.leaders(one), goal(comparison, one)[1].partition(" (")[0]
        tie = " tie" if len(first) > 1 else ""
        leading.append(f"{_names(first)}{tie} in {what} ({comparison.value(first[0], one):.1f} %)")
    return (
        f"These results are too few to recommend a method: {_compared(comparison)}, and with this number of results no "
        f"difference between {len(comparison.complete)} methods can be significant, however large it is. "
        f"Add data sets or seeds. Highest numbers: {'; '.join(leading)}."
    )


def _compared(comparison: Comparison) -> str:
    sets, seeds = len(comparison.summary.averaged), len(comparison.seeds)
    results = many(comparison.results_per_pair, "result")
    return f"each pair of methods is compared on {results} ({many(sets, 'data set')} × {many(seeds, 'seed')})"


def goal(comparison: Comparison, column: str) -> tuple[str, str]:
    """The goal that a column measures, and the column's name in a sentence."""
    if column in GOALS:
        return GOALS[column]
    cells = [cell for found in comparison.cells.values() for cell in found if str(cell.shots) == column]
    fewer = "up to " if any(cell.has_few_images for cell in cells) else ""
    photos = "1 photo" if column == "1" else f"{fewer}{column} photos"
    return f"With {photos} per class", f"accuracy with {photos} per class"


def _goal(comparison: Comparison, column: str) -> str:
    purpose, what = goal(comparison, column)
    if len(first := comparison.leaders(column)) > 1:
        return f"{purpose}, {_tie(comparison, column, first)}"
    best, tied = first[0], comparison.tied(column)
    second = max((row for row in comparison.complete if row != best), key=lambda row: comparison.value(row, column))
    score = f"{comparison.value(best, column):.1f} %"
    if not tied:
        lead = comparison.value(best, column) - comparison.value(second, column)
        return (
            f"{purpose}, use {label(best)}: its {what} of {score} is the highest, {lead:.1f} points above "
            f"{label(second)}, and significantly better than that of every other method."
        )
    wins = {row: _beaten(comparison, column, row) for row in (best, *tied)}
    surest = max(wins, key=lambda row: (wins[row], comparison.value(row, column)))
    shown = "not significantly better than any other method"
    if wins[best]:
        others = f"{wins[best]} of the {len(comparison.complete) - 1} others"
        shown = f"significantly better than {others}, but not than {_not_beaten(comparison, column, tied)}"
    sure = (
        f"; {label(surest)} ({comparison.value(surest, column):.1f}) is the safer choice, significantly better than "
        f"{wins[surest]}"
        if wins[surest] > wins[best]
        else ""
    )
    choice = _choice(comparison, [best, *tied]) if column == comparison.main else ""
    caution = " Not significantly different does not mean equally good." if column == comparison.main else ""
    return f"{purpose}, {label(best)} has the highest {what}: {score}. It is {shown}{sure}.{choice}{caution}"


def _tie(comparison: Comparison, column: str, first: Sequence[Row]) -> str:
    """Methods that share the highest mean, and how many others are significantly worse than each of them."""
    what, score = goal(comparison, column)[1], f"{comparison.value(first[0], column):.1f} %"
    others = [row for row in comparison.complete if row not in first]
    worse = [row for row in others if all(_is_better(comparison, column, one, row) for one in first)]
    shown = f"{len(worse)} of the {len(others)} others {'is' if len(worse) == 1 else 'are'}"
    shown = "no other method is" if not worse else "every other method is" if worse == others else shown
    rest = f"; {shown} significantly worse than each of them" if others else ""
    alike = [*first, *(row for row in comparison.tied(column) if row not in first)]
    choice = _choice(comparison, alike) if column == comparison.main else ""
    return f"{_names(first)} tie at {score} in {what}{rest}.{choice}"


def _is_better(comparison: Comparison, column: str, row: Row, other: Row) -> bool:
    """Whether a row is significantly better than another one."""
    pair = comparison.pair(column, row, other)
    return pair.differs and pair.test.difference > 0


def _names(rows: Sequence[Row]) -> str:
    return names_of([label(row) for row in rows])


def _beaten(comparison: Comparison, column: str, row: Row) -> int:
    """Number of methods that a row is significantly better than."""
    return sum(_is_better(comparison, column, row, other) for other in comparison.complete if other != row)


def _not_beaten(comparison: Comparison, column: str, tied: Sequence[Row]) -> str:
    """The rows that the best one is not significantly better than, with their numbers."""
    learned = [row for row in comparison.complete if row not in (comparison.plain, comparison.best(column))]
    if len(tied) > MOST_NAMES and set(tied) == set(learned):
        return "any other method that was trained"
    return names_of([f"{label(row)} ({comparison.value(row, column):.1f})" for row in tied])


def _choice(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Choose by cost among rows that are not significantly different; rows with little gain are left out."""
    column, plain = comparison.main, comparison.plain
    base = comparison.value(plain, column) if plain else 0.0
    enough = base + SOME_OF_THE_GAIN * (comparison.value(rows[0], column) - base) if plain else 0.0
    rows = [row for row in rows if row != plain and comparison.value(row, column) >= enough]
    cheapest: dict[tuple[Row, ...], list[str]] = {}
    for field, one, several in CHEAPEST:
        costs = {row: -value for row in rows if (value := getattr(comparison.effort[row], field)) is not None}
        if len(costs) > 1 and len(set(costs.values())) > 1:
            least = tuple(highest(costs))
            cheapest.setdefault(least, []).append(several if len(least) > 1 else one)
    if not cheapest:
        return ""
    names = [
        f"{names_of([f'{label(row)} ({comparison.value(row, column):.1f})' for row in least])} {' and '.join(what)}"
        for least, what in cheapest.items()
    ]
    which = "Of these" if plain is None else "Of these, among methods with at least a third of its gain over plain CLIP"
    return f" {which}, {' and '.join(names)}."


def _against_plain(comparison: Comparison) -> str:
    """Compare the methods with plain CLIP on new classes, or by the main column if there are none."""
    plain = comparison.plain
    if plain is None or len(comparison.complete) < 2:
        return ""
    column = "novel" if "novel" in comparison.columns else comparison.main
    others = [row for row in comparison.complete if row != plain]
    pairs = {row: comparison.pair(column, row, plain) for row in others}
    better = [row for row in others if pairs[row].differs and pairs[row].test.difference > 0]
    worse = [row for row in others if pairs[row].differs and pairs[row].test.difference < 0]
    where = "on new classes" if column == "novel" else f"in {goal(comparison, column)[1]}"
    baseline = f"plain CLIP ({comparison.value(plain, column):.1f} %) {where}"
    if not better and not worse:
        return f"No method is significantly different from {baseline}."
    above = f"{len(better)} of {len(others)} methods" if better else "No method"
    sentence = f"{above} {'are' if len(better) > 1 else 'is'} significantly better than {baseline}"
    sentence += f" ({names_of([label(row) for row in better])})" if better else ""
    if worse:
        verb = "are" if len(worse) > 1 else "is"
        sentence += f"; {names_of([label(row) for row in worse])} {verb} significantly worse"
    undecided = [row for row in others if row not in (*better, *worse)]
    if not undecided:
        return f"{sentence}."
    lowest = min(undecided, key=lambda row: comparison.value(row, column))
    below = comparison.value(plain, column) - comparison.value(lowest, column)
    though = f", though {label(lowest)} is {below:.1f} points below it on average" if below >= FAR else ""
    return f"{sentence}; the others are not significantly different from it{though}."


def _cheap(comparison: Comparison) -> str:
    """The method with the fewest parameters among those with most of the best method's gain over plain CLIP."""
    plain, main = comparison.plain, comparison.main
    best = comparison.best(main)
    if plain is None or best == plain or not comparison.effort[best].parameters:
        return ""
    base, gain = comparison.value(plain, main), comparison.value(best, main) - comparison.value(plain, main)
    enough = [
        row
        for row in comparison.complete
        if row != plain
        and comparison.effort[row].parameters
        and comparison.value(row, main) - base >= MOST_OF_THE_GAIN * gain
    ]
    costs = {row: comparison.effort[row].parameters or 0.0 for row in enough}
    if gain <= 0 or len(costs) < 2 or (least := min(costs, key=lambda row: (costs[row], row))) == best:
        return ""
    share = 100 * (comparison.value(least, main) - base) / gain
    return (
        f"If size matters, {label(least)} reaches {share:.0f} % of the best method's gain over plain CLIP with "
        f"{costs[least]:,.0f} trained parameters instead of {costs[best]:,.0f}."
    )


def _by_data(comparison: Comparison) -> str:
    """The number of data sets on which each method is the best."""
    sets, main = comparison.summary.averaged, comparison.main
    first = []
    for name in sets:
        stats = {row: stat.mean for row in comparison.complete if (stat := comparison.summary.stat(row, name, main))}
        first += [highest(stats)] if stats else []
    if all(rows == first[0] for rows in first):
        return ""
    wins = Counter(row for rows in first for row in rows)
    names = [f"{label(row)} on {times}" for row, times in wins.most_common()]
    ties = sum(len(rows) > 1 for rows in first)
    note = f" ({many(ties, 'tie')}, counted for each of the methods that tie)" if ties else ""
    return f"The best method differs by data set: of {many(len(sets), 'data set')}, {names_of(names)}{note}."


def _certainty(comparison: Comparison) -> str:
    """The test behind the word "significant", and the number of significant differences."""
    pairs = len(comparison.pairs[comparison.main])
    differ = sum(pair.differs for pair in comparison.pairs[comparison.main])
    alike = " Seeds of one data set are alike, so the number of data sets matters more than the number of seeds."
    return (
        f"How certain: {_compared(comparison)} by Wilcoxon's signed-rank test, corrected for {many(pairs, 'pair')}; "
        f"{differ} of them differ{'s' if differ == 1 else ''} significantly (p < {LEVEL:g}) in "
        f"{goal(comparison, comparison.main)[1].partition(' (')[0]}.{alike if len(comparison.seeds) > 1 else ''}"
    )


def _backbone(comparison: Comparison) -> str:
    """A warning if the backbone is the embedded world's, which nobody uses for photographs."""
    if comparison.section.backbone.name != WORLD:
        return ""
    return (
        "Measured on synthetic drawings, with the small CLIP of the embedded world that this package includes: on "
        "photographs and with another CLIP the order may differ."
    )


def _recipe(comparison: Comparison) -> str:
    """What the shared or tuned recipe is, if it was used."""
    return recipe_note(comparison.section.recipe)


def names_of(names: Sequence[str]) -> str:
    """Join names with commas and "and"; of many names only the first ones, and the number of the others."""
    shown = list(names[:MOST_NAMES])
    others = len(names) - len(shown)
    if others:
        return f"{', '.join(shown)} and {many(others, 'other')}"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]


def many(number: int, what: str) -> str:
    """A number with its noun, in the singular or plural."""
    return f"{number} {what}{'' if number == 1 else 's'}"
