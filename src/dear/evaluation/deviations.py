"""How trainings deviated from the recipe that a table names, in words, and what the shared and tuned recipes are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dear.errors import ConfigError
from dear.evaluation.results import CellResult
from dear.evaluation.summary import Row, Section
from dear.methods.recipe import SHARED, Case, Recipe
from dear.methods.registry import get_method
from dear.methods.tuned import LONGEST, recipe_for
from dear.options.fields import RecipeName

WORDS = {"lr": "learning rate", "decay": "weight decay", "warmup_epochs": "warm-up epochs"}
"""Names of a recipe's fields that are not words."""
COUNTED = {"epochs": "epoch", "updates": "update"}
"""Nouns that follow their number."""
VIEWS = "cached_views"
EARLIER = (
    "Cells of earlier versions do not contain their recipe: of these, only the numbers of epochs and of cached views "
    "are compared with the recipe."
)
_SHARED_OPTIMISER = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}[SHARED.optimiser]

Deviation = tuple[str, Any, Any]
"""What deviated, its value, and the value that the recipe names."""


class Deviations(NamedTuple):
    """How the methods of a table were trained other than by the recipe that it names."""

    by_row: Mapping[Row, tuple[str, ...]]
    common: tuple[str, ...]
    """What all trained methods have in common, if there are several."""

    def of(self, row: Row) -> str:
        """What deviated for this row and not for all, as a footnote; "" if nothing did."""
        texts = [text for text in self.by_row[row] if text not in self.common]
        return f"trained with {'; '.join(texts)}" if texts else ""

    @property
    def notes(self) -> list[str]:
        """A sentence about what all have in common, if anything."""
        return [f"All methods were trained with {'; '.join(self.common)}."] if self.common else []


def recipe_notes(section: Section, cells: Sequence[CellResult]) -> list[str]:
    """What a table says about its recipe: what the shared one is, and how trainings deviated, by method."""
    by_row: dict[Row, list[CellResult]] = {}
    for cell in cells:
        by_row.setdefault(Row(cell.method, cell.variant), []).append(cell)
    found = find_deviations(by_row)
    names: dict[str, list[str]] = {}
    for row in sorted(by_row):
        names.setdefault(found.of(row), []).append(", ".join(filter(None, row)))
    about = list(filter(None, [recipe_note(section.recipe)]))
    each = [f"{'; '.join(rows)}: {text}." for text, rows in names.items() if text]
    return [*about, *found.notes, *each, *earlier_notes(cells)]


def marked(texts: Iterable[str]) -> dict[str, str]:
    """The mark of each footnote: [a], [b], … [z], [aa], …"""
    return {text: f"[{_letter(place)}]" for place, text in enumerate(texts)}


def find_deviations(cells: Mapping[Row, Sequence[CellResult]]) -> Deviations:
    """Compare the trainings of each row with the recipe of their name."""
    by_row = {row: tuple(_texts(found)) for row, found in cells.items()}
    trained = [row for row, found in cells.items() if any(cell.steps for cell in found)]
    common = by_row[trained[0]] if len(trained) > 1 else ()
    return Deviations(by_row, tuple(text for text in common if all(text in by_row[row] for row in trained)))


def earlier_notes(cells: Iterable[CellResult]) -> list[str]:
    """A sentence about cells that do not contain their recipe, if there are any."""
    return [EARLIER] if any(cell.steps and cell.training is None for cell in cells) else []


def recipe_note(name: RecipeName) -> str:
    """What the shared or the tuned recipe is, and for whom it was made; "" for each method's own."""
    if name == "own":
        return ""
    if name == "tuned":
        return (
            f"The tuned recipe is, for each method, the best of the same few ways to train: its own optimiser or "
            f"{_SHARED_OPTIMISER}, three learning rates, and {LONGEST // 2} or {LONGEST} epochs, chosen on validation "
            f"images of three data sets of the embedded world."
        )
    values = f"learning rate {_shown(SHARED.lr)}, {SHARED.epochs} epochs, batch size {SHARED.batch_size}"
    return (
        f"The shared recipe is DeAR's own ({_SHARED_OPTIMISER}, {values}): DeAR is trained with the settings it was "
        f"designed with, and the other methods are not, so the numbers do not show what these reach with their own "
        f"recipes."
    )


def _letter(place: int) -> str:
    first, second = divmod(place, 26)
    return (chr(96 + first) if first else "") + chr(97 + second)


def _texts(cells: Sequence[CellResult]) -> list[str]:
    """All deviations of some cells of one method, each kind of deviation once."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for cell in cells:
        for what, value, named in _deviations(cell):
            found.setdefault(what, []).append((value, named))
    return [_text(what, [one for one, _ in pairs], [other for _, other in pairs]) for what, pairs in found.items()]


def _deviations(cell: CellResult) -> list[Deviation]:
    if not cell.steps:
        return []
    views: list[Deviation] = [(VIEWS, cell.cached_views, 0)] if cell.cached_views else []
    if cell.training is None:
        return [*_epochs_alone(cell), *views]
    used, named = cell.training.recipe, cell.training.changed_from or cell.training.recipe
    differing = [name for name in Recipe.model_fields if getattr(used, name) != getattr(named, name)]
    found: list[Deviation] = [(name, getattr(used, name), getattr(named, name)) for name in differing]
    if "steps_per_shot" in differing and named.steps_per_shot is not None:
        found = [one for one in found if one[0] not in ("steps_per_shot", "epochs")]
        found.append(("updates", cell.steps, named.steps_per_shot * cell.shots))
    return [*found, *views]


def _epochs_alone(cell: CellResult) -> list[Deviation]:
    """What is known of a cell that does not contain its recipe."""
    try:
        method = get_method(cell.method)
    except ConfigError:
        return []
    named = recipe_for(method, cell.recipe, Case(cell.protocol, cell.data, cell.shots))
    differs = cell.epochs is not None and not named.steps_per_shot and cell.epochs != named.epochs
    return [("epochs", cell.epochs, named.epochs)] if differs else []


def _text(what: str, values: Sequence[Any], named: Sequence[Any]) -> str:
    """A deviation in words; values of several cells are shown as a range."""
    shown, usual = _range(values), _range(named)
    if what == VIEWS:
        return f"{shown} cached view{'' if shown == '1' else 's'} per image instead of new ones in every epoch"
    if what in COUNTED:
        return f"{shown} {COUNTED[what]}{'' if shown == '1' else 's'} instead of {usual}"
    return f"{WORDS.get(what, what.replace('_', ' '))} {shown} instead of {usual}"


def _range(values: Sequence[Any]) -> str:
    each = list(dict.fromkeys(values)) if all(isinstance(one, int | float) for one in values) else [*values[:1]]
    return _shown(each[0]) if len(each) == 1 else f"{_shown(min(each))} to {_shown(max(each))}"


def _shown(value: Any) -> str:
    """A value as people write it: 2,000, 0.05, 1e-3."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or value == int(value):
        return f"{value:,.0f}"
    digits, _, power = f"{value:.3e}".partition("e")
    return f"{value:g}" if abs(value) >= 0.01 else f"{float(digits):g}e{int(power)}"
