"""Every result in README and docs is one that `benchmarks/results_tables.py` makes from results/."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ("results_tables", "clip_tables", "measured_tables", "documented_numbers", "which_method", "honest_selection")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

RESULT = re.compile(
    r"\d+\.\d+ ?± ?\d"  # 75.2 ± 0.2
    r"|(?<![\d.:])\d\d\.\d{1,2}(?![\d.])"  # 75.2, an accuracy
    r"|(?<![\w.])[+−-]\d+\.\d"  # +1.6, a change
    r"|\d(?:\.\d+)? points"
    r"|\d\.\d+ (?:%|per cent|times (?:as|the))"
    r"|kappa\D{0,20}\d\.\d"
)
MARKED = (
    re.compile(r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->", re.DOTALL),
    re.compile(r"<!-- = [^>]+? -->.*?<!-- / -->"),
)
ALLOWED = {
    "docs/methods/atprompt.md": {"82.68 / 68.04 / 74.65, on MaPLe 82.98 / 75.76 / 79.21": "published"},
    "docs/methods/cocoop.md": {"80.47 base, 71.69 novel, harmonic mean 75.83": "published"},
    "docs/methods/kgcoop.md": {"80.73 base, 73.6 novel, harmonic mean 77.0": "published"},
    "docs/methods/prograd.md": {"82.48 / 70.75 / 76.16": "published"},
    "docs/methods/tcp.md": {"84.13 base, 75.36 novel, harmonic mean 79.51": "published"},
    "docs/explanation/roles.md": {"a median kappa below 0.2": "a constant"},
    "docs/how-to/evaluate.md": {
        "beach 91.3 %, sunset 62.0 %": "an example of a line",
        "(likeliest: dog 4.1 %)": "an example of a line",
    },
    "docs/how-to/search.md": {
        "keeps 99.9 % of their squared length": "a constant",
        '"11.4"': "the name of a head",
    },
    "docs/methods/textrefiner_promptkd.md": {"(82.33) is below plain PromptKD's (83.73)": "published"},
    "docs/tutorials/first-adapter.md": {"± 2.7 points": "printed by the quickstart"},
    "docs/tutorials/your-own-photos.md": {"± 6 points": "an example of a sentence"},
}
"""Results on pages that are not ours, with their reason. Nothing else may be here without a file in results/."""


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import results_tables
    import which_method

    yield {"results_tables": results_tables, "which_method": which_method}
    sys.path.remove(str(ROOT / "benchmarks"))
    for name in SCRIPTS:
        sys.modules.pop(name, None)


def unmarked(page: str, text: str) -> str:
    """A page without what is generated, what the quickstart printed, and what is allowed."""
    printed = json.loads((ROOT / "results" / "quickstart.json").read_text(encoding="utf-8"))["printed"]
    text = text.replace("\n".join(printed), "")
    for marked in MARKED:
        text = marked.sub("", text)
    for allowed in ALLOWED.get(page, {}):
        text = text.replace(allowed, "")
    return text


@pytest.mark.covers("T3")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_shows_what_was_measured(path, scripts):
    text = path.read_text(encoding="utf-8")
    assert scripts["results_tables"].written(path, text) == text, "run python benchmarks/results_tables.py --write"


@pytest.mark.covers("T3")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_result_is_written_by_hand(path):
    page = path.relative_to(ROOT).as_posix()
    lines = unmarked(page, path.read_text(encoding="utf-8")).splitlines()
    assert [line for line in lines if RESULT.search(line)] == []


@pytest.mark.covers("T3")
@pytest.mark.parametrize(
    "text",
    [
        "HM is 75.2 ± 0.2",
        "| dear | 70.3 |",
        "28.4 / 24.5 / 26.3",
        "it gains 2 points",
        "1.41 times as long",
        "places −0.4",
    ],
)
def test_results_are_recognized(text):
    assert RESULT.search(text)
    assert not RESULT.search(unmarked("x", f"<!-- = world dear hm -->{text}<!-- / -->"))


def test_what_is_allowed_is_there():
    for page, found in ALLOWED.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert [one for one in found if one not in text] == []
    assert "± 2.7 points" in (ROOT / "results" / "quickstart.json").read_text(encoding="utf-8")


@pytest.mark.covers("T3")
def test_a_number_or_table_that_was_changed_by_hand_is_noticed(scripts):
    script = scripts["results_tables"]
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.written(script.PAGE, text.replace("| [`coop`]", "| [`koop`]", 1)) == text
    changed = re.sub(r"(<!-- = world dear rank -->)\w+", r"\1first", text)
    assert changed != text
    assert script.written(script.PAGE, changed) == text


def test_a_page_without_a_place_for_a_table_is_refused(scripts):
    for script in scripts.values():
        with pytest.raises(ValueError, match="the page has no place for the table"):
            script.written(script.PAGE, "") if hasattr(script, "written") else script.page("# What was measured")


def test_every_method_has_a_row_or_is_said_to_have_none(scripts):
    from dear.methods.registry import OWN

    script = scripts["which_method"]
    rows = {row["method"] for name in ("world", "few-shot", "photographs") for row in script.read(name).values()}
    missing = re.search(r"^\*\*Not measured yet:\*\* (.*)$", script.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(OWN) - rows == set(re.findall(r"`(\w+)`", missing.group(1) if missing else ""))


def test_a_backbone_of_no_family_is_noticed(scripts):
    family_of = scripts["results_tables"].clip_tables.family_of
    assert family_of("ViT-B-16-SigLIP2-256") == "SigLIP 2"
    assert family_of("xlm-roberta-base-ViT-B-32") == "NLLB, RoBERTa and XLM-R text towers"
    with pytest.raises(ValueError, match="NewCLIP-1 belongs to no family"):
        family_of("NewCLIP-1")


@pytest.mark.covers("T4")
@pytest.mark.parametrize("name", ["world", "own", "photographs"])
def test_hm_follows_from_the_base_and_novel_beside_it(name, scripts):
    from dear.evaluation.results import harmonic_mean

    made = scripts["results_tables"].compared(name)
    for row in made.rows:
        base, novel, hm = (made.value(row, column) for column in ("base", "novel", "hm"))
        assert hm == pytest.approx(harmonic_mean(base, novel))
