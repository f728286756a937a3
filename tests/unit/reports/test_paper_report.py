"""The paper's report from made-up findings: everything is in it, nothing is outside, the same bytes every time."""

import json
import re

import pytest
import torch

from dear.evaluation.statistics import Stat
from dear.paper.measures import chance_of, precision_at
from dear.paper.numbers import average_text, paper_text, paper_titles, published_row, stands_for, verdict
from dear.paper.page import ASSIGNED, make_sections, write_paper
from dear.paper.plan import MINI, Scale, cells_by_protocol, plan_paper
from dear.reports.svg import nice_ticks
from papers import findings, made_up


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    write_paper(folder, findings())
    return folder


def test_every_table_and_figure_is_there(written):
    found = files_of(written)
    keys = [one.key for one in findings().experiments]
    assert {f"tables/{key}.md" for key in keys} <= found.keys()
    figures = {"figure-4.svg", "figure-5-world-broad.svg", "figure-3-query-1.png", "supplement-figure-2.svg"}
    figures |= {"supplement-table-2.svg", "mean-ablation-layers.svg", "mean-ablation-heads.svg"}
    assert {f"figures/{name}" for name in figures} <= found.keys()
    page = found["report.html"].decode()
    assert all(f'<section id="{key}">' in page for key in keys)
    assert page.count("<svg") == sum(name.endswith(".svg") for name in found)
    assert not any("—" in found[f"tables/table-{n}.md"].decode() for n in range(2, 7))


def test_the_page_needs_nothing_else(written):
    page = (written / "report.html").read_text()
    assert not re.search(r"https?://|//cdn|<script|<link|@import|url\(", page)
    assert all(source.startswith("data:") for source in re.findall(r'src="([^"]+)"', page))


@pytest.mark.covers("F16")
def test_one_seed_and_one_number_of_shots_say_nothing_about_spread_and_curves(written, tmp_path):
    experiments = plan_paper(MINI, Scale(seeds=(1,), few_shots=(16,)))
    cells = [cell for found in cells_by_protocol(experiments).values() for cell in found]
    write_paper(tmp_path, findings(experiments=experiments, results=[made_up(cell) for cell in cells]))
    usual, little = ((folder / "report.html").read_text() for folder in (written, tmp_path))
    for empty in ("over seeds", "over 1 seed", "at every step here"):
        assert empty not in little
    assert "of one seed: the spread is unknown" in little
    assert "Within the spread over seeds" in usual
    assert "at every step here" in usual
    same = {name: Stat(50.0, None, 1) for name in ("DeAR", "CLIP")}
    assert "spread" not in verdict("HM", same, {"DeAR": 2.0, "CLIP": 1.0})


def test_no_time_is_printed(written):
    assert not any(b"12.34567" in data or b"seconds" in data for data in files_of(written).values())


def test_same_findings_same_bytes(written, tmp_path):
    write_paper(tmp_path, findings())
    assert files_of(tmp_path) == files_of(written)


def test_the_papers_numbers_stand_beside_ours(written):
    table = (written / "tables/table-2.md").read_text()
    assert re.search(
        r"\| world-things +\| Caltech101 +\| DeAR +\| .* \| 99.00 \| .* \| 95.80 \| .* \| 96.95 \[97.37\] \|", table
    )
    assert re.search(
        r"\| average +\| average of its eleven +\| DeAR +\| .* \| 85.94 \| .* \| 79.73 \| .* \| +82.72 \|", table
    )
    assert "| All-Generalization " in (written / "tables/table-5.md").read_text()
    assert "74.73 ± 0.23" in (written / "tables/supplement-table-6-left.md").read_text()


def test_numbers_as_json(written):
    content = json.loads((written / "results.json").read_text())
    assert content["format"] == "dear-paper"
    assert len(content["cells"]) == 274
    row = content["parts"][0]["tables"][0]["rows"][1]
    assert row[:3] == ["world-textures", "DTD", "DeAR"]
    assert row[3].keys() == {"mean", "std", "seeds"}
    plain, adapted = content["cells"][0], content["cells"][7]
    assert (plain["method"], plain["readouts"], plain["weights"]) == ("zero_shot", {"default": "logits"}, {})
    assert adapted["readouts"] == {"default": "fusion", "transfer": "decoupled"}
    assert list(adapted["weights"])[:2] == ["cls", "color"]
    assert [one["accuracy"].keys() for one in adapted["scores"]] == [{"fusion", "decoupled"}] * 2


