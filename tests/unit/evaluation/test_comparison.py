"""A comparison of methods on made-up cells: its order, tests, words and files."""

import csv
import io
import json
from pathlib import Path

import pytest

import cells as made
from cells import GAINS, SETS, some_cells
from dear.errors import ConfigError
from dear.evaluation.memory import watch_peak
from dear.evaluation.pairwise import all_pairs
from dear.evaluation.statistics import holm, signed_rank
from dear.evaluation.summary import Row
from dear.methods.registry import list_methods
from dear.options.parts import Compare
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import FILES, text, write_comparison
from dear.reports.compare_words import GOALS, verdict
from dear.reports.method_charts import Point, scatter_chart, unbeaten
from dear.workflows.bench import plan_cells
from dear.workflows.compare import compare


def test_methods_are_ordered_and_pairs_are_tested():
    found = make_comparison(some_cells(), {})
    assert [row.method for row in found.rows] == ["dear", "maple", "coop", "zero_shot"]
    assert found.plain == Row("zero_shot", "")
    pairs = all_pairs(found.summary, "hm", found.complete)
    assert len(pairs) == 6
    assert [pair.corrected for pair in pairs] == holm([pair.test.p for pair in pairs])
    numbers = {
        row: [found.summary.values[row][seed][data, "hm"] for seed in (1, 2, 3) for data in sorted(SETS)]
        for row in found.rows
    }
    for pair in pairs:
        assert pair.test == signed_rank(numbers[pair.first], numbers[pair.second])
        back = found.pair("hm", pair.second, pair.first)
        assert back.test.difference == -pair.test.difference
        assert (back.test.better, back.corrected) == (pair.test.worse, pair.corrected)


def said_of(*cells, **how):
    return "\n".join(verdict(make_comparison(some_cells(*cells, **how), {})))


def test_the_words_follow_the_numbers():
    said = said_of({**GAINS, "dear": 9.0})
    assert "For trained and new classes together, use dear" in said
    assert "3 of 3 methods are significantly better than plain CLIP" in said
    assert "15 results (5 data sets × 3 seeds)" in said
    assert "with the small CLIP of the embedded world" in said
    said = said_of({**GAINS, "coop": 9.0})
    assert "For trained and new classes together, use coop" in said
    said = said_of({**GAINS, "maple": 5.1})
    assert "has the highest HM" in said
    assert "significantly better than 2 of the 3 others, but not than " in said
    assert "Not significantly different does not mean equally good." in said
    wild = [
        cell
        for data, gain in zip(SETS, (9.0, 9.0, 0.0, -20.0, -20.0), strict=True)
        for cell in some_cells({"vpt": gain}, sets=(data,))
    ]
    said = "\n".join(verdict(make_comparison([*some_cells(), *wild], {})))
    assert "the others are not significantly different from it, though vpt is " in said
    said = said_of({"zero_shot": 0.0, "coop": -5.0, "maple": -4.0})
    assert "use zero_shot" in said
    assert "No method is significantly better than plain CLIP" in said
    assert "; maple and coop are significantly worse." in said


def test_each_question_has_a_line_of_its_own(tmp_path):
    found = make_comparison(some_cells({**GAINS, "maple": 5.1}), {})
    write_comparison(tmp_path, found)
    lines = verdict(found)
    assert lines[0].startswith("Measured on synthetic drawings")
    assert lines[1].startswith("The shared recipe is DeAR's own")
    assert [line.partition(",")[0] for line in lines[2:5]] == [GOALS[column][0] for column in ("hm", "base", "novel")]
    assert (tmp_path / "compare.html").read_text().count("<li>For ") == 3
    assert f"- {lines[2][:40]}" in (tmp_path / "compare.md").read_text()


