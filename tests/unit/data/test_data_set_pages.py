"""`dear data list NAME` prints the page of a data set, and a missing one is reported with its address."""

import json
from typing import get_args

import pytest

from dear.data import catalog
from dear.data.catalog import Layout, declarations


@pytest.mark.covers("F11")
def test_every_data_set_has_its_page(dear_):
    for name, one in declarations().items():
        assert one.url.startswith("https://")
        code, out, err = dear_("data", "list", name)
        assert (code, err) == (0, "")
        for fact in (one.url, one.licence, one.citation, one.folder, one.title):
            assert fact in out
        if one.layout == "split file":
            assert "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md" in out
            assert one.split_file in out
    assert "stands for DTD" in dear_("data", "list", "world-textures")[1]
    code, _, err = dear_("data", "list", "caltec101")
    assert code == 2
    assert err == "dear: No data set is called 'caltec101'. Did you mean 'caltech101'?\n"


@pytest.mark.covers("F11")
def test_a_missing_data_set_is_told_with_its_page(dear_, tmp_path):
    err = dear_("data", "check", "dtd", "--data-root", tmp_path)[2]
    assert "Its page: https://www.robots.ox.ac.uk/~vgg/data/dtd/" in err
    assert "DATASETS.md" in err


@pytest.mark.parametrize("layout", get_args(Layout))
def test_a_data_set_of_a_users_catalog_has_its_page(dear_, tmp_path, monkeypatch, layout):
    """Only name, folder and layout are required, and the page ended in a traceback without the rest."""
    monkeypatch.setattr(catalog, "_ADDED", {})
    file = tmp_path / "my.json"
    file.write_text(json.dumps([{"name": "my-pets", "folder": "pets", "layout": layout}]))
    code, out, err = dear_("data", "list", "my-pets", "--catalog", file)
    assert (code, err) == (0, "")
    assert f"{tmp_path / 'pets'}" in out
    assert f"no, not below {tmp_path}" in out
    assert "None" not in out
