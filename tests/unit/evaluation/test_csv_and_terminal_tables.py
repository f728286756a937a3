"""Cells as CSV rows and as tables in a terminal: what is in them, and that they fit."""

import csv
import io
import re

import pytest

from cells import cell, cross_cell, few_shot_cell, zero_shot_cell
from dear.evaluation.results import CellResult
from dear.evaluation.tables import to_csv, to_markdown, to_text


@pytest.mark.covers("F21")
def test_the_csv_says_what_cells_are_made_of():
    made = {"settings": {"mask": "all_mixed"}, "files": {"roles.json": "d" * 64}}
    rows = list(csv.DictReader(io.StringIO(to_csv([cell(**made), cell(seed=2)]))))
    assert rows[0]["backbone"] == "ViT-B-16-quickgelu"
    assert (rows[0]["pretrained"], rows[0]["weights"], rows[0]["role_map"]) == ("openai", "a" * 12, "d" * 12)
    assert (rows[0]["settings"], rows[0]["recipe"]) == ('{"mask": "all_mixed"}', "own")
    assert (rows[1]["settings"], rows[1]["role_map"]) == ("", "")


@pytest.mark.covers("F21")
def test_a_cell_of_an_earlier_version_still_loads():
    text = cell().to_json()
    old = re.sub(r' "settings": \{\},\n "files": \{\},\n', "", text)
    assert old != text
    assert CellResult.from_json(old, where="old") == cell()


@pytest.mark.covers("F21")
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_in_the_terminal_fits(width):
    wide = {f"target{number}": (50.0, 40.0) for number in range(9)}
    results = [
        *(cell(data, seed, (80.0 + seed, 70.0)) for data in ("dtd", "caltech101") for seed in (1, 2, 3)),
        *(zero_shot_cell(data) for data in ("dtd", "caltech101")),
        *(few_shot_cell(shots=shots) for shots in (1, 2, 4, 8, 16)),
        cross_cell(targets=wide),
    ]
    text = to_text(results, width)
    assert max(map(len, text.splitlines())) <= width
    assert "|" not in text
    if width >= 80:
        assert re.search(r"^data +method +base +novel +HM$", text, re.MULTILINE)
        assert re.search(r"^dtd +dear +82\.0 ± 1\.0 +60\.0 ± 0\.0 +69\.\d ± 0\.\d$", text, re.MULTILINE)
    assert "| data" in to_markdown(results)
