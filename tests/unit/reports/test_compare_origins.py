"""A comparison says who is charged for encoding images, and which role map a method used."""

import pytest

from cells import SETS, cell, some_cells
from dear.evaluation.results import CellResult
from dear.evaluation.role_map_notes import used_maps
from dear.evaluation.tables import to_markdown
from dear.methods.coop import CoOp
from dear.methods.recipe import SHARED
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import page, text
from dear.roles.rolemap import MapRecord

FOUND = MapRecord(sha256="7db6" + "0" * 60, source="found by dear (roles=auto) on 40 training images", rule="quantile")
OTHER = FOUND.model_copy(update={"sha256": "8e" * 32, "unstable": True})


@pytest.mark.covers("T7")
def test_encoding_is_reported_once_and_charged_to_none():
    first = some_cells({"zero_shot": 0.0}, seconds=2.0, encoding_seconds=50.0)
    later = some_cells({"coop": 3.0}, seconds=40.0, encoding_seconds=0.0)
    found = make_comparison([*first, *later], {})
    assert found.effort[found.plain].seconds == 2.0
    note = "Reading and encoding images: 12 min, once for all methods."
    assert note in page(found)
    assert note in text(found)
    assert "seconds of cells of earlier versions" not in text(found)
    known = text(make_comparison(some_cells({"zero_shot": 0.0, "coop": 3.0}, encoding_seconds=0.0), {}))
    assert "No images were encoded for the cache" in known


@pytest.mark.covers("T7")
def test_cells_of_earlier_versions_include_it():
    assert "The seconds of cells of earlier versions include reading" in text(make_comparison(some_cells(), {}))
    assert CellResult.from_json(cell().to_json()).encoding_seconds is None


def with_maps(**changes):
    """Cells of dear with one map for two data sets, and another one for a third."""
    training = {"recipe": SHARED.model_dump(), "precision": "fp32"}
    return [
        CellResult(**{**one.model_dump(), "role_map": record and record.model_dump(), "training": training, **changes})
        for data, record in zip(SETS[:3], (FOUND, FOUND, OTHER), strict=True)
        for one in some_cells({"dear": 1.0}, sets=(data,), seeds=(1,))
    ]


@pytest.mark.covers("T8")
def test_each_role_map_is_listed_with_its_origin():
    cells = [*with_maps(), *some_cells({"zero_shot": 0.0}, sets=SETS[:3], seeds=(1,))]
    assert [(one.method, one.data, one.sha256) for one in used_maps(cells)] == [
        ("dear", SETS[:2], "7db600000000"),
        ("dear", SETS[2:3], "8e8e8e8e8e8e"),
    ]
    shown = page(make_comparison(cells, {}))
    for words in ("Role maps", "7db600000000", "found by dear (roles=auto) on 40 training images", "quantile rule"):
        assert words in shown
    assert (
        "- Role map of dear on world-textures, world-emblems: 7db600000000… found by dear (roles=auto) on 40 training "
        "images; quantile rule.\n"
    ) in to_markdown(cells)
    assert "; quantile rule, not confirmed by resampling." in to_markdown(cells)


@pytest.mark.covers("T8")
def test_a_map_that_was_not_recorded_is_not_passed_over():
    old = some_cells({"dear": 1.0, "coop": 1.0}, sets=SETS[:1], seeds=(1,))
    assert [(one.method, one.sha256) for one in used_maps(old)] == [("dear", "")]
    assert "not recorded by the version that made these cells" in page(make_comparison(old, {}))
    hashed = [one.model_copy(update={"files": {"roles.json": "ab" * 32}}) for one in old if one.method == "dear"]
    assert used_maps(hashed)[0].sha256 == "ab" * 6
    assert used_maps(with_maps(role_map=None)) == []  # such as mask=all_mixed


@pytest.mark.covers("T14")
def test_a_method_without_a_docstring_has_a_row(monkeypatch):
    undocumented = type("Undocumented", (CoOp,), {"name": "coop"})
    assert undocumented.__doc__ is None
    monkeypatch.setattr("dear.reports.compare_page.known", {"coop": undocumented}.get)
    shown = page(make_comparison(some_cells({"zero_shot": 0.0, "coop": 3.0}), {}))
    assert "KaiyangZhou" not in shown