def test_the_highest_mean_is_not_always_the_surest_choice():
    """Far ahead on some data sets and behind on others is a high mean, and nothing that a test of ranks trusts."""
    cells = some_cells({"zero_shot": 0.0, "coop": 1.0, "maple": 5.0})
    gains = (40.0, 30.0, -10.0, -10.0, -10.0)
    wild = [cell for data, gain in zip(SETS, gains, strict=True) for cell in some_cells({"vpt": gain}, sets=(data,))]
    lines = verdict(make_comparison([*cells, *wild], {}))
    alone = next(line for line in lines if line.startswith("For the trained classes alone"))
    assert "vpt has the highest base accuracy" in alone
    assert "It is not significantly better than any other method; maple (" in alone
    assert "is the safer choice, significantly better than 2." in alone
    assert any(
        line == "The best method differs by data set: of 5 data sets, maple on 3 and vpt on 2." for line in lines
    )


@pytest.mark.parametrize(("parameters", "words"), [(0, None), (90_000, "trained parameters instead of 90,000.")])
def test_a_smaller_method_is_named_only_beside_one_that_trains(parameters, words):
    """Beside a best method that trains nothing, one that trains thousands of parameters was said to save some."""
    cells = some_cells({"zero_shot": 0.0, "coop": 9.0, "maple": 9.1})
    said = verdict(make_comparison([*cells, *some_cells({"gda": 9.5}, parameters=parameters)], {}))
    found = [line for line in said if "If size matters" in line]
    assert not found if words is None else found[0].endswith(words)


def test_too_few_results_recommend_nothing():
    said = said_of(sets=SETS[:1])
    assert "These results are too few to recommend a method" in said
    assert ", use " not in said
    assert "nothing to compare" in said_of({"dear": 1.0})


def test_what_was_trained_otherwise_is_marked():
    cells = some_cells({name: gain for name, gain in GAINS.items() if name != "maple"})
    cells += some_cells({"maple": 5.0}, epochs=4, cached_views=2)
    found = make_comparison(cells, {})
    assert found.footnotes(Row("maple", "")) == [
        "trained with 4 epochs instead of 10; 2 cached views per image instead of new ones in every epoch"
    ]
    assert found.footnotes(Row("coop", "")) == []
    alike = make_comparison(some_cells(epochs=3), {})
    assert alike.deviations.common == ("3 epochs instead of 10",)
    assert not any("epoch" in note for row in alike.rows for note in alike.footnotes(row))
    assert alike.footnotes(Row("dear", "")) == ["uses more than labelled photos: a role map"]


def test_a_method_that_is_not_done_is_not_compared():
    found = make_comparison([*some_cells(), *some_cells({"vpt": 20.0}, sets=SETS[:2])], {})
    assert found.rows[-1] == Row("vpt", "")
    assert Row("vpt", "") not in found.complete
    assert "done on 2 data set(s) with 3 seed(s) only" in found.footnotes(Row("vpt", ""))[0]
    assert "vpt" not in "".join(verdict(found))


def test_files_are_the_same_bytes_and_read_in_one_line(tmp_path):
    refused = {Row("linear_probe", ""): "It knows <only> the classes it was trained on."}
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_comparison(tmp_path / folder, make_comparison(some_cells(), refused))
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "one" / "compare.csv").read_text())))
    records = json.loads((tmp_path / "one" / "compare.json").read_text())
    assert [row["method"] for row in rows] == [one["method"] for one in records]
    assert {type(value) for one in records for value in one.values()} <= {str, int, float, bool, type(None)}
    pairs = list(csv.DictReader(io.StringIO((tmp_path / "one" / "compare-pairs.csv").read_text())))
    assert len(pairs) == 3 * 6
    page = (tmp_path / "one" / "compare.html").read_text()
    assert "&lt;only&gt;" in page
    assert (
        "Published numbers are not shown: they were measured with OpenAI&#39;s ViT-B/16, and this backbone is world."
        in page
    )
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "linear_probe" in (tmp_path / "one" / "compare.md").read_text()


