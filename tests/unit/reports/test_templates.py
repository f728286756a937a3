"""Presentation is written once: markup only in templates, everything escaped, roles below reports."""

import ast
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from dear.paper.page import write_paper
from dear.reports.grid_charts import heat_chart
from dear.reports.line_charts import line_chart
from dear.reports.page_sections import Figure, PageSection, Table, report_page, section_markdown
from dear.reports.render import Picture
from dear.reports.role_figure import role_figure
from dear.reports.role_page import role_page
from dear.reports.run_page import ClassBar, ConfusedPair, Confusion, ExampleSearch, RunPage, run_html
from dear.reports.sheet import Sheet, SheetRow, sheet_html, sheet_png, write_found
from dear.retrieval.search import Ask, Found, Hit
from dear.roles.examples import Example, Examples
from dear.roles.rolemap import HeadRole, Provenance, Role, RoleMap
from dear.storage import markdown
from papers import findings

SOURCE = Path(__file__).resolve().parents[3] / "src" / "dear"
EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "</title></style></svg>&amp;",
]
TAGS = "a b br dd div details dl dt figure figcaption h1 h2 h3 h4 html img li main nav ol p section span style table"
ALLOWED = set(TAGS.split()) | {
    "body",
    "head",
    "i",
    "meta",
    "summary",
    "tbody",
    "td",
    "th",
    "thead",
    "title",
    "tr",
    "ul",
}
ALLOWED |= {"svg", "rect", "text", "line", "polyline", "circle", "script"}


def picture(caption):
    return Picture(Image.new("RGB", (20, 30)), caption, framed=True)


def head(number, text, role=Role.OTHER):
    return HeadRole(layer=1, head=number, role=role, concept=text, phrases=(text,), entropy=0.5, shares={text: 1.0})


def evil_map(text):
    provenance = Provenance(source=text, model=text, clustering={text: text})
    heads = (head(0, text), head(1, text, Role.GENERALIZATION), head(2, text, Role.CORE))
    return RoleMap(heads=heads, attributes=(text,), provenance=provenance)


def run(text):
    return run_html(
        RunPage(
            title=text,
            subtitle=text,
            scores=[[text, text], [text, "1"]],
            settings={text: text},
            scores_note=text,
            verdict=[text],
            corrected={text: [picture(text)]},
            corrected_note=text,
            confused=[ConfusedPair(text, text, 1, 2, [picture(text)])],
            bars={text: [ClassBar(text, 3, 50.0, 40.0)] * 30},
            weights={text: 1.0},
            curves={text: {text: [1.0, 2.0]}},
            examples={text: [picture(text)]},
            confusion=Confusion((text, "b"), {(0, 0): 50.0, (0, 1): 50.0, (1, 1): 100.0}, text),
            roles=evil_map(text),
            nearest=[ExampleSearch(picture(text), {text: [picture(text)]})],
        )
    )


def roles(text):
    example = Example(text, Image.new("RGB", (9, 9)))
    examples = {(1, 0): Examples((example,), (example,))}
    return role_page(evil_map(text), title=text, examples=examples, tables=[Table((text,), ((text,),), title=text)])


def charts(text):
    lines = line_chart(text, [text, "2"], {text: [1.0, 2.0]}, x_title=text, y_title=text)
    return lines, heat_chart(text, [text], [text], [[1.0]]), role_figure(evil_map(text), text).svg()


def paper(text):
    figures = [Figure(f"f{i}", text, svg=svg) for i, svg in enumerate(charts(text))]
    table = Table((text, text), ((text, 1.0),), title=text, paper=(1,))
    part = PageSection(text, text, (table, table), (*figures, Figure("png", text, png=b"x")), (text,), (text,))
    return report_page(text, text, [text], [part])


def sheet(text):
    return sheet_html(Sheet((SheetRow((picture(text),), text),), text, text, picture(text)))