def part_of(found, key):
    return next(part for part in make_sections(found) if part.key == key)


def test_inference_strategies_are_readouts():
    found = findings()
    results = []
    for cell in found.results:
        scores = tuple(
            one.model_copy(update={"accuracy": {**one.accuracy, "decoupled": 12.0}}) if cell.weights else one
            for one in cell.scores
        )
        results.append(cell.model_copy(update={"scores": scores}))
    before = part_of(found, "supplement-table-5").tables[0].rows
    after = part_of(findings(results=results), "supplement-table-5").tables[0].rows
    assert [row[0] for row in after] == ["Decoupled", "Fusion"]
    assert [after[0][place].mean for place in (1, 3, 5)] == pytest.approx([12.0] * 3)
    assert before[0][1].mean > 50
    assert after[1] == before[1]


def test_fusion_weights_are_found_by_name():
    found = findings()
    backwards = [
        cell.model_copy(update={"weights": dict(reversed(list(cell.weights.items())))}) for cell in found.results
    ]
    table, other = (part_of(one, "supplement-figure-2").tables[0] for one in (found, findings(results=backwards)))
    assert table.head == ("data", "cls", "color", "shape", "texture", "object", "location")
    assert other.head == ("data", "cls", "location", "object", "texture", "shape", "color")
    assert [row[1:] for row in other.rows] == [(row[1], *reversed(row[2:])) for row in table.rows]


def test_a_figure_that_is_not_reproduced_is_called_so():
    says = part_of(findings(), "supplement-figure-2").says
    (sentence,) = [one for one in says if "Supplement, Figure 2 is not reproduced" in one]
    measured = r": within a data set the attributes' weights differ by at most \d\.\d{4}\."
    assert re.search(f"{measured}$", sentence)  # nothing else is said, as nothing else was measured
    textures = [cell for cell in findings().results if cell.method == "dear"]
    weighed = {"cls": 0.7, "color": 0.05, "shape": 0.05, "texture": 0.1, "object": 0.05, "location": 0.05}
    even = {**weighed, "texture": 0.06, "cls": 0.74}
    as_printed = [
        cell.model_copy(update={"weights": weighed if cell.data == "world-textures" else even}) for cell in textures
    ]
    says = part_of(findings(results=as_printed), "supplement-figure-2").says
    assert not any("not reproduced" in sentence for sentence in says)


def test_gains_stand_beside_the_fusion_weights():
    found = findings()
    part = part_of(found, "role-gains")
    gains, worth = part.tables
    assert gains.head == ("data", "color", "shape", "texture", "object", "location", "rest")
    cells = [cell for cell in found.results if cell.method == "role_gains" and cell.data == "world-blooms"]
    assert len(cells) == 3
    row = next(row for row in gains.rows if row[0] == "world-blooms")
    assert row[1].mean == pytest.approx(sum(cell.weights["color"] for cell in cells) / 3)
    assert all(row[4] == pytest.approx(row[1] + 1) for row in worth.rows)
    assert "1 is plain CLIP" in part.figures[0].svg
    assert part.says[0].startswith("The attribute with the largest gain: world-textures ")
    assert part_of(findings(0.01), "role-gains").notes == ("0 of 21 cells are done; the numbers are from these cells.",)


def test_a_half_done_paper_says_so(tmp_path):
    write_paper(tmp_path, findings(0.15, retrieval=None, ablation=None))
    page = (tmp_path / "report.html").read_text()
    assert "This report is not complete: 41 of 274 cells are done." in page
    assert "Not measured yet." in page
    assert "0 of 112 cells are done" in (tmp_path / "tables/figure-4.md").read_text()
    table = (tmp_path / "tables/table-5.md").read_text()
    assert re.search(r"\| All-Mixed +\| +— \| +85.31 \|", table)
    assert "not all of it has been computed here" in table


@pytest.mark.parametrize("share", [0, 0.01, 0.1, 0.5, 0.77, 0.99])
def test_any_part_of_a_paper_makes_a_report(share):
    assert len(make_sections(findings(share))) == 15


def test_what_is_missing_is_told(tmp_path):
    write_paper(tmp_path, findings(present=["world-things"], missing={"world-broad": "Draw <it>."}))
    page = (tmp_path / "report.html").read_text()
    assert "Missing data sets" in page
    assert "Draw &lt;it&gt;." in page
    assert "Not run: world-broad is missing." in (tmp_path / "tables/table-3.md").read_text()
    assert "Left out, because they are missing: world-textures" in (tmp_path / "tables/table-2.md").read_text()


