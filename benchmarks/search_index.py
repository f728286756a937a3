"""The search index at size: does growing stay cheap, what does one query hold in memory, how far from a plain product?

Synthetic features of unit length are appended in parts, each timed. Then a fresh process opens the index and answers
one query; its resident memory is compared with that after the imports. Last, the exact search by one kind of feature
from the mapped fp16 rows beside a plain fp32 matrix product in memory, alternating.

    python benchmarks/search_index.py --rows 200000 --parts 20 --out search-index.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does; threads that spin hide everything else

import numpy as np
import torch

from dear.retrieval.index import Manifest, Writer, read_index
from dear.retrieval.search import likeness, row_cosines, top
from dear.retrieval.segments import Stamp

KINDS = ["cls", "color", "shape", "texture", "object", "location"]


def part(number: int, rows: int, embed: int) -> tuple[torch.Tensor, list[Stamp]]:
    random = np.random.default_rng(number)
    values = random.standard_normal((rows, len(KINDS), embed), dtype=np.float32)
    stamps = [Stamp(f"album-{number:03d}/photo-{row:06d}.jpg", 1000 + row, row) for row in range(rows)]
    return torch.from_numpy(values), stamps


def grow(folder: Path, rows: int, parts: int, embed: int) -> tuple[list[float], list[float]]:
    """Seconds and CPU seconds of each part; on a shared machine the second are the ones to compare."""
    manifest: dict[str, Any] = {"folder": "/photos", "kinds": KINDS, "embed": embed, "parts": True, "lacking": []}
    writer = Writer(folder, Manifest(**manifest, model_sha256="0", made_by={}, segments=[], next_number=1))
    seconds, busy = [], []
    for number in range(parts):
        features, stamps = part(number, rows // parts, embed)
        start, at = time.perf_counter(), time.process_time()
        if number:
            writer = Writer.continued(read_index(folder))  # as a process does that comes later
        writer.append(features, stamps)
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - at)
    return seconds, busy


def resident(what: str = "VmRSS") -> float:
    """Megabytes of memory that this process has, pages of mapped files included; "VmHWM" for the most it ever had."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(what)) / 1024


def one_query(folder: Path) -> dict[str, float]:
    """In a fresh process: open the index, see whether kinds are alike, answer one query, look up its paths."""
    torch.mv(torch.randn(256, 256), torch.randn(256))  # what the first product of all costs is not the index's
    before, start = resident(), time.perf_counter()
    index = read_index(folder)
    opened = time.perf_counter()
    assert likeness(index)["color"][1] < 0.1
    scores = row_cosines(index, "color", torch.randn(index.manifest.embed))
    best = [index.path(row) for row, _ in top(scores.masked_fill(~index.alive, -2), 12)]
    assert len(best) == 12
    measured = {"open": opened - start, "first query": time.perf_counter() - opened, "megabytes": resident() - before}
    return {name: round(value, 4) for name, value in measured.items()}


def compared(folder: Path, repeats: int) -> dict[str, float]:
    index = read_index(folder)
    query = torch.nn.functional.normalize(torch.randn(index.manifest.embed), dim=0)
    plain = index.features("color")
    ours, theirs = [], []
    for turn in range(repeats + 1):
        start = time.perf_counter()
        scores = row_cosines(index, "color", query)
        middle = time.perf_counter()
        expected = plain @ query
        end = time.perf_counter()
        if turn:
            ours.append(middle - start)
            theirs.append(end - middle)
    assert torch.allclose(scores, expected, atol=1e-5)
    ratios = sorted(o / t for o, t in zip(ours, theirs, strict=True))
    return {
        "search ms": 1000 * median(ours),
        "product ms": 1000 * median(theirs),
        "ratio": median(ratios),
        "least": ratios[0],
        "most": ratios[-1],
    }


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--parts", type=int, default=20)
    parser.add_argument("--embed", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="Where to write the index; by default a temporary folder.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one-query", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_query:
        print(json.dumps(one_query(options.one_query)))
        return
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        seconds, busy = grow(folder, options.rows, options.parts, options.embed)
        few = max(1, options.parts // 5)
        result: dict[str, Any] = {
            "rows": options.rows,
            "seconds by part": [round(one, 3) for one in seconds],
            "CPU seconds by part": [round(one, 3) for one in busy],
            "last part / first, CPU seconds": busy[-1] / busy[0],
            f"median of the last {few} / of the first {few}": median(seconds[-few:]) / median(seconds[:few]),
            "the same, CPU seconds": median(busy[-few:]) / median(busy[:few]),
        }
        command = [sys.executable, __file__, "--one-query", str(folder)]
        result["one query in a fresh process"] = json.loads(subprocess.check_output(command))
        result["exact search beside a product in memory"] = compared(folder, options.repeats)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
