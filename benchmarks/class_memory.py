"""Peak memory of a training step per class, beside the estimate from which `dear` chooses how many classes to encode.

The peak of a process is measured at two numbers of classes, each in a process of its own, without chunks: the
difference divided by the number of further classes is what one class needs, with its share of all temporary tensors.

    python benchmarks/class_memory.py --out results/class-memory.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from class_scale import gradients, names_of

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.evaluation.memory import watch_peak
from dear.model.class_chunk import MEASURED, estimate
from dear.model.model import Model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers import build

CLIPS = {"world": (None, (1000, 5000)), "ViT-B-16-quickgelu": ("random", (200, 800))}
"""Weights and two numbers of classes."""
METHODS = ("dear", "coop", "mmrl", "kgcoop")


def peak_of(method: str, clip: FrozenClip, classes: int) -> tuple[float, Model]:
    """Peak memory in MB of the frozen part of the classes and of one step on two images."""
    model = build(method, clip, names_of(classes)).for_classes(names_of(classes), chunk=classes)
    peak = watch_peak("cpu")
    gradients(model, 2, classes)
    return peak() or 0.0, model


def measure(clip_name: str, method: str, classes: int) -> dict[str, Any]:
    """One step in this process, and the estimate per class."""
    torch.set_num_threads(1)
    clip = load_clip(clip_name, CLIPS[clip_name][0])
    gradients(build(method, clip, names_of(8)), 2, 8)
    found, model = peak_of(method, clip, classes)
    each = estimate(clip, model.required_classes(), model.method)
    return {"peak": found, "estimate": each / 1e6, "measured on": MEASURED}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], given.one[1], int(given.one[2]))))
        return
    rows = []
    for clip, (_, counts) in CLIPS.items():
        for method in METHODS:
            words = [[sys.executable, __file__, "--one", clip, method, str(count)] for count in counts]
            few, many = (json.loads(subprocess.check_output(one).splitlines()[-1]) for one in words)
            real = (many["peak"] - few["peak"]) / (counts[1] - counts[0])
            rows.append(
                {"clip": clip, "method": method, "classes": counts, "MB": real, "estimated MB": many["estimate"]}
            )
            rows[-1]["ratio"] = many["estimate"] / real
            print(json.dumps(rows[-1]), flush=True)
            if given.out:
                given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