def test_a_verdict_invents_no_order():
    ours = {"A": Stat(74.0, 0.1, 3), "B": Stat(72.0, 0.1, 3)}
    assert verdict("Base", ours, {"A": 85.94, "B": 85.94}) == (
        "Base: the paper prints the same number for all, A (85.94) = B (85.94); here it is A (74.00) > B (72.00)."
    )
    three = {**ours, "C": Stat(73.0, 0.1, 3)}
    assert "C (90.00) > A (85.94) = B (85.94); here" in verdict("Base", three, {"A": 85.94, "B": 85.94, "C": 90.0})
    assert "appears here: no" in verdict("Base", three, {"A": 85.94, "B": 85.94, "C": 90.0})


def test_verdicts_are_computed():
    papers = {"a": 3.0, "b": 2.0, "c": 1.0}
    same = {"a": Stat(30, 0.1, 3), "b": Stat(20, 0.1, 3), "c": Stat(10, 0.1, 3)}
    assert verdict("HM", same, papers) == (
        "HM: the paper has a (3.00) > b (2.00) > c (1.00); here it is a (30.00) > b (20.00) > c (10.00). "
        "The paper's order appears here: yes."
    )
    swapped = verdict("HM", {**same, "b": Stat(30.05, 0.1, 3)}, papers)
    assert swapped.endswith("The paper's order appears here: no. Within the spread over seeds: a and b.")
    tie = verdict("HM", {**same, "b": Stat(30, None, 1)}, papers)
    assert "appears here: no." in tie
    assert "not all of it" in verdict("HM", {**same, "b": None}, papers)
    assert verdict("HM", same, {"a": 3.0, "b": None}) == ""


def test_which_numbers_of_the_paper():
    assert stands_for("world-places") == ("eurosat", "sun397")
    assert stands_for("dtd") == ("dtd",)
    assert paper_titles("world-broad") == "ImageNet"
    row = published_row("base-to-novel", "dear")
    assert paper_text(row, ["eurosat", "sun397"], "base") == "90.41"
    assert paper_text(row, ["oxford_pets"], "hm") == "96.81 [97.42]"
    assert average_text("base-to-novel", row, ["world-things"], "hm") == "82.72"
    assert average_text("base-to-novel", row, ["dtd", "eurosat"], "base") == "90.45*"
    assert paper_text(published_row("cross-dataset", "zero_shot"), ["dtd"], "accuracy") == ""


def test_precision_of_searches():
    features = torch.eye(2).repeat(3, 1)  # 0, 2, 4 alike, and 1, 3, 5
    assert precision_at(features, torch.tensor([0, 1] * 3), 2) == 100
    assert precision_at(features, torch.tensor([0, 0, 1, 1, 2, 2]), 2) == 0
    assert precision_at(features, torch.zeros(6, dtype=torch.long), 50) == 100
    assert precision_at(features[:1], torch.tensor([0]), 5) == 0
    assert chance_of(torch.tensor([0, 0, 1, 1])) == pytest.approx(100 / 3)


EQUAL_BUT_ROUNDING = [(70.0, 70.0 + 1e-11), (70.1 - 1e-13, 70.1), (0.0, 1e-16), (-5e4, -5e4 + 1e-6)]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (61.2, 88.9), (5, 5), (0, 0), (-3, 40), (0.0711, 0.0712), *EQUAL_BUT_ROUNDING]
)
def test_ticks_hold_everything(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 8
    assert ticks == sorted(set(ticks))


@pytest.mark.covers("T9")
@pytest.mark.parametrize("key", ["supplement-table-2", "mean-ablation", "figure-3"])
def test_heads_that_pre_training_assigned_are_no_evidence(key, tmp_path):
    counted = re.compile(r"\d of \d")
    for assigned in (False, True):
        found = findings(assigned_heads=assigned)
        counts = [sentence for sentence in part_of(found, key).says if counted.search(sentence)]
        assert counts
        assert all(sentence.endswith(ASSIGNED) is assigned for sentence in counts)
    write_paper(tmp_path, found)
    assert ASSIGNED.strip() in (tmp_path / "tables" / f"{key}.md").read_text(encoding="utf-8")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("assigned heads of its last four layers") >= 3
