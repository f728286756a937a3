"""The figure of a role map: the same boxes and texts as SVG and as PDF, escaped, and the same bytes every time."""

import re
from xml.etree import ElementTree

import pytest

import dear
from dear.errors import ConfigError
from dear.reports.colors import head_fill
from dear.reports.drawing import Box, Drawing, Label, text_width
from dear.reports.role_figure import BAR, role_figure
from dear.reports.svg import TEXT
from dear.roles.rolemap import HeadRole, Provenance, Role, RoleMap, Stability

pytestmark = pytest.mark.covers("T16")
SVG = "{http://www.w3.org/2000/svg}"
EVIL = "a\\ (b) ) Tj ET <script>\x00\n“é” 頭"
HEADS = (
    HeadRole(layer=9, head=0, role=Role.CORE, concept="color", phrases=("red & blue",)),
    HeadRole(layer=9, head=1, role=Role.OTHER, concept="animal"),
    HeadRole(layer=10, head=0, role=Role.MIXED),
    HeadRole(layer=10, head=1, role=Role.GENERALIZATION, concept="style"),
)


def a_map(*kappas, model="tiny/clip"):
    found = Stability(kappas=kappas, same=(1.0, 0.25, 0.0, 0.5)) if kappas else None
    return RoleMap(heads=HEADS, provenance=Provenance(source="x", model=model), stability=found)


def in_svg(drawing):
    """Rectangles without the background, and texts with the position of their baseline."""
    root = ElementTree.fromstring(drawing.svg())
    boxes = [
        (*(float(one.get(name)) for name in ("x", "y", "width", "height")), one.get("fill"))
        for one in root.iter(f"{SVG}rect")
        if one.get("x")
    ]
    return boxes, [(float(one.get("y")), one.text) for one in root.iter(f"{SVG}text")]


def in_pdf(drawing):
    """The same from a PDF, read by its own table of objects."""
    data = drawing.pdf()
    start = int(re.search(rb"startxref\n(\d+)\n%%EOF\n$", data)[1])
    assert data[start:].startswith(b"xref\n0 8\n0000000000 65535 f \n")
    places = [int(place) for place in re.findall(rb"(\d{10}) 00000 n \n", data[start:])]
    for number, place in enumerate(places, start=1):
        assert data[place:].startswith(b"%d 0 obj\n" % number)
    length, rest = re.match(rb"4 0 obj\n<< /Length (\d+) >>\nstream\n(.*)", data[places[3] :], re.S).groups()
    assert rest[int(length) :].startswith(b"\nendstream\nendobj\n")
    boxes, texts = [], []
    for line in rest[: int(length)].decode("cp1252").split("\n")[1:]:
        red, green, blue = (
            round(255 * float(part)) for part in re.search(r"([\d.]+) ([\d.]+) ([\d.]+) rg", line).groups()
        )
        if found := re.fullmatch(r".* rg ([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+) re f", line):
            x, y, wide, tall = map(float, found.groups())
            boxes.append((x, round(drawing.height - y - tall, 1), wide, tall, f"#{red:02x}{green:02x}{blue:02x}"))
        else:
            y, text = re.fullmatch(r"BT /F[12] 12 Tf .* rg [-\d.]+ ([\d.]+) Td \((.*)\) Tj ET", line).groups()
            assert not re.search(r"(?<!\\)(?:\\\\)*[()]", text)  # every parenthesis is escaped
            texts.append((round(drawing.height - float(y), 1), re.sub(r"\\(.)", r"\1", text)))
    return boxes, texts


@pytest.mark.parametrize("roles", [a_map(0.1, 0.05, 0.3), a_map(), RoleMap.load("vit-b-16")], ids=repr)
def test_svg_and_pdf_show_the_same(roles):
    figure = role_figure(roles)
    assert in_svg(figure) == in_pdf(figure)
    boxes, texts = in_svg(figure)
    fills = [fill for _, _, wide, _, fill in boxes if wide == 75 and fill in {head_fill(head) for head in roles.heads}]
    assert fills == [head_fill(head) for head in roles.heads]
    assert all(x + wide <= figure.width and y + tall <= figure.height for x, y, wide, tall, _ in boxes)
    assert all(8 + text_width(text) <= figure.width for _, text in texts)
    assert (figure.svg(), figure.pdf()) == (role_figure(roles).svg(), role_figure(roles).pdf())


def test_bars_and_caption_show_the_stability():
    boxes, texts = in_svg(role_figure(a_map(0.1, 0.05, 0.3)))
    assert [wide for _, _, wide, tall, fill in boxes if tall == BAR and fill == TEXT] == [75, 18.8, 37.5]
    words = " ".join(text for _, text in texts)
    assert words.startswith("Roles of the heads of clip head 0 head 1 layer 9 color animal layer 10 mixed style")
    assert "color: 1 other specialized: 1 generalization: 1 mixed: 1" in words
    assert "share of 3 resamples" in words
    assert "median 0.10, from 0.05 to 0.30. This is below 0.2: the map is unstable." in words
    assert "unstable" not in " ".join(text for _, text in in_svg(role_figure(a_map(0.9)))[1])
    assert not any("resample" in text for _, text in in_svg(role_figure(a_map()))[1])


def test_text_is_escaped_in_both():
    drawing = Drawing(
        900, 60, EVIL, (Label(8, 20, EVIL), Label(400, 40, EVIL, "end", bold=True), Box(1, 2, 3, 4, "#000000", EVIL))
    )
    clean = EVIL.replace("\x00", " ").replace("\n", " ")
    assert [text for _, text in in_svg(drawing)[1]] == [clean] * 2
    assert [text for _, text in in_pdf(drawing)[1]] == [clean.replace("頭", "?")] * 2


def test_show_writes_a_figure_of_the_named_kind(tmp_path):
    for suffix, begins in ((".svg", b"<svg "), (".PDF", b"%PDF-1.4")):
        dear.show_roles("vit-b-16", figure=tmp_path / "new" / f"roles{suffix}")
        assert (tmp_path / "new" / f"roles{suffix}").read_bytes().startswith(begins)
    with pytest.raises(
        ConfigError, match=r"figure='.*roles\.png' is neither an SVG nor a PDF file: use a name in \.svg"
    ):
        dear.show_roles("vit-b-16", html=tmp_path / "page.html", figure=tmp_path / "roles.png")
    assert not (tmp_path / "page.html").exists()
