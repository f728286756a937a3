"""Train and evaluate with many classes on the world's CLIP: CPU time and memory of `dear.fit` and `dear.evaluate`.

A few images of flat colours belong to classes that are spread over the list, so scores mean nothing: this is about room
and time. Each method and number of classes has a process of its own.

    python benchmarks/many_classes.py --out results/many-classes.json
"""

from __future__ import annotations

import argparse
import cProfile
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from class_scale import names_of
from PIL import Image

import dear
from dear.evaluation.memory import watch_peak

IMAGES, BATCH = 32, 16
"""Training images, as many test images, and images per step: two steps."""


class Pictures(list[tuple[Image.Image, int]]):
    """Pairs of an image and a label, with the names of all classes."""

    def __init__(self, classes: int, shift: int) -> None:
        self.classes = names_of(classes)
        labels = [number * classes // IMAGES for number in range(IMAGES)]
        super().__init__((_picture(number + shift), label) for number, label in enumerate(labels))


def _picture(number: int) -> Image.Image:
    return Image.new("RGB", (64, 64), (number * 37 % 256, number * 101 % 256, number * 7 % 256))


def measure(method: str, classes: int) -> dict[str, Any]:
    """Train and evaluate in this process."""
    data = {"train": Pictures(classes, 0), "test": Pictures(classes, IMAGES)}
    found: dict[str, Any] = {"classes": classes, "method": method}
    with tempfile.TemporaryDirectory() as folder:
        peak, start = watch_peak("cpu"), time.process_time()
        run = {"method": method, "clip": "world", "shots": 1, "epochs": 1, "batch_size": BATCH, "threads": 1}
        dear.fit(data, out=Path(folder) / "run", no_cache=True, workers=1, **run)
        found |= {"train CPU s": round(time.process_time() - start, 1), "train MB": round(peak() or 0)}
        record = json.loads((Path(folder) / "run" / "run.json").read_text())
        peak, start = watch_peak("cpu"), time.process_time()
        result = dear.evaluate(Path(folder) / "run", data, workers=1, threads=1)
        found |= {"eval CPU s": round(time.process_time() - start, 1), "eval MB": round(peak() or 0)}
    return found | {"at once": record.get("class_chunk"), "tested": result.scores.images}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[2_000, 10_000, 21_841])
    parser.add_argument("--methods", nargs="+", default=["zero_shot", "tip_adapter_f", "coop", "kgcoop", "dear"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    given = parser.parse_args()
    if given.one:
        with cProfile.Profile() as profile:
            found = measure(given.one[0], int(given.one[1]))
        if given.profile:
            profile.print_stats("cumtime")
        print(json.dumps(found))
        return
    rows: list[dict[str, Any]] = []
    if given.out and given.out.exists():
        rows = json.loads(given.out.read_text())["rows"]
    for classes in given.classes:
        for method in given.methods:
            if any((one["classes"], one["method"]) == (classes, method) for one in rows):
                continue
            words = [sys.executable, __file__, "--one", method, str(classes)]
            rows.append(json.loads(subprocess.check_output(words).splitlines()[-1]))
            print(json.dumps(rows[-1]), flush=True)
            if given.out:
                given.out.write_text(json.dumps({"images": IMAGES, "batch": BATCH, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
