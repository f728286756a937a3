"""Tables list every difference between a training and the recipe that they name, and say what the shared recipe is."""

import json

import pytest

from cells import SETS, cell, some_cells
from dear.errors import DataError
from dear.evaluation.deviations import EARLIER, find_deviations, recipe_note
from dear.evaluation.results import CellResult, TrainingRecord
from dear.evaluation.summary import Row
from dear.evaluation.tables import to_markdown, to_text
from dear.methods.recipe import SHARED, Recipe
from dear.methods.registry import get_method
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import page, text, write_comparison

PLAIN = {"readouts": {"default": "logits"}, "weights": {}}
COOP, LORA = get_method("coop").recipe, get_method("clip_lora").recipe


def changed(recipe, **values):
    """A training by a recipe with these values instead of its own."""
    used = Recipe(**{**recipe.model_dump(), **values})
    return TrainingRecord(recipe=used, changed_from=None if used == recipe else recipe, precision="fp32")


def trained(method, recipe, steps=100, name="own", **values):
    """Cells of a method with a changed recipe."""
    how = {"training": changed(recipe, **values), "epochs": values.get("epochs", recipe.epochs) or None, "steps": steps}
    return [cell(data, 1, 70.0, 60.0, method=method, recipe=name, **PLAIN, **how) for data in SETS[:2]]


@pytest.mark.covers("T1")
def test_every_changed_value_is_listed():
    cells = trained("clip_lora", LORA, 3, lr=1e-3, epochs=1, steps_per_shot=None, batch_size=4)
    assert find_deviations({Row("clip_lora", ""): cells}).by_row[Row("clip_lora", "")] == (
        "learning rate 1e-3 instead of 2e-4",
        "batch size 4 instead of 32",
        "3 updates instead of 8,000",
    )
    cells = trained("coop", COOP, decay=0.01, warmup_epochs=0, epochs=1)
    assert find_deviations({Row("coop", ""): cells}).of(Row("coop", "")) == (
        "trained with weight decay 0.01 instead of 5e-4; 1 epoch instead of 200; warm-up epochs 0 instead of 1"
    )
    assert find_deviations({Row("coop", ""): trained("coop", COOP)}).of(Row("coop", "")) == ""


@pytest.mark.covers("T1")
def test_cells_with_other_recipes_give_a_range():
    few = [
        one.model_copy(update={"steps": steps, "training": changed(Recipe(epochs=epochs), epochs=1)})
        for one, steps, epochs in zip(trained("coop", COOP), (3, 5), (50, 200), strict=True)
    ]
    assert find_deviations({Row("coop", ""): few}).by_row[Row("coop", "")] == ("1 epoch instead of 50 to 200",)


@pytest.mark.covers("T1")
def test_tables_list_and_pages_mark_what_deviated():
    cells = [
        *trained("clip_lora", LORA, 3, epochs=1, steps_per_shot=None),
        *trained("coop", COOP, lr=1e-3),
        *trained("maple", get_method("maple").recipe),
    ]
    shown = to_markdown(cells)
    assert "- clip_lora: trained with 3 updates instead of 8,000." in shown
    assert "- coop: trained with learning rate 1e-3 instead of 2e-3." in shown
    assert "maple:" not in shown
    terminal = to_text(cells, width=60)
    assert "coop: trained with learning rate 1e-3 instead of 2e-3." in terminal
    assert max(map(len, terminal.splitlines())) <= 60
    found = make_comparison(cells, {})
    for written in (page(found), text(found).replace("\\", "")):
        assert "each method by its own recipe (own), changed where marked [a] and [b];" in written
        assert "[b] trained with learning rate 1e-3 instead of 2e-3." in written
    assert {row["method"]: row["deviations"] for row in found.records} == {
        "clip_lora": "3 updates instead of 8,000",
        "coop": "learning rate 1e-3 instead of 2e-3",
        "maple": "",
    }
    unchanged = page(make_comparison(trained("coop", COOP) + trained("maple", get_method("maple").recipe), {}))
    assert "each method by its own recipe (own); seed 1" in unchanged


@pytest.mark.covers("T1")
def test_what_all_share_is_said_once():
    cells = [one for name in ("coop", "maple") for one in trained(name, SHARED, name="shared", lr=0.02, epochs=3)]
    found = make_comparison(cells, {})
    assert found.marks == {}
    assert page(found).count("learning rate 0.02") == 1
    assert "one recipe for all methods (shared), but all with learning rate 0.02 instead of 1e-3; 3 epochs" in page(
        found
    )
    assert "- All methods were trained with learning rate 0.02 instead of 1e-3; 3 epochs instead of 10." in to_markdown(
        cells
    )
    assert [row["deviations"] for row in found.records] == [
        "learning rate 0.02 instead of 1e-3; 3 epochs instead of 10"
    ] * 2


@pytest.mark.covers("T1")
def test_a_cell_without_its_recipe_says_what_is_known():
    old = some_cells({"coop": 1.0, "maple": 2.0}, epochs=4)
    assert EARLIER in text(make_comparison(old, {}))
    assert EARLIER in to_markdown(old)
    assert "4 epochs instead of 10" in to_markdown(old)
    assert EARLIER not in to_markdown(trained("coop", COOP))


@pytest.mark.covers("T1")
def test_the_recipe_survives_the_file_of_a_cell_and_a_wrong_one_is_a_sentence():
    (one, _) = trained("coop", COOP, lr=1e-3)
    again = CellResult.from_json(one.to_json())
    assert again == one
    assert again.training.recipe.lr == 1e-3
    assert again.training.changed_from == COOP
    content = json.loads(one.to_json())
    content["training"]["recipe"]["lr"] = -1
    with pytest.raises(DataError, match=r"x\.json is not a valid cell result\..*lr is -1"):
        CellResult.from_json(json.dumps(content), where="x.json")


@pytest.mark.covers("T2")
def test_tables_with_the_shared_recipe_say_whose_it_is(tmp_path):
    note = recipe_note("shared")
    assert note.startswith(
        "The shared recipe is DeAR's own (AdamW, learning rate 1e-3, 10 epochs, batch size 16): DeAR"
    )
    assert get_method("dear").recipe == SHARED
    shared = some_cells()
    found = make_comparison(shared, {})
    write_comparison(tmp_path, found)
    assert note.replace("'", "&#39;") in (tmp_path / "compare.html").read_text()
    assert note in (tmp_path / "compare.md").read_text()
    assert note in to_markdown(shared)
    assert note in " ".join(to_text(shared).split())
    own = [one.model_copy(update={"recipe": "own"}) for one in shared]
    assert "DeAR's own" not in to_markdown(own) + text(make_comparison(own, {}))
