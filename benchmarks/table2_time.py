"""Time of the mini paper's Table 2 (plain CLIP and DeAR, seven sets, three seeds) by this version and an earlier one.

One command computes all cells, as a person would. Versions take turns, so that a slow minute of the machine meets both.
Each run has a folder and a cache of its own. Adapters and accuracies of both versions are compared, too.

    git worktree add build/before COMMIT
    python benchmarks/table2_time.py --before build/before --out results/table2-time.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from dear.storage.files import write_atomic
from dear.storage.markdown import table

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("before", "after")


class Run(NamedTuple):
    """What one version needed for all cells, and what it found."""

    wall: float
    cpu: float
    cells: list[Any]


def cpu_seconds() -> float:
    """CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(source: Path, options: argparse.Namespace, folder: Path) -> Run:
    """Table 2 by the version in `source`."""
    how = ["--seeds", options.seeds, "--jobs", str(options.jobs), "--threads", "1"]
    places = {"PYTHONPATH": str(source / "src"), "DEAR_CACHE": str(folder / "cache")}
    cpu, wall = cpu_seconds(), time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "dear", "paper", "--mini", "--only", "table-2", *how, "--out", str(folder / "paper")],
        env=os.environ | places, cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    cpu, wall = cpu_seconds() - cpu, time.monotonic() - wall
    paths = sorted((folder / "paper" / "grids").glob("*/cells/*.json"))
    return Run(wall, cpu, [results(json.loads(path.read_text())) for path in paths])


def results(cell: dict[str, Any]) -> list[Any]:
    """What a cell is about, its adapter, and its accuracies on both halves by every readout."""
    about = [cell["data"], cell["method"], cell["seed"]]
    return [*about, cell["adapter_sha256"], [one["accuracy"] for one in cell["scores"]]]


def main() -> None:
    """Run both versions in turn, print, write JSON after each pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the earlier version")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sources = {"before": options.before.resolve(), "after": ROOT}
    rows = []
    for _ in range(options.repeats):
        found = {}
        for version in VERSIONS:
            with tempfile.TemporaryDirectory() as place:
                found[version] = run(sources[version], options, Path(place))
                print(f"{version}: {found[version].wall:.0f} s, {found[version].cpu:.0f} CPU s", flush=True)
        before, after = (found[version] for version in VERSIONS)
        rows.append({
            "seeds": options.seeds, "jobs": options.jobs, "cells": len(after.cells),
            "wall": {version: round(one.wall, 1) for version, one in found.items()},
            "cpu": {version: round(one.cpu, 1) for version, one in found.items()},
            "wall_ratio": round(after.wall / before.wall, 3), "cpu_ratio": round(after.cpu / before.cpu, 3),
            "same_results": before.cells == after.cells,
        })  # fmt: skip
        if options.out:
            write_atomic(options.out, json.dumps({"rows": rows}, indent=1).encode() + b"\n")
    print(table(tuple(rows[0]), [tuple(map(str, row.values())) for row in rows]))


if __name__ == "__main__":
    main()
