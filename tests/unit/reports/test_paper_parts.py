"""Parts of the paper: one table or figure by itself, and no conclusion from one seed or one point."""

import pytest

from cells import cell
from dear.errors import ConfigError
from dear.evaluation.tables import to_markdown
from dear.paper.figures import few_shot_section
from dear.paper.numbers import verdict
from dear.paper.plan import MINI, Experiment, chosen, plan_paper
from dear.paper.tables import base_to_novel_section
from papers import made_up


@pytest.mark.covers("F15")
def test_a_part_of_the_paper_by_itself():
    whole = plan_paper(MINI)
    assert chosen(whole, None) == whole
    assert [one.key for one in chosen(whole, ["figure-5", "table-2"])] == ["table-2", "figure-4"]
    with pytest.raises(ConfigError, match=r"has no 'table2'\. Did you mean 'table-2'"):
        chosen(whole, ["table2"])


@pytest.mark.covers("F15")
def test_the_plan_of_a_part(dear_, tmp_path):
    code, out, _ = dear_("paper", "--mini", "--out", tmp_path / "p", "--only", "table-4", "--seeds", "1", "--plan")
    assert code == 0
    assert out.startswith("Table 4: domain generalisation (table-4): 0 of 2 cells done")
    assert "Table 2" not in out
    assert dear_("paper", "--mini", "--out", tmp_path / "p", "--only", "table-9", "--plan")[0] == 2


@pytest.mark.covers("F16")
def test_nothing_is_concluded_from_one_seed_or_one_point():
    plan = {one.key: one for one in plan_paper(MINI)}
    one_seed = [cell for cell in plan["table-2"].cells if cell.seed == 1]
    part = base_to_novel_section(Experiment("table-2", "Table 2", tuple(one_seed)), [made_up(one) for one in one_seed])
    text = " ".join((*part.says, *part.notes))
    assert "one seed: the spread is unknown" in text
    assert "over seeds" not in text
    point = [cell for cell in plan["figure-4"].cells if cell.shots == 16 and cell.seed == 1]
    part = few_shot_section(Experiment("figure-4", "Figure 4", tuple(point)), [made_up(one) for one in point])
    assert "at every step" not in " ".join(part.says)
    whole = few_shot_section(plan["figure-4"], [made_up(one) for one in plan["figure-4"].cells])
    assert "at every step" in " ".join(whole.says)
    assert "of one seed: the spread is unknown" in to_markdown([cell()])
    assert "standard deviation over seeds" in to_markdown([cell(), cell(seed=2)])


def test_equal_numbers_of_one_seed_are_within_no_spread():
    from dear.evaluation.statistics import Stat

    alone = {name: Stat(80.0, None, 1) for name in ("A", "B")}
    spread = {name: Stat(80.0, 1.0, 3) for name in ("A", "B")}
    assert "Within the spread" not in verdict("x", alone, {"A": 2.0, "B": 1.0})
    assert "Within the spread" in verdict("x", spread, {"A": 2.0, "B": 1.0})
