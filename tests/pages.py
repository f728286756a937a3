"""One page of every kind, from made-up findings, to be looked at in a browser: `python tests/pages.py FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image

import dear
from cells import some_cells
from dear.paper.page import write_paper
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import write_comparison
from dear.reports.page_sections import Table
from dear.reports.render import Picture
from dear.reports.role_page import role_page
from dear.reports.run_page import ClassBar, ConfusedPair, Confusion, ExampleSearch, RunPage, run_html
from dear.reports.sheet import write_found
from dear.retrieval.search import Ask, Found, Hit
from dear.roles.examples import Example, Examples
from dear.roles.rolemap import RoleMap
from dear.world import Scene, render
from papers import findings

COLORS, SHAPES = ("red", "green", "blue", "yellow"), ("star", "heart", "circle")
NAMES = tuple(f"{color} {shape}" for color in COLORS for shape in SHAPES)
GAINS = {"zero_shot": 0.0, "coop": 3.0, "maple": 5.0, "dear": 5.1, "promptsrc": 4.0, "tip_adapter_f": 2.0}


def drawing(number: int) -> Image.Image:
    """A drawing of the world."""
    color, shape = COLORS[number % len(COLORS)], SHAPES[number % len(SHAPES)]
    return Image.fromarray(render(Scene(color, shape, "striped", "key", "desert"), key=(number, 1)))


def pictures(count: int, caption: str) -> list[Picture]:
    """Drawings with a caption."""
    return [Picture(drawing(i), f"{NAMES[i % len(NAMES)]} {caption}") for i in range(count)]


def run_page() -> RunPage:
    """A run's page with every section."""
    shares = {(i, i): 80.0 for i in range(len(NAMES))} | {(i, (i + 1) % len(NAMES)): 20.0 for i in range(len(NAMES))}
    pair = ConfusedPair("green heart", "green star", 12, 100, pictures(2, "named correctly"))
    bars = [ClassBar(name, 100, 40.0 + 5 * i, 38.0 + 4 * i) for i, name in enumerate(NAMES)]
    many = [ClassBar(f"class {i}", 1000, 100.0 * i / 30, 50.0) for i in range(30)]
    lines = {name: [2.0 / (i + 1 + k) for i in range(40)] for k, name in enumerate(("total", "ce", "reg_text"))}
    sentence = "93 % of 72 images it was not trained on are named correctly, ± 6 points; plain CLIP 82 %; "
    return RunPage(
        title="pets, adapted",
        subtitle="dear on ViT-B-16, 16 training images per class, seed 1",
        verdict=[sentence + "better beyond chance: yes."],
        corrected={"Corrected": pictures(8, "(plain CLIP: red heart)"), "New mistakes": pictures(3, "(is red star)")},
        corrected_note="The adapter corrects 10 of plain CLIP's 13 mistakes and makes 2 new ones.",
        confused=[pair] * 5,
        bars={"The base classes": bars, "The novel classes": many},
        scores=[
            ["top-1, per cent", "base classes", "novel classes", "harmonic mean"],
            ["plain CLIP", "58.7", "73.2", "65.2"],
            ["dear", "63.7", "72.7", "67.9"],
            ["dear, decoupled", "58.8", "73.1", "65.1"],
        ],
        scores_note="Tested on 1,200 images, base classes and 1,200 images, novel classes.",
        settings={
            "data": "pets, 12 classes",
            "prompt": "a photo of a {}.",
            "epochs": "10",
            "weights": "0123456789abcdef",
        },
        weights={"cls": 0.75, "color": 0.1, "shape": 0.05, "texture": 0.05, "object": 0.03, "location": 0.02},
        curves={"loss": lines},
        examples={"Most certain and wrong": pictures(8, "99 %"), "Least certain": pictures(8, "12 %")},
        confusion=Confusion(NAMES, shares, "Per cent of each class; rows are true classes, columns are answers."),
        roles=RoleMap.load("world"),
        nearest=[
            ExampleSearch(
                Picture(drawing(3), "query: red star"), {"cls": pictures(8, "0.9"), "color": pictures(8, "0.8")}
            )
        ],
    )


def report(folder: Path) -> Path:
    """The page of a run."""
    (folder / "report.html").write_text(run_html(run_page()), encoding="utf-8")
    return folder / "report.html"


def roles(folder: Path) -> Path:
    """The page of a role map, with examples and the tables of a discovery."""
    found = RoleMap.load("vit-b-16")
    shown = tuple(Example(NAMES[i], drawing(i)) for i in range(6))
    stability = Table(("changed", "heads with the same role and concept", "kappa"), (("images 1", "43 %", "0.43"),) * 4)
    examples = {(head.layer, head.head): Examples(shown, shown) for head in found.heads[:3]}
    clusters = Table(("named", "most central", "phrases"), (("color", "a red thing; a green thing", "1234"),), words=2)
    tables = [
        Table(stability.head, stability.rows, title="Stability"),
        Table(clusters.head, clusters.rows, "Clusters", 2),
    ]
    page = role_page(found, title="What the heads of ViT-B-16 do", examples=examples, tables=tables)
    (folder / "roles.html").write_text(page, encoding="utf-8")
    return folder / "roles.html"


def compare(folder: Path) -> Path:
    """The page of a comparison of methods."""
    write_comparison(folder, make_comparison(some_cells(GAINS), {}))
    return folder / "compare.html"


def paper(folder: Path) -> Path:
    """The page of a whole paper."""
    write_paper(folder / "paper", findings())
    return folder / "paper" / "report.html"


def sheet(folder: Path) -> Path:
    """A contact sheet of a search by an image whose name is long."""
    photo = folder / f"{'a-long-name-without-a-space' * 4}.png"
    drawing(1).save(photo)
    write_found(
        folder / "sheet.html", Ask(image=photo), [Found("color", "Nearest by color", (Hit(photo, 0.5),) * 7, 0.0)]
    )
    return folder / "sheet.html"


def text_sheet(folder: Path) -> Path:
    """A contact sheet of a search by words."""
    photo = folder / "one.png"
    drawing(1).save(photo)
    write_found(
        folder / "words.html",
        Ask(text="a striped star"),
        [Found("color", "Nearest by color", (Hit(photo, 0.5),) * 7, 0.0)],
    )
    return folder / "words.html"


def explanation(folder: Path) -> Path:
    """Why a drawing gets its answer from the world's plain CLIP."""
    dear.explain(dear.load_clip("world"), drawing(1), NAMES, out=folder / "explain.html")
    return folder / "explain.html"


PAGES: dict[str, Callable[[Path], Path]] = {
    "report": report,
    "roles": roles,
    "compare": compare,
    "paper": paper,
    "sheet": sheet,
    "text sheet": text_sheet,
    "explanation": explanation,
}


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for make in PAGES.values():
        sys.stdout.write(f"{make(target)}\n")
