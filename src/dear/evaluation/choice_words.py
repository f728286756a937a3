"""A choice in words and as a table, for the terminal, the card and the report."""

from __future__ import annotations

from dear.evaluation.choice import PLAIN, CandidateRecord, Choice, Seconds
from dear.evaluation.choice_ranking import Estimate, Ranking, Standing, rank
from dear.evaluation.more_photos import more_photos
from dear.progress.stages import duration
from dear.storage import markdown

HEAD = ("method", "learned", "left out", "combined", "expected", "time", "size")
NOTICED = 10.0
"""Seconds of difference that are worth mentioning."""


def summary(choice: Choice) -> list[str]:
    """What was chosen, why, and what more photos would bring, in a few sentences."""
    if not choice.trials:
        return [
            f"{choice.chosen}: with one photo per class nothing can be held out to compare methods, so the cheapest "
            "sensible one was taken."
        ]
    ranking = rank(choice)
    return [
        one
        for one in (_promise(choice, ranking.taken), _reason(choice, ranking), more_photos(choice).sentence())
        if one
    ]


def table(choice: Choice) -> list[list[str]]:
    """The ranking as a table with its head; the chosen method is marked by a star. Empty without trials."""
    if not choice.trials:
        return []
    ranking = rank(choice)
    return [list(HEAD), *(_row(one, ranking.chosen) for one in ranking.standings)]


def notes(choice: Choice) -> list[str]:
    """How to read the table, and which candidates are not in it and why."""
    found = []
    if choice.trials:
        novel = any(one.kind == "novel" for one in choice.trials)
        left = "left out: photos of classes that were not taught" if novel else "too few classes to leave some out"
        found.append(
            f"Per cent of right answers with 95 % intervals. learned: photos that were held out; {left}; combined: "
            f"{_combined(choice.keep_novel if novel else 0.0)}; expected: combined, if what methods gained on other "
            "data sets counts, too; *: the method that is taken."
        )
    behind = [one.method for one in choice.candidates if one.state == "behind"]
    if behind:
        found.append(f"Stopped after the first trials, clearly behind: {', '.join(behind)}.")
    untried = [_untried(choice, one) for one in choice.candidates if one.state == "not tried" and choice.trials]
    found += [f"Not tried: {', '.join(untried)}."] if untried else []
    found += [f"Left out: {one.method} ({one.why.rstrip('.')})." for one in choice.candidates if one.state == "failed"]
    return found


def section(choice: Choice) -> str:
    """A section of a model card in Markdown, without times: the same choice gives the same card."""
    choice = choice.model_copy(update={"seconds": Seconds()})
    timed = HEAD.index("time")
    rows = [[cell for place, cell in enumerate(row) if place != timed] for row in table(choice)]
    shown = [markdown.table(rows[0], rows[1:])] if rows else []
    said, noted = ([markdown.plain(one) for one in sentences] for sentences in (summary(choice), notes(choice)))
    return "\n\n".join(["## How the method was chosen", *said, *shown, *noted]) + "\n"


def _combined(weight: float) -> str:
    if not weight:
        return "learned alone"
    return "their harmonic mean" if weight == 1 else f"their harmonic mean, left out with weight {weight:g}"


def _untried(choice: Choice, one: CandidateRecord) -> str:
    seconds = choice.seconds.estimated.get(one.method)
    why = one.why or (f"would take about {duration(seconds)}" if seconds else "no time was left")
    return f"{one.method} ({why})"


def _row(one: Standing, chosen: str) -> list[str]:
    return [
        f"{one.method} *" if one.method == chosen else one.method,
        _shown(one.learned),
        "–" if one.novel is None else _shown(one.novel),
        _shown(one.combined),
        f"{one.expected:.1f}",
        "–" if one.seconds is None else duration(one.seconds),
        size_text(one.bytes),
    ]


def size_text(count: int) -> str:
    """A number of bytes, for people."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _shown(one: Estimate) -> str:
    return f"{one.value:.0f} ({one.low:.0f}–{one.high:.0f})"


def _promise(choice: Choice, taken: Standing) -> str:
    """How good the chosen method is on photos like these, and what it does to other classes."""
    name = "Plain CLIP" if taken.method == PLAIN else taken.method
    about = f"{name}: about {taken.learned.value:.0f} % on photos like yours"
    if taken.method == PLAIN:
        return f"{about}."
    plain = f"plain CLIP {taken.learned.value - taken.gains.value:.0f} %"
    return f"{about} ({plain}){_kept(choice, taken)}."


def _kept(choice: Choice, taken: Standing) -> str:
    lost = taken.forgets
    if not choice.candidate(taken.method).names_novel:
        return ", but it names no other classes"
    if lost is None:
        return ""
    if lost.low > 0:
        return f", but loses about {_points(lost.value)} on classes that it was not taught"
    return f", and gains {_points(-lost.value)} on other classes" if lost.high < 0 else ", keeps what it knew"


def _points(value: float) -> str:
    return f"{value:.0f} point{'' if round(value) == 1 else 's'}" if value >= 0.5 else "less than a point"


def _reason(choice: Choice, ranking: Ranking) -> str:
    """Why the chosen method was taken instead of the others."""
    taken, best = ranking.taken, ranking.best
    tied = [one for one in ranking.standings if one.is_tied and one is not taken]
    if not tied and best is taken:
        if any(one.behind.value < 0 for one in ranking.standings):
            return "It has the best expected score."
        return "" if len(ranking.standings) == 1 else "It is clearly ahead of the others on these photos."
    other = tied[0] if best is taken else best
    if choice.expected and best is taken:
        some = f"{other.method} is" if len(tied) == 1 else f"{len(tied)} others, such as {other.method}, are"
        return f"{some} as good within noise on these photos; it has the best expected score."
    longer = (other.seconds or 0.0) - (taken.seconds or 0.0)
    if len(tied) == 1 or choice.expected:
        cost = f"takes {duration(longer)} longer" if longer >= NOTICED else "is no cheaper"
        return f"{other.method} is as good within noise, but {cost}."
    time = f" ({other.method} takes {duration(longer)} longer)" if longer >= NOTICED else ""
    return f"{len(tied)} others are as good within noise, such as {other.method}; it is the cheapest of them{time}."
