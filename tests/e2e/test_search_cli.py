"""`dear search` as it is typed: without and with an adapter."""

import json

import pytest
from PIL import Image

import dear
from helpers import make_photos, varied_roles


@pytest.fixture
def place(tmp_path, tiny_folders, clip, monkeypatch):
    make_photos(tmp_path / "photos", ["ant", "bee"], 4)
    varied_roles(clip).save(tmp_path / "roles.json")
    dear.DeAR(clip, varied_roles(clip)).save_pretrained(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return f"local-dir:{tiny_folders['plain']}"


def test_search_without_an_adapter(dear_, place, tmp_path, clip):
    clip_words = ["--clip", place, "--pretrained", "random"]
    clip_words += ["--roles", "roles.json", "--out", "index"]
    code, out, err = dear_("search", "index", "photos", *clip_words)
    assert code == 0, err
    assert out.startswith(
        "8 images in the index, 8 of them new; searchable by cls, color, shape, texture, object, location"
    )
    assert "8 images in the index, 0 of them new" in dear_("search", "index", "photos", *clip_words)[1]
    query = "photos/ant/0.png"
    where = ["--clip", place, "--pretrained", "random"]
    code, out, err = dear_(
        "search", "find", "index", query, "--by", "all", "-k", 2, "--sheet", "s.html", "--json", *where
    )
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["by"] for row in rows] == [
        kind for kind in ("cls", *dear.RoleMap.load("roles.json").attributes) for _ in "ab"
    ]
    page = (tmp_path / "s.html").read_text()
    assert page.count("<img") == 1 + 12
    assert [page.index(f"Nearest by {kind}") for kind in ("color", "shape")] == sorted(
        page.index(f"Nearest by {kind}") for kind in ("color", "shape")
    )
    asked = [query, "--swap", "color=photos/bee/1.png", "--not", "location", "--text", "a bee", "--sheet", "s.png"]
    code, out, err = dear_("search", "find", "index", *asked, "-k", 3, *where)
    assert code == 0, err
    assert len(out.splitlines()) == 3
    assert Image.open(tmp_path / "s.png").width > 300
    assert "reaches a score of 9.000" in dear_("search", "find", "index", query, "--min-score", 9, *where)[2]
    for wrong, words in (
        (["--swap", "color"], "--swap is ['color']: give NAME=IMAGE, as in color=other.jpg."),
        (["--min-score", "high"], "--min-score is 'high': give a number, or auto for the proposed score."),
        (["-k", "0"], "--top-k is 0: give a whole number from 1 on."),
        (["--by", "colour"], "Did you mean 'color'"),
        (["--run", "run"], "name one of them, or neither"),
    ):
        code, _, err = dear_("search", "find", "index", query, *wrong, *where)
        assert (code, err.count("\n")) == (2, 1), err
        assert words in err


@pytest.mark.covers("F2")
def test_search_with_an_adapter(dear_, place, tmp_path):
    code, out, err = dear_("search", "index", "photos", "--run", "run")
    assert (code, err) == (0, "")
    assert "8 of them new" in out
    found = dear_("search", "find", "run", "photos/ant/0.png", "-k", 2)
    assert found[0] == 0
    assert found[1].splitlines()[0].endswith("photos/ant/0.png")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert dear_("search", "find", "moved/index", "photos/ant/0.png", "-k", 2) == found
    code, _, err = dear_("search", "find", "moved", "photos/ant/0.png", "--by", "color")
    assert code == 0
    assert "note: The color feature is nearly the" in err
    code, out, err = dear_("search", "index", "photos", "--run", "moved", "--out", "elsewhere")
    assert (code, out.split(",")[0]) == (0, "8 images in the index")
    assert dear_("search", "find", "elsewhere", "photos/ant/0.png", "--count", 2)[:2] == found[:2]
    code, _, err = dear_("search", "index", "photos")
    assert (code, err) == (
        2,
        "dear: An index is made by a CLIP (--clip CLIP) or by an adapter (--run RUN): name one of them.\n",
    )
