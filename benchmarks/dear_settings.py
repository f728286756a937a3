"""Which of DeAR's published values carry over to small CLIPs: one setting changed at a time, on validation images.

Test images are never used. Each variant is a resumable grid in OUT. Every cell has all readouts, so that the readout on
new classes costs no training.

    python benchmarks/dear_settings.py --out runs/dear-settings/world --json results/dear-settings-world.json
    python benchmarks/dear_settings.py --out runs/dear-settings/photographs --data caltech101 --data-root DATA \
        --clip CLIP --roles MAP --json results/dear-settings-photographs.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from dear.data.splits import Half
from dear.engine.workspace import Workspace
from dear.evaluation.results import CellResult, harmonic_mean
from dear.options.parts import Bench
from dear.options.reading import check
from dear.storage.files import write_atomic
from dear.storage.markdown import table
from dear.workflows.bench import run_bench

HALVES: tuple[Half, ...] = ("base", "novel")
VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "no text tokens": {"text_tokens": [0]},
    "λ_reg 5": {"lambda_reg": [5.0]},
    "λ_reg 5, no text tokens": {"lambda_reg": [5.0], "text_tokens": [0]},
    "roles shuffled": {"mask": ["shuffled"]},
    "all heads mixed": {"mask": ["all_mixed"]},
    "all heads mixed, last 6 layers": {"mask": ["all_mixed"], "first_layer": [7], "text_first_layer": [7]},
    "all heads mixed, last 8 layers": {"mask": ["all_mixed"], "first_layer": [5], "text_first_layer": [5]},
}
"""What differs from the published settings; layers are those of towers with 12. Role maps know the last four layers."""
BY_CLS = "novel, decoupled"
"""Accuracy on new classes, read from [CLS] alone."""
Found = dict[str, dict[str, float]]
"""Accuracies by cell."""


def scores(cells: list[CellResult]) -> Found:
    """Accuracy on both halves by data set and seed, with the readouts of the protocol and with each other one."""
    found = {}
    for cell in cells:
        assert cell.tested_on == "validation"
        named = {half: cell.reading(cell.score(half)) for half in HALVES}
        other = {f"novel, {name}": value for name, value in cell.score("novel").accuracy.items()}
        found[f"{cell.data} {cell.seed}"] = {**named, "hm": harmonic_mean(*named.values()), **other}
    return found


def difference(found: Found, usual: Found, what: str) -> str:
    """Mean of the paired differences from the published settings, with its standard error if there are several."""
    pairs = [found[cell][what] - usual[cell][what] for cell in usual]
    error = f" ± {stdev(pairs) / len(pairs) ** 0.5:.1f}" if len(pairs) > 1 else ""
    return f"{fmean(pairs):+.1f}".replace("-", "−") + error


def shown(found: dict[str, Found]) -> str:
    """One row per variant: means, and paired differences from the published settings."""
    rows = []
    for name, cells in found.items():
        means = [f"{fmean(cell[what] for cell in cells.values()):.1f}" for what in (*HALVES, "hm", BY_CLS)]
        rows.append((name, *means, *(difference(cells, found["published"], what) for what in (*HALVES, "hm"))))
    heads = ("base", "novel", "HM", "novel by [CLS]", "base, difference", "novel, difference", "HM, difference")
    return table(("DeAR with", *heads), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="world-textures,world-emblems,world-broad")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--clip")
    parser.add_argument("--roles")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--variants", default=";".join(VARIANTS), help="separated by semicolons")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    workspace, found = Workspace(), dict[str, Found]()
    for name in asked.variants.split(";"):
        values = {
            **{"data": asked.data, "data_root": asked.data_root, "clip": asked.clip},
            "roles": None if "first_layer" in VARIANTS[name] else asked.roles,
            **{"methods": ["dear"], "set": VARIANTS[name], "seeds": asked.seeds, "validate": True, "resume": True},
            **{"cached_views": 10, "threads": 1, "cache": asked.out / "cache"},
            "out": asked.out / name.replace(" ", "-"),
        }
        found[name] = scores(run_bench("base-to-novel", check(Bench, values), workspace=workspace).results)
        print(shown(found), flush=True)
    if asked.json:
        write_atomic(asked.json, json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n")


if __name__ == "__main__":
    main()
