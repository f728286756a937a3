"""The tables of "Which method?" are those that its script makes from results/."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import which_method

    yield which_method
    sys.modules.pop("which_method")


def test_the_page_shows_what_was_measured(script):
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text


def test_a_table_that_was_changed_by_hand_is_noticed(script):
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text.replace("| [`coop`]", "| [`koop`]", 1)) == text


def test_every_method_has_a_row_or_is_said_to_have_none(script):
    from dear.methods.registry import OWN

    rows = {row["method"] for name in ("world", "few-shot", "photographs") for row in script.read(name).values()}
    missing = re.search(r"^\*\*Not measured yet:\*\* (.*)$", script.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(OWN) - rows == set(re.findall(r"`(\w+)`", missing.group(1) if missing else ""))
