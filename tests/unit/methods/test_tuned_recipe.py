"""The tuned recipe: what a choice means, and that the package has what was chosen on validation images."""

import json
from pathlib import Path

import pytest

from dear.errors import ConfigError
from dear.methods.recipe import SHARED
from dear.methods.registry import get_method, list_methods
from dear.methods.tuned import LONGEST, Tuned, recipe_for, takes_steps, tuned_choices

RESULTS = Path(__file__).parents[3] / "results"
CHOSEN = tuned_choices()


def test_a_choice_of_the_shared_recipe_changes_rate_and_length_alone():
    found = Tuned(optimiser="shared", rate=3.0, epochs=5).recipe(get_method("coop").recipe)
    assert found == SHARED.model_copy(update={"lr": SHARED.lr * 3, "epochs": 5})


@pytest.mark.parametrize(
    ("method", "lr"),
    [
        ("coop", 0.002 * 16 / 32),  # SGD: linear in the batch size
        ("mmrl", 0.001 * (16 / 4) ** 0.5),  # Adam: by its square root
        ("dear", 0.001),
    ],
)
def test_an_own_rate_is_scaled_to_the_shared_batch_size(method, lr):
    own = get_method(method).recipe
    found = Tuned(optimiser="own", rate=1.0, epochs=10).recipe(own)
    assert found.lr == pytest.approx(lr)
    assert (found.batch_size, found.epochs, found.crop) == (SHARED.batch_size, 10, SHARED.crop)
    assert (found.optimiser, found.momentum, found.schedule) == (own.optimiser, own.momentum, own.schedule)


def test_all_rates_of_a_method_move_together_and_lengths_too():
    own = get_method("skiptuning").recipe
    found = Tuned(optimiser="own", rate=3.0, epochs=10).recipe(own)
    assert {found.groups[name] / rate for name, rate in own.groups.items()} == {found.lr / own.lr}
    own = get_method("promptsrc").recipe
    assert Tuned(optimiser="own", rate=1.0, epochs=10).recipe(own).gaussian == (7.5, 0.5)
    own = get_method("clip_lora").recipe
    assert Tuned(optimiser="own", rate=1.0, epochs=10).recipe(own).steps_per_shot is None


def test_explicit_options_replace_what_was_chosen():
    changed = recipe_for(get_method("dear"), "tuned", changes={"lr": 0.5})
    assert changed.lr == 0.5
    assert changed.batch_size == SHARED.batch_size


def test_methods_without_steps_have_no_recipe_to_tune():
    assert recipe_for(get_method("tip_adapter"), "tuned") == recipe_for(get_method("tip_adapter"), "shared")


def test_a_method_that_was_not_tuned_is_refused():
    with pytest.raises(
        ConfigError, match=r"No recipe was tuned for promptkd: give --recipe own or --recipe shared\.$|recipe='own'"
    ):
        recipe_for(get_method("promptkd"), "tuned")


def test_the_package_has_what_was_chosen():
    """Every method was given the same number of choices, and the best one was taken."""
    evidence = json.loads((RESULTS / "tuned.json").read_text())
    methods = [get_method(name) for name in list_methods()]
    assert CHOSEN.keys() == {one.name for one in methods if takes_steps(one) and not one.needs.unlabelled}
    assert {name: Tuned(**one["chosen"]) for name, one in evidence["methods"].items()} == CHOSEN
    assert evidence["images"] == "validation"
    for name, one in evidence["methods"].items():
        best = max(one["tried"], key=lambda tried: tried["hm"])
        assert {key: best[key] for key in ("optimiser", "rate", "epochs")} == one["chosen"], name
        assert len(one["tried"]) == 5
        assert {tried["epochs"] for tried in one["tried"]} == {LONGEST, LONGEST // 2}
