"""Results of cells: strict in, strict out, the same bytes, one-sentence errors, and the cells in results/."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cells import READOUTS, cell, cross_cell, few_shot_cell, scores, zero_shot_cell
from dear.errors import DataError
from dear.evaluation import results
from dear.evaluation.results import CellResult, PerClass, Scores, harmonic_mean, purpose

STORED = sorted((Path(__file__).resolve().parents[3] / "results").rglob("cells/*.json"))
PERCENT = st.just(0.0) | st.floats(1e-6, 100)


def changed(**values):
    return json.dumps({**json.loads(cell().to_json()), **values})


@given(PERCENT, PERCENT)
def test_a_harmonic_mean_lies_between_base_and_novel(base, novel):
    mean = harmonic_mean(base, novel)
    if base and novel:
        assert min(base, novel) * (1 - 1e-9) <= mean <= max(base, novel) * (1 + 1e-9)
        assert mean <= (base + novel) / 2 * (1 + 1e-9)
    else:
        assert mean == 0


@given(PERCENT, PERCENT)
def test_a_harmonic_mean_is_symmetric(base, novel):
    assert harmonic_mean(base, novel) == harmonic_mean(novel, base)


def test_known_harmonic_means():
    assert harmonic_mean(60, 40) == 48
    assert harmonic_mean(0, 90) == harmonic_mean(90, 0) == harmonic_mean(0, 0) == 0
    assert harmonic_mean(71.5, 71.5) == 71.5


@pytest.mark.parametrize("one", [cell(), few_shot_cell(), cross_cell(), zero_shot_cell()])
def test_a_cell_survives_its_file(one):
    text = one.to_json()
    again = CellResult.from_json(text)
    assert again == one
    assert again.to_json() == text


def test_a_cell_answers_what_tables_ask():
    one = cell(base=(60, 50), novel=(40, 50))
    assert one.score("base").accuracy["fusion"] == 60
    assert one.score("novel").accuracy["decoupled"] == 50
    assert one.readout_names == ("fusion", "decoupled")
    assert one.harmonic_mean() == one.harmonic_mean("fusion") == 48
    assert one.harmonic_mean("decoupled") == 50
    assert one.images == 200
    assert one.unreadable == 0
    assert one.targets == ()
    crossed = cross_cell()
    assert crossed.source.data == "imagenet"
    assert [target.data for target in crossed.targets] == ["dtd", "eurosat"]
    with pytest.raises(DataError, match=r"^The base-to-novel cell of dear on dtd has no half 'all'\.$"):
        one.score("all")


@pytest.mark.parametrize(
    ("protocol", "half", "is_source", "expected"),
    [
        ("base-to-novel", "base", True, "default"),
        ("base-to-novel", "novel", True, "novel"),
        ("few-shot", "all", True, "default"),
        ("cross-dataset", "all", True, "default"),
        ("cross-dataset", "all", False, "transfer"),
        ("domain", "all", True, "default"),
        ("domain", "all", False, "transfer"),
    ],
)
def test_what_a_test_is_for(protocol, half, is_source, expected):
    assert purpose(protocol, half, is_source) == expected


def test_each_purpose_has_its_readout():
    own = {"default": "a", "novel": "b", "transfer": "c"}

    def three(data, half):
        return Scores(
            data=data, half=half, images=9, unreadable=0, accuracy={"a": 1.0, "b": 2.0, "c": 3.0}, per_class={}
        )

    halves = (three("dtd", "base"), three("dtd", "novel"))
    assert [cell(scores=halves, readouts=own).reading(one) for one in halves] == [1, 2]
    assert [cell(scores=halves, readouts={"default": "c"}).reading(one) for one in halves] == [3, 3]
    assert cell(scores=halves, readouts=own).harmonic_mean() == harmonic_mean(1, 2)
    assert cell(scores=halves, readouts=own).reading(halves[0], "c") == 3
    sets = (three("imagenet", "all"), three("dtd", "all"))
    for protocol in ("cross-dataset", "domain"):
        assert [cross_cell(protocol=protocol, scores=sets, readouts=own).reading(one) for one in sets] == [1, 3]
    assert few_shot_cell(scores=sets[1:], readouts=own).reading(sets[1]) == 1


def test_no_method_s_anatomy_is_known_here():
    folder = Path(results.__file__).parent
    others = {"evaluate.py", "grid.py"}
    sources = [path for path in folder.glob("*.py") if path.name not in others]
    assert len(sources) > 5
    for path in sources:
        assert not re.search("fusion|decoupled|alpha|attributes", path.read_text(encoding="utf-8")), path.name


def test_what_was_spent_has_defaults():
    one = cell()
    assert (one.recipe, one.parameters, one.peak_memory_mb, one.artefact_bytes) == ("own", None, None, None)
    again = CellResult.from_json(changed(recipe="shared", parameters=7, peak_memory_mb=1.5, artefact_bytes=9))
    assert (again.recipe, again.parameters, again.peak_memory_mb, again.artefact_bytes) == ("shared", 7, 1.5, 9)
    assert CellResult.from_json(changed(weights={"scale": -12.5})).weights == {"scale": -12.5}


def test_every_stored_cell_loads_and_keeps_its_entries():
    """Tables, pages and finished grids are made from them."""
    assert len(STORED) > 800
    for path in STORED:
        assert_contains(json.loads(CellResult.read(path).to_json()), json.loads(path.read_text()), path.name)


def assert_contains(read, stored, where):
    """Every stored entry is read back as it is; entries that later versions added may be beside it."""
    for name, value in stored.items():
        if isinstance(value, dict):
            assert_contains(read[name], value, f"{where}, {name}")
        else:
            assert read[name] == value, f"{where}, {name}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{",
            "x.json is not a cell result: it is not valid JSON (Expecting property name enclosed in double "
            "quotes: line 1 column 2 (char 1)).",
        ),
        (
            '{"format": 1, "format": 2}',
            "x.json is not a cell result: it is not valid JSON (the key 'format' occurs twice).",
        ),
        ("[]", "x.json is not a cell result: its 'format' is not 'dear-cell'."),
        (changed(format="dear-roles"), "x.json is not a cell result: its 'format' is not 'dear-cell'."),
        (changed(format_version="2"), "x.json is not a cell result: its 'format_version' is not a number."),
        (
            changed(format_version=1),
            "x.json has format 1, which is older than version 0.2 and no longer read.",
        ),
        (changed(format_version=3), "x.json has format 3, this version reads up to 2: upgrade dear-vlm."),
        (
            changed(seed=-1),
            "x.json is not a valid cell result. seed is -1: input should be greater than or equal to 0.",
        ),
        (changed(shots="16"), "x.json is not a valid cell result. shots is '16': input should be a valid integer."),
        (changed(alpha=[]), "x.json is not a valid cell result. There is no setting 'alpha'."),
        (changed(extra=1), "x.json is not a valid cell result. There is no setting 'extra'."),
        (
            changed(readouts={"transfer": "decoupled"}),
            "x.json is not a valid cell result. readouts have no entry 'default'.",
        ),
        (
            changed(readouts={**READOUTS, "novel": "other"}),
            "x.json is not a valid cell result. the novel readout 'other' is not among those of the scores: "
            "fusion, decoupled.",
        ),
        (
            changed(scores=[scores("dtd", "base", (1.0, 2.0)).model_dump(), scores("dtd", "novel", 3.0).model_dump()]),
            "x.json is not a valid cell result. the scores of dtd, novel have the readouts logits, not "
            "fusion, decoupled.",
        ),
        (
            changed(protocol="few-shot"),
            "x.json is not a valid cell result. a few-shot cell needs scores of half 'all', first those on dtd.",
        ),
        (
            changed(data="eurosat"),
            "x.json is not a valid cell result. a base-to-novel cell needs scores for base and for novel on eurosat.",
        ),
    ],
)
def test_a_file_that_is_no_cell_is_refused_in_a_sentence(text, message):
    with pytest.raises(DataError) as caught:
        CellResult.from_json(text, where="x.json")
    assert str(caught.value) == message


def test_numbers_that_cannot_be_are_refused():
    with pytest.raises(ValidationError, match="less than or equal to 100"):
        PerClass(images=1, accuracy={"logits": 100.5})
    with pytest.raises(ValidationError, match="there are 3 unreadable images, but only 2 images in all"):
        Scores(data="dtd", half="all", images=2, unreadable=3, accuracy={"logits": 0.0}, per_class={})
    with pytest.raises(ValidationError, match="class 'dotted' has the readouts other, not logits"):
        Scores(
            data="dtd",
            half="all",
            images=2,
            unreadable=0,
            accuracy={"logits": 0.0},
            per_class={"dotted": PerClass(images=2, accuracy={"other": 0.0})},
        )
    with pytest.raises(DataError, match="Infinity is not a number"):
        CellResult.from_json(cell().to_json().replace('"cls": 0.75', '"cls": Infinity'))
    with pytest.raises(DataError, match="NaN is not a number"):
        CellResult.from_json(cell().to_json().replace('"seconds": 12.5', '"seconds": NaN'))
