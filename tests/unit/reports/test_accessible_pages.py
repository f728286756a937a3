"""Every kind of page for everybody: what a screen reader, a keyboard, weak eyes and a printer need.

`make a11y` asks axe-core in a browser, too; this is what can be seen without one.
"""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from dear.reports.colors import LINES, contrast, ink_on
from dear.reports.line_charts import DASHES
from dear.reports.method_charts import BETTER, SAME, STRONG, WEAK, WORSE
from dear.reports.svg import LIGHT, TEXT
from pages import PAGES

CSS = (Path(__file__).resolve().parents[3] / "src/dear/reports/templates/page.css").read_text()
LIGHT_CSS, _, REST = CSS.partition("@media screen and (prefers-color-scheme:dark){")
DARK_CSS, _, NARROW_CSS = REST.partition("@media (max-width:480px){")


class Reader(HTMLParser):
    """Start tags in order as (tag, attributes)."""

    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module", params=PAGES)
def tags(request, tmp_path_factory):
    reader = Reader()
    reader.feed(PAGES[request.param](tmp_path_factory.mktemp("page")).read_text())
    return reader.tags


def named(tags, *names):
    return [(tag, values) for tag, values in tags if tag in names]


def test_the_page_says_its_language_and_fits_the_screen(tags):
    assert named(tags, "html")[0][1]["lang"] == "en"
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [v for _, v in named(tags, "meta")]
    assert len(named(tags, "title")) >= 1
    assert len(named(tags, "main")) == 1


def test_headings_are_in_order(tags):
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_every_picture_has_words(tags):
    assert all(values["alt"] for _, values in named(tags, "img"))
    assert all(values["role"] == "img" and values["aria-label"] for _, values in named(tags, "svg"))
    assert not any("loading" in values for _, values in named(tags, "img"))  # a lazy picture is missing in print


def test_what_scrolls_can_be_reached_by_keyboard_and_has_a_name(tags):
    boxes = [values for _, values in tags if "scroll" in (values.get("class") or "").split()]
    assert all(values["tabindex"] == "0" and values["aria-label"] for values in boxes)
    assert len(boxes) >= len(named(tags, "table"))


def test_head_cells_say_what_they_head(tags):
    assert all(values["scope"] in ("row", "col") for _, values in named(tags, "th"))


def test_links_lead_somewhere_and_ids_are_unique(tags):
    ids = [values["id"] for _, values in tags if "id" in values]
    assert len(set(ids)) == len(ids)
    assert {values["href"].removeprefix("#") for _, values in named(tags, "a")} <= set(ids)


def colors(css, name):
    return set(re.findall(rf"(?<![\w-]){name}:(#[0-9a-f]{{3,6}})", css))


def full(color):
    return color if len(color) == 7 else "#" + "".join(2 * letter for letter in color[1:])


@pytest.mark.covers("F23")
@pytest.mark.parametrize(
    ("css", "grounds", "shaded"),
    [(LIGHT_CSS, ("#f6f7f9", "#ffffff"), "#eef2f8"), (DARK_CSS, ("#14191f", "#1b222b"), "#232d39")],
    ids=["light", "dark"],
)
def test_text_can_be_read_on_every_ground(css, grounds, shaded):
    assert all(ground in css or ground == "#ffffff" for ground in (*grounds, shaded))
    inks = {full(ink) for ink in colors(css, "color")}
    assert len(inks) >= 4
    assert min(contrast(ink, ground) for ink in inks for ground in grounds) >= 4.5
    (paper,) = re.findall(rf"background:{shaded};color:(#\w+)", css)
    assert contrast(paper, shaded) >= 4.5


def in_the_dark(kind, color):
    """What a colour of a chart becomes in dark mode."""
    rules = re.findall(r"([^{}\n]+)\{(fill|stroke):(#\w+)\}", DARK_CSS)
    found = [new for where, what, new in rules if what == kind and f'[{kind}="{color}"]' in where]
    assert found, f"{kind} {color} has no colour for the dark"
    return found[0]


def test_charts_can_be_read_in_light_and_dark():
    for ink in (TEXT, LIGHT):
        assert contrast(ink, "#ffffff") >= 4.5
        assert contrast(in_the_dark("fill", ink), "#1b222b") >= 4.5
    assert contrast(LIGHT, SAME) >= 4.5
    assert contrast(in_the_dark("fill", LIGHT), in_the_dark("fill", SAME)) >= 4.5
    assert min(contrast(ink_on(fill), fill) for fill in (BETTER, WORSE)) >= 4.5
    for line in (*LINES, STRONG, WEAK):  # lines and dots need 3
        assert contrast(line, "#ffffff") >= 3
        assert contrast(in_the_dark("stroke", line), "#1b222b") >= 3


def test_lines_are_told_apart_without_colours():
    assert len(set(DASHES)) == len(DASHES) == len(LINES)


def test_focus_is_seen_and_folded_parts_are_printed():
    assert ":focus-visible{outline:3px" in LIGHT_CSS
    assert not re.search(r"outline:(0|none)", CSS)
    assert "details::details-content{content-visibility:visible" in CSS


@pytest.mark.covers("F23")
def test_numbers_do_not_break_and_thumbnails_fill_the_row():
    assert re.search(r"\ntd,th\{[^}]*white-space:nowrap", LIGHT_CSS)
    assert "\n.strip{grid-template-columns:repeat(3,1fr)}" in NARROW_CSS


@pytest.mark.covers("F23")
def test_a_sheet_is_headed_by_the_words_that_were_asked(tmp_path):
    page = PAGES["text sheet"](tmp_path).read_text()
    assert "<h1>“a striped star”</h1>" in page
    assert "Nearest by color" in page