@pytest.mark.parametrize(
    ("gains", "differences"), [({"coop": 9.0, "maple": 5.0}, ["Differences"]), ({"coop": 9.0}, [])]
)
def test_the_text_has_the_sections_of_the_page_that_are_not_charts(gains, differences):
    """Without two complete methods, an empty table of differences replaced the published numbers."""
    found = text(make_comparison(some_cells(gains), {}))
    headings = ["Results", *differences, "Published numbers", "HM by data set", "The methods"]
    assert [line[3:] for line in found.splitlines() if line.startswith("## ")] == headings
    assert ("HM; *: significant" in found) == bool(differences)


@pytest.mark.covers("F14")
def test_published_numbers_beside_the_paper_s_backbone(tmp_path):
    cells = some_cells(backbone=made.PAPER_CLIP, recipe="own")
    write_comparison(tmp_path, make_comparison(cells, {}))
    page = (tmp_path / "compare.html").read_text()
    assert "82.69 / 63.22 / 71.66" in page
    assert "read-me of its repository" in page


@pytest.mark.covers("F16")
def test_one_seed_has_no_spread(tmp_path):
    write_comparison(tmp_path, make_comparison(some_cells(seeds=(1,), sets=SETS[:1]), {}))
    page = (tmp_path / "compare.html").read_text()
    assert "the mean over 1 data set, of one seed, so the spread is unknown." in page
    assert "over seeds" not in page


def test_few_shot_columns_are_shots(tmp_path):
    cells = [
        made.few_shot_cell(
            data, seed, shots, 50.0 + shots + bonus, method=method, readouts={"default": "logits"}, weights={}
        )
        for method, bonus in (("coop", 0.0), ("dear", 4.0))
        for data in SETS
        for seed in (1, 2)
        for shots in (4, 16)
    ]
    found = make_comparison(cells, {})
    assert (found.columns, found.main) == (("4", "16"), "16")
    assert "With 16 photos per class, use dear" in "\n".join(verdict(found))
    assert found.records[0]["accuracy_16_mean"] == 70.0
    write_comparison(tmp_path, found)


def test_cells_of_two_tables_are_refused():
    with pytest.raises(ConfigError, match="belong to 2 tables"):
        make_comparison([*some_cells(), *some_cells({"coop": 1.0}, recipe="own")], {})


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"protocol": "domain"}, "protocol is 'domain': give base-to-novel or few-shot"),
        ({"shots": (1, 2)}, "one number of shots"),
        ({"epochs": {"maple": 3}}, "Epochs are set for 'maple'"),
        ({"epochs": {"coop": 0}}, "epochs_of is"),
        ({"epocs": 3}, "There is no option epocs. Did you mean 'epochs'?"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(tmp_path, how, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        compare("world-blooms", out=tmp_path / "out", methods=["coop"], **how)
    assert not (tmp_path / "out").exists()


def test_all_methods_by_one_word():
    options = {"out": Path("out"), "data": "world-textures", "seeds": 1}
    everything, _ = plan_cells("few-shot", Compare(**options))
    assert [cell.method for cell in everything] == list_methods()
    one, _ = plan_cells("few-shot", Compare(**options, methods="coop"))
    assert [cell.method for cell in one] == ["coop"]


def test_points_that_nothing_beats():
    points = [Point("a", "1", 0, 60), Point("b", "2", 10, 70), Point("c", "3", 100, 65), Point("d", "4", 100, 80)]
    assert [one.name for one in unbeaten(points)] == ["a", "b", "d"]
    chart = scatter_chart("cost", points, x_title="x", y_title="y")
    assert all(f">{one.name}</text>" in chart for one in points)


def test_peak_memory_is_of_this_work_alone():
    peak = watch_peak("cpu")
    before = peak()
    if before is None:
        return  # this system cannot tell
    large = bytearray(150_000_000)
    large[::4096] = b"x" * len(large[::4096])
    grown = peak()
    del large
    again = watch_peak("cpu")()
    assert grown > before + 100
    assert again < grown - 50
