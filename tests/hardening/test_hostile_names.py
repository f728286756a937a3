"""Names of classes and files that want to be more than text: markup, formulas, escapes, marks that turn letters."""

import csv
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

import dear
from dear.cli.console import json_line
from dear.data import catalog
from dear.model.predict import Prediction
from dear.reports.labels import Sorter, folder_name
from dear.reports.svg import svg_document, svg_text
from dear.storage import markdown
from dear.storage.files import visible
from helpers import make_photos

NAMES = (
    "<img src=x onerror=alert(1)>", "=cmd|' !A0", "[red]bold[-]", "\x1b[31mred\x1b]0;t\x07", "line\nbreak", "+1",
    "@sum", "\u202egnp.exe", "{} {0} %s", "-rf", "--help", "a,b;c", "|pipe|", "`code`", "[a](http:x)", "apple", "аpple",
    "<!--", "'q\"uote", "&amp;", "back\\slash", "$HOME", "\ttab", "{{7*7}}{% raw %}", "\u200bzero", "\r=1+2",
    "\n@x",
)  # fmt: skip
HIDDEN = {"\x1b", "\x07", "\u202e"}
ESCAPE = "\x1b]0;owned\x07"


class Tags(HTMLParser):
    """Collects what a name could have put into a page."""

    def __init__(self, text):
        super().__init__()
        self.bad = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.bad += [(tag, *one) for one in attrs if one[0].startswith("on") or one == ("src", "x")]


@pytest.fixture(scope="module")
def hostile(tiny_clips, tmp_path_factory):
    """A run on photos of hostile classes."""
    root = tmp_path_factory.mktemp("names")
    photos = make_photos(root / "photos", NAMES, 4)
    options = {"method": "tip_adapter", "shots": 2, "cache": root / "cache"}
    dear.fit(photos, tiny_clips["plain"], out=root / "run", **options)
    return root


@pytest.mark.filterwarnings("ignore")
def test_every_page_table_and_message(hostile, tiny_clips, one_clip, dear_, tmp_path):
    run, photos = hostile / "run", hostile / "photos"
    image = photos / NAMES[3] / "0.png"
    for words in (
        ["eval", run],
        ["eval", run, "--json"],
        ["report", run, "--out", tmp_path / "report.html"],
        ["predict", run, image],
        ["predict", run, image, "--json"],
        ["predict", run, photos, "--out", tmp_path / "labels.csv"],
        ["explain", run, image, "--out", tmp_path / "explain.html"],
        ["search", "index", photos, "--run", run, "--kinds", "cls", "--out", tmp_path / "index"],
        ["search", "find", tmp_path / "index", image, "--sheet", tmp_path / "sheet.html"],
        ["predict", run, image, "--classes", "=1,<b>,\x1b[31m,[red]x"],
        ["data", "check", photos],
    ):
        code, out, err = dear_(*words)
        assert code == 0, (words, err)
        assert not HIDDEN & set(out + err), words
    for page in tmp_path.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not HIDDEN & set(text), page
        assert not Tags(text).bad, page
    with (tmp_path / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + 4 * len(NAMES)
    assert not [cell for row in rows for cell in row if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "\n")]
    assert {row[0] for row in rows[1:]} == {str(photos / name / f"{i}.png") for name in NAMES for i in range(4)}
    card = (run / "README.md").read_text(encoding="utf-8")
    assert not HIDDEN & set(card)
    assert "\\<img src=x" in card


@pytest.fixture
def hostile_roles(roles, tmp_path):
    """A role map of the tiny CLIP with an attribute that sets the terminal's title, and a concept of two lines."""
    content = json.loads(roles.to_json())
    content["attributes"] = [ESCAPE if one == "color" else one for one in content["attributes"]]
    for one in content["heads"]:
        if one["role"] == "other_specialized":
            one["concept"] = "two\nlines"
        elif one["concept"] == "color":
            one["concept"] = ESCAPE
    (tmp_path / "roles.json").write_text(json.dumps(content))
    return tmp_path / "roles.json"