class Reader(HTMLParser):
    """Every tag with its attributes, and all text."""

    def __init__(self):
        super().__init__()
        self.tags, self.names, self.text, self.values = set(), set(), "", ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.values += "".join(value or "" for _, value in attrs)
        if tag == "img":
            assert dict(attrs)["src"].startswith("data:image/")

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("page", [run, roles, paper, sheet])
@pytest.mark.parametrize("text", EVIL)
def test_no_page_takes_a_name_for_markup(page, text):
    html, plain = page(text), page("h" * len(text))
    found, usual = Reader(), Reader()
    found.feed(html)
    usual.feed(plain)
    assert found.tags == usual.tags <= ALLOWED
    assert found.names == usual.names
    assert not {name for name in found.names if name.startswith("on")}
    assert text in found.text
    assert html.count("<script") == plain.count("<script")
    assert text not in html


@pytest.mark.parametrize("text", EVIL)
def test_charts_escape_what_they_show(text):
    for chart in charts(text):
        assert text not in chart
        reader = Reader()
        reader.feed(chart)
        assert text in reader.text


def test_a_page_of_files_with_strange_names(tmp_path):
    strange = tmp_path / '"><img src=x onerror=alert(1)> <script>.png'
    Image.new("RGB", (30, 20)).save(strange)
    found = Found("color", "<script>", (Hit(strange, 0.5),), 0.0)
    write_found(tmp_path / "sheet.html", Ask(image=strange), [found])
    page = (tmp_path / "sheet.html").read_text()
    assert "<script" not in page
    assert page.count("<img") == 2
    assert page.count("&lt;script&gt;") == 2 + 3 * 2  # title and heading; hint, alt and caption of both pictures


def test_a_papers_missing_data_and_setting_are_escaped(tmp_path):
    write_paper(tmp_path, replace(findings(0.1), setting=EVIL[0], missing={"world-broad": EVIL[1]}))
    page = (tmp_path / "report.html").read_text()
    assert EVIL[0] not in page
    assert EVIL[1] not in page


def test_markdown_tables_hold_any_text():
    text = markdown.table(["a|b", "n"], [["<script>x</script>\ny", "1"], ["back\\slash|", "2"]])
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3 for line in text.splitlines())
    assert "\\<script>" in text
    assert "back\\\\slash\\|" in text
    assert "<img" not in section_markdown(PageSection("k", "<img>", notes=("<img>",))).replace("\\<img", "")


def test_a_sheet_as_a_picture_has_labels_a_query_and_rows_that_wrap():
    def size(sheet):
        return Image.open(BytesIO(sheet_png(sheet, side=40, gap=4, columns=3))).size

    small = Picture(Image.new("RGB", (40, 40)))
    assert size(Sheet((SheetRow((small,) * 3),))) == (4 + 3 * 44, 4 + 44)
    assert size(Sheet((SheetRow((small,) * 5),))) == (4 + 3 * 44, 4 + 2 * 44)
    wide, tall = size(Sheet((SheetRow((small,) * 3, "color"), SheetRow((small,), "shape")), query=small))
    assert wide > 4 + 4 * 44
    assert tall == 4 + 2 * 44
    assert size(Sheet(())) == (8, 4)


def test_only_templates_and_charts_contain_markup():
    tag = re.compile(rf"</?(?:{'|'.join(sorted(ALLOWED - {'line', 'text', 'title'}))})(?:\s[^>]*)?>|<!doctype", re.I)
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "svg.py" and not path.name.endswith("_charts.py"):  # they write SVG, escaped
            found = tag.findall(path.read_text())
            assert not found, f"{path} writes {found[0]}"


def test_roles_and_what_is_below_know_no_reports():
    for folder in ("data", "backbone", "roles", "methods", "world", "engine", "retrieval", "evaluation"):
        for path in (SOURCE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                assert not any(name.startswith(("dear.reports", "dear.paper")) for name in names), path


def test_the_page_of_a_run_knows_no_method():
    words = re.compile(r"(?<!con)fusion|decoupled|alpha|attribute(?!_fill)", re.I)
    assert not words.search((SOURCE / "reports" / "run_page.py").read_text())
    assert not words.search((SOURCE / "reports" / "templates" / "run.html").read_text())
