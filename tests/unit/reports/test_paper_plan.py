"""The paper's plan: which cells it needs, each once, and what it does without data sets or entropies."""

from pathlib import Path

import pytest

from dear.errors import ConfigError
from dear.evaluation.published import TABLES
from dear.paper.plan import FULL, MINI, Scale, cells_by_protocol, identity, plan_paper, steps_of
from dear.paper.survey import GUESSED, PaperRequest, describe_plan, estimate, survey
from papers import made_up


def all_cells(experiments):
    return [cell for cells in cells_by_protocol(experiments).values() for cell in cells]


def by_key(experiments):
    return {one.key: one for one in experiments}


def test_the_data_sets():
    assert len(MINI.learned) == 7
    assert MINI.source in MINI.learned
    assert len(MINI.shifted) == 4
    assert len(FULL.learned) == 11
    assert len(FULL.all) == 15


def test_every_table_and_figure_is_planned():
    assert [one.key for one in plan_paper(MINI)] == [
        "table-2",
        "table-3",
        "table-4",
        "table-5",
        "table-6",
        "figure-3",
        "figure-4",
        "supplement-table-2",
        "supplement-table-3",
        "supplement-table-5",
        "supplement-table-6-left",
        "supplement-table-6-right",
        "supplement-figure-2",
        "role-gains",
        "mean-ablation",
    ]
    assert len(TABLES) == 9  # a new table of published numbers needs a part of the report


def test_cells_are_shared():
    experiments = by_key(plan_paper(MINI))
    adapted = set(experiments["supplement-table-3"].cells)
    assert len(adapted) == 7 * 3
    for key in ("table-2", "table-5", "table-6", "supplement-table-5", "supplement-figure-2"):
        assert adapted <= set(experiments[key].cells)
    assert set(experiments["figure-3"].cells) <= set(experiments["figure-4"].cells)
    cells = all_cells(experiments.values())
    assert len(set(map(identity, cells))) == len(cells)
    assert all(len({one.slug for one in found}) == len(found) for found in cells_by_protocol(plan_paper(MINI)).values())


def test_how_much_it_is():
    cells = all_cells(plan_paper(MINI))
    trained = [cell for cell in cells if cell.method == "dear"]
    assert len(trained) == 21 + 3 + 3 + 42 + 42 + 12 + 9 + 105
    assert len(cells) - len(trained) == 7 + 1 + 1 + 7 + 21
    assert 15_000 < sum(steps_of(cell, 10) for cell in cells) < 30_000


def test_a_role_map_goes_to_every_adapted_cell():
    cells = all_cells(plan_paper(MINI, Scale(roles="map.json")))
    assert all(("roles", "map.json") in cell.choices for cell in cells if cell.method in ("dear", "role_gains"))
    assert not any(cell.choices for cell in cells if cell.method == "zero_shot")


def test_without_some_data_sets():
    experiments = by_key(plan_paper(FULL, Scale(has_entropies=False), ["dtd", "eurosat"]))
    assert {cell.data for cell in experiments["table-2"].cells} == {"dtd", "eurosat"}
    assert "imagenet" in experiments["table-2"].lacks
    for key in ("table-3", "table-4", "figure-3", "supplement-table-6-right", "mean-ablation"):
        assert experiments[key].blocked == "imagenet is missing"
        assert not experiments[key].cells
    nothing = by_key(plan_paper(FULL, None, []))
    assert nothing["table-2"].blocked == "all of its data sets are missing"
    assert not all_cells(nothing.values())


def test_without_entropies():
    experiments = by_key(plan_paper(FULL, Scale(has_entropies=False)))
    assert "no entropies" in experiments["supplement-table-6-left"].blocked
    assert experiments["supplement-table-6-right"].cells


def test_without_targets():
    experiments = by_key(plan_paper(FULL, None, ["imagenet"]))
    assert experiments["table-3"].blocked == "each of its targets is missing"
    assert experiments["figure-3"].cells


def test_cost_is_guessed_then_measured():
    order = PaperRequest(Path("nowhere"))
    cells = all_cells(plan_paper(MINI))
    first = estimate(order, cells, [])
    assert (first.done, first.measured, first.seconds_a_step) == (0, False, GUESSED["mini"])
    assert "a guess" in first.sentence()
    half = estimate(order, cells, [made_up(cell) for cell in cells[:90]])
    assert half.measured
    assert half.seconds_a_step == pytest.approx(0.1234567)
    assert half.minutes < estimate(order, cells, [made_up(cells[40])]).minutes
    done = estimate(order, cells, [made_up(cell) for cell in cells])
    assert done.sentence() == f"{len(cells)} cells: {len(cells)} done, none to do"


def test_the_plan_in_words(tmp_path):
    order = PaperRequest(
        tmp_path / "out", kind="full", clip="ViT-B-16-quickgelu", pretrained="openai", data_root=tmp_path
    )
    text = describe_plan(order, survey(order))
    assert "Table 2: base-to-novel generalisation (table-2): cannot run: all of its data sets are missing" in text
    assert "missing dtd: put it in " in text
    assert "/dtd. Get dtd-r1.0.1" in text
    with pytest.raises(ConfigError, match="data_root='FOLDER'"):
        survey(PaperRequest(tmp_path, kind="full"))
