"""A drawing of boxes and texts that is written as SVG or as PDF: for figures that go into a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dear.reports.svg import TEXT, svg_box, svg_document, svg_text

POINTS = 0.75
"""Points of a PDF per pixel of an SVG."""
SIZE = 12
"""Font size in pixels, as in all charts."""
WIDTHS = (
    *(278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278),  # space to /
    *(556,) * 10,  # digits
    *(278, 278, 584, 584, 584, 556, 1015),  # : to @
    *(667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833),  # A to M
    *(722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611),  # N to Z
    *(278, 278, 278, 469, 556, 333),  # [ to `
    *(556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833),  # a to m
    *(556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500),  # n to z
    *(334, 260, 334, 584),  # { to ~
)
"""Widths of Helvetica's printable ASCII characters, in thousandths of the font size."""
OTHER_WIDTH = 556
"""Width of most of the other characters."""


@dataclass(frozen=True)
class Box:
    """A filled rectangle; `hint` is a tooltip where there are any."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    hint: str = ""


@dataclass(frozen=True)
class Label:
    """One line of text; `x` is where it starts, its middle or its end, `y` its baseline."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    fill: str = TEXT
    bold: bool = False


@dataclass(frozen=True)
class Drawing:
    """Boxes and texts on a white page; positions are in pixels from the upper left corner."""

    width: int
    height: int
    title: str
    parts: tuple[Box | Label, ...]

    def svg(self) -> str:
        """The drawing as SVG text."""
        return svg_document(self.width, self.height, _clean(self.title), [_svg(part) for part in self.parts])

    def pdf(self) -> bytes:
        """The drawing as a PDF of one page, in Helvetica. Characters outside of Windows-1252 become question marks."""
        lines = [f"{POINTS} 0 0 {POINTS} 0 0 cm", *(_pdf(part, self.height) for part in self.parts)]
        page = "\n".join(lines).encode("latin-1")
        box = f"{self.width * POINTS:g} {self.height * POINTS:g}"
        font = "<< /Type /Font /Subtype /Type1 /BaseFont /{} /Encoding /WinAnsiEncoding >>"
        return _document(
            [
                "<< /Type /Catalog /Pages 2 0 R >>",
                "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
                f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {box}] /Contents 4 0 R "
                "/Resources << /Font << /F1 5 0 R /F2 6 0 R >> >> >>",
                f"<< /Length {len(page)} >>\nstream\n{page.decode('latin-1')}\nendstream",
                font.format("Helvetica"),
                font.format("Helvetica-Bold"),
                f"<< /Title ({_pdf_text(self.title)}) >>",
            ]
        )


def text_width(text: str) -> float:
    """Width of a text in pixels."""
    codes = (ord(letter) - 32 for letter in _clean(text))
    return SIZE / 1000 * sum(WIDTHS[code] if code < len(WIDTHS) else OTHER_WIDTH for code in codes)


def _svg(part: Box | Label) -> str:
    if isinstance(part, Label):
        weight = 600 if part.bold else 400
        return svg_text(part.x, part.y, _clean(part.text), part.anchor, part.fill, weight=weight)
    return svg_box(part.x, part.y, part.width, part.height, part.fill, _clean(part.hint))


def _pdf(part: Box | Label, height: int) -> str:
    """Operators that paint a part, with the origin in the lower left corner."""
    color = " ".join(f"{int(part.fill[at : at + 2], 16) / 255:.3f}" for at in (1, 3, 5))
    if isinstance(part, Box):
        return f"{color} rg {part.x:.1f} {height - part.y - part.height:.1f} {part.width:.1f} {part.height:.1f} re f"
    x = part.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[part.anchor] * text_width(part.text)
    font = "/F2" if part.bold else "/F1"
    return f"BT {font} {SIZE} Tf {color} rg {x:.1f} {height - part.y:.1f} Td ({_pdf_text(part.text)}) Tj ET"


def _pdf_text(text: str) -> str:
    """The inside of a PDF string, one character per byte."""
    coded = _clean(text).encode("cp1252", "replace").decode("latin-1")
    return "".join(f"\\{letter}" if letter in "\\()" else letter for letter in coded)


def _clean(text: str) -> str:
    """A text on one line: characters that cannot be printed become spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _document(objects: Sequence[str]) -> bytes:
    """A PDF file of objects, of which the first is the catalog and the last the information about the document."""
    data, places = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", []
    for number, one in enumerate(objects, start=1):
        places.append(len(data))
        data += f"{number} 0 obj\n{one}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    count = len(objects) + 1
    trailer = f"trailer\n<< /Size {count} /Root 1 0 R /Info {len(objects)} 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + f"xref\n0 {count}\n0000000000 65535 f \n{table}{trailer}".encode("latin-1")
