"""Time of the mini paper's Table 2 (plain CLIP and DeAR, seven sets, three seeds) by this version and an earlier one.

One command computes all cells, as a person would. Both versions run at the same time, each in one process with one
thread, so that a slow minute of the machine meets both. Each run has a folder and a cache of its own. Adapters and
accuracies of both versions are compared, too.

    git worktree add build/before COMMIT
    python benchmarks/table2_time.py --before build/before --out results/table2-time.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from dear.storage.files import write_atomic

ROOT = Path(__file__).resolve().parents[1]


class Run(NamedTuple):
    """What one version needed for all cells, and what it found."""

    wall: float
    cpu: float
    cells: list[Any]


def start(source: Path, seeds: str, folder: Path) -> subprocess.Popen[bytes]:
    """Begin Table 2 by the version in `source`."""
    how = ["--seeds", seeds, "--jobs", "1", "--threads", "1"]
    places = {"PYTHONPATH": str(source / "src"), "DEAR_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [sys.executable, "-m", "dear", "paper", "--mini", "--only", "table-2", *how, "--out", str(folder / "paper")],
        env=os.environ | places, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def both(sources: dict[str, Path], seeds: str) -> dict[str, Run]:
    """Table 2 by all versions at the same time."""
    found, began = {}, time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folders = {version: Path(place) / version for version in sources}
        for folder in folders.values():
            folder.mkdir()
        names = {start(source, seeds, folders[version]).pid: version for version, source in sources.items()}
        while len(found) < len(names):
            pid, status, used = os.wait3(0)
            if status:
                raise SystemExit(f"{names[pid]} ended with {os.waitstatus_to_exitcode(status)}.")
            paths = sorted((folders[names[pid]] / "paper" / "grids").glob("*/cells/*.json"))
            cells = [results(json.loads(path.read_text())) for path in paths]
            found[names[pid]] = Run(time.monotonic() - began, used.ru_utime + used.ru_stime, cells)
            print(f"{names[pid]}: {found[names[pid]].wall:.0f} s, {found[names[pid]].cpu:.0f} CPU s", flush=True)
    return found


def results(cell: dict[str, Any]) -> list[Any]:
    """What a cell is about, its adapter, and its accuracies on both halves by every readout."""
    about = [cell["data"], cell["method"], cell["seed"]]
    return [*about, cell["adapter_sha256"], [one["accuracy"] for one in cell["scores"]]]


def main() -> None:
    """Run both versions, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the earlier version")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = both({"before": options.before.resolve(), "after": ROOT}, options.seeds)
    before, after = found["before"], found["after"]
    result = {
        "seeds": options.seeds,
        "cells": len(after.cells),
        "wall": {version: round(one.wall, 1) for version, one in found.items()},
        "cpu": {version: round(one.cpu, 1) for version, one in found.items()},
        "wall_ratio": round(after.wall / before.wall, 3),
        "cpu_ratio": round(after.cpu / before.cpu, 3),
        "same_results": before.cells == after.cells,
    }
    print(json.dumps(result, indent=1))
    if options.out:
        write_atomic(options.out, json.dumps(result, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
