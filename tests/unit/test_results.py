"""Results of cells: strict in, strict out, the same bytes, one-sentence errors."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cells import cell, cross_cell, few_shot_cell
from dear.errors import DataError
from dear.evaluation.results import CellResult, PerClass, Scores, harmonic_mean

PERCENT = st.just(0.0) | st.floats(1e-6, 100)


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


@pytest.mark.parametrize("one", [cell(), few_shot_cell(), cross_cell(), cell(method="zero_shot", alpha=())])
def test_a_cell_survives_its_file(one):
    text = one.to_json()
    again = CellResult.from_json(text)
    assert again == one
    assert again.to_json() == text


def test_a_cell_answers_what_tables_ask():
    one = cell(base=(60, 50), novel=(40, 50))
    assert one.score("base").accuracy("fusion") == 60
    assert one.score("novel").accuracy("decoupled") == 50
    assert one.harmonic_mean("fusion") == 48
    assert one.harmonic_mean("decoupled") == 50
    assert one.images == 200
    assert one.unreadable == 0
    assert one.targets == ()
    crossed = cross_cell()
    assert crossed.source.data == "imagenet"
    assert [target.data for target in crossed.targets] == ["dtd", "eurosat"]
    with pytest.raises(DataError, match=r"^The base-to-novel cell of dear on dtd has no part 'all'\.$"):
        one.score("all")


def changed(**values):
    return json.dumps({**json.loads(cell().to_json()), **values})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{",
            "x.json is not valid JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)).",
        ),
        ('{"format": 1, "format": 2}', "x.json is not valid JSON (the key 'format' appears twice)."),
        ("[]", "x.json is not the result of a cell: its 'format' is not 'dear-cell'."),
        (changed(format="dear-roles"), "x.json is not the result of a cell: its 'format' is not 'dear-cell'."),
        (changed(format_version="1"), "x.json is not the result of a cell: its 'format_version' is not a number."),
        (changed(format_version=2), "x.json has cell format 2, this version reads up to 1: upgrade dear-vlm."),
        (changed(seed=-1), "x.json is not a valid result. seed is -1: input should be greater than or equal to 0."),
        (changed(shots="16"), "x.json is not a valid result. shots is '16': input should be a valid integer."),
        (changed(extra=1), "x.json is not a valid result. There is no setting 'extra'."),
        (
            changed(alpha=[0.7, 0.3]),
            "x.json is not a valid result. 2 fusion weights do not fit 5 attributes: "
            "there is one for [CLS] and one for each attribute.",
        ),
        (
            changed(protocol="few-shot"),
            "x.json is not a valid result. a few-shot cell has scores of part 'all', first those on dtd.",
        ),
        (
            changed(data="eurosat"),
            "x.json is not a valid result. a base-to-novel cell has the scores of base and of novel on eurosat.",
        ),
    ],
)
def test_a_file_that_is_no_cell_is_refused_in_a_sentence(text, message):
    with pytest.raises(DataError) as caught:
        CellResult.from_json(text, where="x.json")
    assert str(caught.value) == message


def test_numbers_that_cannot_be_are_refused():
    with pytest.raises(ValidationError, match="less than or equal to 100"):
        PerClass(images=1, fusion=100.5, decoupled=0.0)
    with pytest.raises(ValidationError, match="3 unreadable images are more than the 2 images there are"):
        Scores(data="dtd", part="all", images=2, unreadable=3, fusion=0.0, decoupled=0.0, per_class={})
    with pytest.raises(DataError, match="finite"):
        CellResult.from_json(cell().to_json().replace('"seconds": 12.5', '"seconds": NaN'))
