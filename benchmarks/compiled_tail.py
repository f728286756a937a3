"""`torch.compile` of DeAR's trained layers: seconds to compile, and a step compiled beside the same step without.

Steps begin from the frozen quantities of the images, so only the trained part of both towers is measured. One thread,
CPU time of compiled and plain steps in turn, medians.

    python benchmarks/compiled_tail.py --out results/compiled-tail.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from class_scale import names_of

from dear.backbone.load import load_clip
from dear.engine.feed import StepImages
from dear.engine.gradients import Share, share_of_step
from dear.model.model import Model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers import build, move_parameters, plain_images

SIZES = {"world": (None, 16, 20), "ViT-B-16-quickgelu": ("random", 4, 50)}
"""Weights, images per step and classes."""


def step_of(model: Model, images: StepImages) -> tuple[float, Share]:
    """CPU seconds and gradients of a step; compiling happens in other processes, whose time is not in it."""
    begun, scaler = time.process_time(), torch.amp.GradScaler("cpu", enabled=False)
    share = share_of_step(model, images, seed=1, step=1, micro_batch=None, precision="fp32", scaler=scaler)
    return time.process_time() - begun, share


def measure(name: str, repeats: int) -> dict[str, Any]:
    """One CLIP."""
    weights, batch, classes = SIZES[name]
    clip = load_clip(name, weights)
    plain = build("dear", clip, names_of(classes))
    move_parameters(plain)
    compiled = build("dear", clip, names_of(classes))
    compiled.method.load_state_dict(plain.method.state_dict())
    for part in ("forward", "text"):
        setattr(compiled.method, part, torch.compile(getattr(compiled.method, part)))
    states = plain.states(plain_images(clip, batch), training=True)
    images = StepImages(states, torch.arange(batch) % classes, torch.arange(batch), batch, ())
    step_of(plain, images)
    start = time.monotonic(), time.process_time()
    _, ours = step_of(compiled, images)
    step_of(compiled, images)
    wall, cpu = time.monotonic() - start[0], time.process_time() - start[1]
    seconds: dict[str, list[float]] = {"plain": [], "compiled": []}
    for _ in range(repeats):
        seconds["plain"].append(step_of(plain, images)[0])
        seconds["compiled"].append(step_of(compiled, images)[0])
    theirs = step_of(plain, images)[1].grads["total"]
    error = max(float((ours.grads["total"][key] - one).abs().max() / one.abs().max()) for key, one in theirs.items())
    found = {key: median(values) for key, values in seconds.items()}
    saved = found["plain"] - found["compiled"]
    return {
        "clip": name,
        "batch": batch,
        "classes": classes,
        "compile_seconds": wall,
        "compile_CPU_seconds": cpu,
        "plain_ms": 1000 * found["plain"],
        "compiled_ms": 1000 * found["compiled"],
        "ratio": found["compiled"] / found["plain"],
        "steps_to_pay": cpu / saved if saved > 0 else None,
        "gradient_error": error,
    }


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", nargs="+", default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name in given.clips:
        rows[name.split("-quick")[0]] = measure(name, given.repeats)
        print(json.dumps(rows), flush=True)
        if given.out:
            given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