@pytest.mark.covers("U1")
def test_role_maps_of_strangers_in_the_terminal(hostile_roles, roles, one_clip, dear_, tmp_path):
    photos = make_photos(tmp_path / "photos", ["a", "b"], 2)
    (tmp_path / "other.json").write_text(roles.to_json())
    printed = {}
    for words in (
        ["roles", "show", hostile_roles],
        ["roles", "compare", hostile_roles, tmp_path / "other.json"],
        ["roles", "ablate", "--clip", "tiny", "--images", photos, "--roles", hostile_roles, "--draws", 1],
        ["search", "index", photos, "--clip", "tiny", "--roles", hostile_roles, "--out", tmp_path / "index"],
        ["search", "find", tmp_path / "index", photos / "a" / "0.png", "--by", "all"],
    ):
        code, out, err = dear_(*words)
        assert code == 0, (words, err)
        assert not HIDDEN & set(out + err), words
        assert "]0;owned" in out, words
        printed[words[1]] = out
    rows = printed["show"].split("\n\n")[0].splitlines()
    assert len(rows) == 1 + len({head.layer for head in roles.heads})
    assert "(two\N{REPLACEMENT CHARACTER}lines)" in printed["show"]
    assert "lines" not in [line.split()[0] for line in printed["compare"].splitlines() if line]


@pytest.mark.covers("U1")
def test_catalogues_of_strangers_in_the_terminal(dear_, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "_ADDED", {})
    row = {"name": "pets", "folder": "pets", "layout": "class folders", "title": f"{ESCAPE}\nmine", "url": ESCAPE}
    (tmp_path / "my.json").write_text(json.dumps([row]))
    for words in (["data", "list"], ["data", "list", "pets"]):
        code, out, err = dear_(*words, "--catalog", tmp_path / "my.json")
        assert (code, err) == (0, "")
        assert "]0;owned" in out
        assert not HIDDEN & set(out)
        assert "\nmine" not in out


def test_markdown_and_charts_have_no_hidden_letters():
    for name in NAMES:
        table = markdown.table(["method", "x"], [[name, "1"]])
        chart = svg_document(10, 10, name, [svg_text(1, 1, name)])
        assert not HIDDEN & set(table + chart)
        assert table.count("\n") == 2
    assert visible("Ärger 猫 شمس\u200f\n") == "Ärger 猫 شمس\u200f\n"


def test_json_for_people_is_escaped_where_it_cannot_be_printed():
    assert json_line({"a": "猫"}) == '{"a": "猫"}'
    assert "\u202e" not in json_line({"a": "\u202egnp"}, indent=1)
    assert json.loads(json_line({"a": "\u202egnp"}, indent=1)) == {"a": "\u202egnp"}


def test_classes_with_similar_names_are_sorted_into_folders_of_their_own(tmp_path):
    """a/b, a_b and A_B became one folder, and their photos were mixed up."""
    photos = make_photos(tmp_path / "photos", ["x"], 1)
    sorter = Sorter(tmp_path / "sorted")
    labels = ["a/b", "a_b", "A_B", "a:b", "猫" * 60]
    found = [sorter.put(Prediction(str(photos / "x" / "0.png"), label, 0.9, ((label, 0.9),))) for label in labels]
    assert len({path.parent for path in found}) == len(labels)
    assert all(len(path.parent.name.encode()) <= 102 for path in found)
    assert folder_name("..") == "_"
    assert sorter.put(Prediction(str(photos / "x" / "0.png"), "a/b", 0.9, (("a/b", 0.9),))).parent == found[0].parent


@pytest.mark.covers("H2")
def test_many_photos_of_one_name_are_sorted_in_linear_time(tmp_path, monkeypatch):
    """Every photo looked at the names of all before it."""
    photos, asked, exists = make_photos(tmp_path / "photos", [str(i) for i in range(50)], 1), [], Path.exists

    def counted(path, **how):
        asked.append(path)
        return exists(path, **how)

    def predicted(number, label):
        return Prediction(str(photos / str(number) / "0.png"), label, 0.9, ((label, 0.9),))

    sorter = Sorter(tmp_path / "sorted")
    (tmp_path / "sorted" / "a").mkdir(parents=True)
    (tmp_path / "sorted" / "a" / "0-3.png").write_bytes(b"another")
    monkeypatch.setattr(Path, "exists", counted)
    found = [sorter.put(predicted(number, "a")).name for number in range(50)]
    assert found == ["0.png", "0-2.png", *(f"0-{number}.png" for number in range(4, 52))]
    assert len(asked) < 4 * len(found)
    folders = [sorter.put(predicted(0, f"A{mark}b")).parent.name for mark in "_:?*|<>"]
    assert folders == ["A_b", *(f"A_b-{number}" for number in range(2, 8))]
