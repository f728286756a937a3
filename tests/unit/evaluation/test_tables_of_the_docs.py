"""The tables of "Which method?" and of "What was measured" are those that their scripts make from results/."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results_tables
    import which_method

    yield {"which_method": which_method, "results_tables": results_tables}
    for name in ("which_method", "results_tables"):
        sys.modules.pop(name)


@pytest.fixture(params=["which_method", "results_tables"])
def script(request, scripts):
    return scripts[request.param]


def test_the_page_shows_what_was_measured(script):
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text


def test_a_table_that_was_changed_by_hand_is_noticed(script):
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text.replace("| [`coop`]", "| [`koop`]", 1)) == text


def test_a_page_without_a_place_for_a_table_is_refused(script):
    with pytest.raises(ValueError, match="the page has no place for the table"):
        script.page("# What was measured")


def test_every_method_has_a_row_or_is_said_to_have_none(scripts):
    from dear.methods.registry import OWN

    script = scripts["which_method"]
    rows = {row["method"] for name in ("world", "few-shot", "photographs") for row in script.read(name).values()}
    missing = re.search(r"^\*\*Not measured yet:\*\* (.*)$", script.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(OWN) - rows == set(re.findall(r"`(\w+)`", missing.group(1) if missing else ""))
