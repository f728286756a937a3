"""Peak memory of `dear predict` over few and over many images: it must not depend on their number.

python benchmarks/predict_memory.py [--few 200] [--many 20000]

Every measurement is a process of its own on the embedded world's CLIP. The images are links to 200 generated ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

RESULT = Path(__file__).parents[1] / "results" / "predict-memory.json"
COMMAND = """
import resource, sys
import dear.cli
try:
    dear.cli.main()
finally:
    sys.stderr.write(f"PEAK {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}\\n")
"""
FORMS = {"--json": ["--json"], "--out": ["--out", "labels.csv"]}


def make_images(folder: Path, count: int, different: int = 200) -> None:
    """A folder of images, in folders of a thousand; those after the first ones are links."""
    random = np.random.default_rng(0)
    for index in range(count):
        path = folder / f"{index // 1000:03}" / f"{index:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if index < different:
            Image.fromarray(random.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
        else:
            os.link(folder / "000" / f"{index % different:06}.png", path)


def peak(run: Path, folder: Path, words: list[str], work: Path) -> float:
    """Megabytes of a process at most."""
    command = [sys.executable, "-c", COMMAND, "predict", str(run), str(folder), "--threads", "1", *words]
    work.mkdir()
    done = subprocess.run(command, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    return int(done.stderr.rpartition("PEAK ")[2]) / 1024


def main() -> None:
    """Measure, print a table and write JSON."""
    import dear

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=200)
    parser.add_argument("--many", type=int, default=20_000)
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        model = dear.DeAR(dear.load_clip("world")).for_classes(["red star", "blue heart", "green circle"])
        run = model.save_pretrained(home / "run")
        for count in (chosen.few, chosen.many):
            make_images(home / str(count), count)
        for form, words in FORMS.items():
            few, many = (peak(run, home / str(n), words, home / f"work{form}{n}") for n in (chosen.few, chosen.many))
            rows.append(
                {"form": form, "few_mb": round(few, 1), "many_mb": round(many, 1), "ratio": round(many / few, 4)}
            )
    sys.stdout.write(f"form    {chosen.few:>8,} images  {chosen.many:>8,} images  ratio\n")
    for row in rows:
        sys.stdout.write(
            f"{row['form']:<6}  {row['few_mb']:>12.1f} MB  {row['many_mb']:>12.1f} MB  {row['ratio']:.3f}\n"
        )
    RESULT.write_text(json.dumps({"few": chosen.few, "many": chosen.many, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
