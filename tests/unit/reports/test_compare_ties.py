"""Methods with equal numbers tie: they share a rank, and no sentence calls one of them the best."""

import csv
import io

import pytest

from cells import SETS, cell, some_cells
from dear.evaluation.summary import Row
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import text, write_comparison
from dear.reports.compare_words import verdict

LEARNED = {"readouts": {"default": "logits"}, "weights": {}, "recipe": "shared", "epochs": 10}
UNTRAINED = {**LEARNED, "steps": 0, "adapter_sha256": None, "epochs": None}


def tie(scores, sets=SETS[:1], seeds=(1,)):
    """A comparison of methods with these base and novel accuracies."""
    made = []
    for method, (base, novel) in scores.items():
        how = UNTRAINED if method == "zero_shot" else LEARNED
        made += [cell(data, seed, base, novel, method=method, **how) for data in sets for seed in seeds]
    return make_comparison(made, {})


@pytest.mark.covers("T6")
def test_ranks_are_shared_and_the_next_one_is_left_out(tmp_path):
    found = tie({"maple": (70.0, 70.0), "coop": (87.5, 91.7), "zero_shot": (87.5, 91.7), "clip_adapter": (87.5, 91.7)})
    assert [found.places[row] for row in found.rows] == [1, 1, 1, 4]
    write_comparison(tmp_path, found)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "compare.csv").read_text())))
    assert {row["method"]: row["place"] for row in rows} == {
        "clip_adapter": "1",
        "coop": "1",
        "zero_shot": "1",
        "maple": "4",
    }
    lines = (tmp_path / "compare.md").read_text().splitlines()
    assert [line.split()[3] for line in lines if line.startswith("| 1   |")] == ["clip_adapter", "coop", "zero_shot"]
    assert "Methods with the same rank tie" in text(found)
    assert "Methods with the same rank tie" not in text(make_comparison(some_cells(), {}))


@pytest.mark.covers("T6")
def test_too_few_results_call_a_tie_a_tie_in_every_column():
    said = verdict(tie({"clip_adapter": (87.5, 91.7), "coop": (87.5, 90.0), "zero_shot": (87.5, 91.7)}))[-1]
    assert "clip_adapter and zero_shot tie in HM (89.6 %)" in said
    assert "clip_adapter, zero_shot and coop tie in base accuracy (87.5 %)" in said
    assert "clip_adapter and zero_shot tie in novel accuracy (91.7 %)" in said


@pytest.mark.covers("T6")
def test_a_recommendation_calls_a_tie_a_tie():
    found = tie({"coop": (70.0, 70.0), "maple": (70.0, 70.0), "zero_shot": (60.0, 60.0)}, SETS, (1, 2, 3))
    said = verdict(found)
    assert said[1].startswith(
        "For trained and new classes together, coop and maple tie at 70.0 % in HM (harmonic mean of base and novel "
        "accuracy); every other method is significantly worse than each of them."
    )
    assert said[2].startswith("For the trained classes alone, coop and maple tie at 70.0 % in base accuracy")
    assert not any("use coop" in line or "The best method differs" in line for line in said)


@pytest.mark.covers("T6")
def test_a_tie_on_one_data_set_counts_for_each():
    scores = {"coop": (70.0, 70.0), "maple": (70.0, 70.0)}
    cells = [one for found in (tie(scores, SETS[:3], (1, 2, 3)),) for row in found.cells.values() for one in row]
    cells += [
        cell(data, seed, level, level, method=method, **LEARNED)
        for method, level in (("coop", 80.0), ("maple", 79.0))
        for data in SETS[3:]
        for seed in (1, 2, 3)
    ]
    said = verdict(make_comparison(cells, {}))
    assert any("coop on 5 and maple on 3 (3 ties, counted for each" in line for line in said)


@pytest.mark.covers("T6")
def test_equal_as_printed_is_not_a_tie_but_rounding_noise_is():
    near = tie({"coop": (70.0, 70.0), "maple": (70.001, 70.0)})
    assert [near.places[row] for row in near.rows] == [1, 2]
    noisy = tie({"coop": (70.0, 70.0), "maple": (70.0 + 1e-12, 70.0)})
    assert noisy.leaders("hm") == [Row("coop", ""), Row("maple", "")]


@pytest.mark.covers("T6")
def test_equal_costs_tie():
    cells = [
        cell(data, seed, level + wave * (-1) ** seed, level, method=method, parameters=size, **LEARNED)
        for method, level, wave, size in (("coop", 70.0, 1, 7), ("maple", 70.1, -1, 7), ("vpt", 70.2, 0, 9))
        for data in SETS
        for seed in (1, 2)
    ]
    assert "maple (70.1) and coop (70.0) tie for the fewest parameters." in verdict(make_comparison(cells, {}))[1]
