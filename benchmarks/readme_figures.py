"""Regenerate the top of the README: run `dear quickstart`, render docs/images/before-after.png, and copy the output
into the README and the first tutorial. Takes about two minutes on two cores.

python benchmarks/readme_figures.py [--run FOLDER]     # FOLDER: an existing quickstart run
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[1]
RUN = "runs/quickstart"
PICTURE, RECORD = ROOT / "docs/images/before-after.png", ROOT / "results/quickstart.json"
PAGES = (ROOT / "README.md", ROOT / "docs/tutorials/first-adapter.md")
SHOWN, SIDE, GAP, LINE = 5, 184, 20, 25
INK, QUIET, WRONG, RIGHT = "#1d2630", "#5b6672", "#a3263c", "#1c6b40"


def main() -> None:
    """Run, measure, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a finished quickstart, instead of a new one")
    args = parser.parse_args()
    began = time.perf_counter()
    if args.run is None:
        printed = dear("quickstart", "--out", RUN)
        sys.stdout.write(f"dear quickstart took {time.perf_counter() - began:.0f} s on {os.cpu_count()} cores\n")
    else:
        printed = dear("report", str(args.run)).replace(str(args.run), RUN)
    record = {"command": "dear quickstart", "printed": printed.splitlines()}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for page in PAGES:
        put(page, printed)
    draw(args.run or ROOT / RUN)


def dear(*words: str) -> str:
    """What a command prints."""
    found = subprocess.run(
        [sys.executable, "-m", "dear", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return found.stdout.strip() + "\n"


def put(page: Path, printed: str) -> None:
    """Replace the block with the output of quickstart."""
    block = re.compile(r"```text\n(?:(?!```)[\s\S])*?report: runs/quickstart/report\.html\n```")
    text, count = block.subn(lambda _: f"```text\n{printed}```", page.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{page} has {count} blocks with what quickstart prints, not 1.")
    page.write_text(text, encoding="utf-8")


def draw(run: Path) -> None:
    """Drawings that plain CLIP names wrongly and the adapter correctly, with both answers."""
    from dear.evaluation.test_data import data_of_run
    from dear.model.load import load
    from dear.reports.run_pictures import Answers
    from dear.workflows.report_data import evaluate_halves

    data = data_of_run(run)
    first = evaluate_halves(load(run), data)[0]
    answers = Answers(data.dataset, first.items, first.class_names, first.adapted)
    better = answers.by_certainty(lambda i: answers.right(i) and not answers.plain_right(i))
    shown = answers.varied(better)[:SHOWN]
    canvas = Image.new("RGB", (GAP + (SIDE + GAP) * len(shown), 2 * GAP + SIDE + 4 * LINE), "white")
    pen = ImageDraw.Draw(canvas)
    for place, index in enumerate(shown):
        left = GAP + (SIDE + GAP) * place
        image = answers.picture(index, "").image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        canvas.paste(image, (left, GAP))
        below = GAP + SIDE + 6
        rows = [
            ("before", answers.class_names[answers.plain_pick(index)], WRONG),
            ("after", answers.truth(index), RIGHT),
        ]
        for number, (word, name, ink) in enumerate(rows):
            top = below + number * 2 * LINE
            pen.text((left, top), word, fill=QUIET, font=ImageFont.load_default(15))
            pen.text((left, top + 17), name, fill=ink, font=ImageFont.load_default(20))
            if ink == WRONG:
                wide = pen.textlength(name, font=ImageFont.load_default(20))
                pen.line((left, top + 31, left + wide, top + 31), fill=ink, width=2)
    canvas.save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
