"""One DeAR training step at several numbers of classes: peak memory and time with chunks, and gradients without.

Each number of classes runs in a process of its own. The chunk is the one that `dear` chooses itself if `--memory` GB
are free. Time is that of the step; the frozen part of the class features is made once per training and shown beside it.

    python benchmarks/class_scale.py --out results/class-scale.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from dear.backbone.load import load_clip
from dear.engine.feed import StepImages
from dear.engine.gradients import Share, share_of_step
from dear.evaluation.memory import watch_peak
from dear.model.class_chunk import class_chunk, estimate
from dear.model.load import DeAR
from dear.model.model import Model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers import move_parameters, varied_roles

GIGABYTE = 1e9
WORDS = "small large old new red blue green gray dark light wooden metal round square soft hard wild tame tall flat"
THINGS = "cat dog car tree house bird fish chair table lamp boat plane flower bridge tower road bag shoe cup book"


def names_of(count: int) -> list[str]:
    """Different class names of three or four words."""
    words, things = WORDS.split(), THINGS.split()
    found = [f"{a} {b} {thing}" for a in words for b in words for thing in things]
    return [*found, *(f"{one} toy" for one in found), *(f"{one} sign" for one in found)][:count]


def gradients(model: Model, batch: int, classes: int) -> Share:
    """The gradients of one step on random images."""
    size = model.clip.geometry.image_size
    images = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    step = StepImages({"images": images}, torch.arange(batch) * 7 % classes, torch.arange(batch), batch, ())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return share_of_step(model, step, seed=1, step=1, micro_batch=None, precision="fp32", scaler=scaler)


def measure(given: argparse.Namespace, classes: int) -> dict[str, Any]:
    """One step in this process."""
    torch.set_num_threads(given.threads)
    clip = load_clip(given.clip, given.pretrained or None)
    model = DeAR(clip, varied_roles(clip)).for_classes(names_of(classes))
    move_parameters(model)
    chunk = class_chunk(clip, model.required_classes(), int(given.memory * GIGABYTE), model.method)
    model = model.for_classes(model.required_classes(), chunk=chunk or classes)
    peak, start = watch_peak("cpu"), time.process_time()
    model.frozen_parts()
    frozen, begun, wall = time.process_time() - start, time.process_time(), time.perf_counter()
    share = gradients(model, given.batch, classes)
    found = {
        "classes": classes,
        "chunk": chunk,
        "peak_mb": peak(),
        "frozen_cpu_seconds": frozen,
        "step_cpu_seconds": time.process_time() - begun,
        "step_seconds": time.perf_counter() - wall,
    }
    if chunk and classes <= given.compare:
        model, peak = model.for_classes(model.required_classes(), chunk=classes), watch_peak("cpu")
        model.frozen_parts()
        begun = time.process_time()
        whole = gradients(model, given.batch, classes)
        found |= {"whole_peak_mb": peak(), "whole_step_cpu_seconds": time.process_time() - begun}
        found["estimate_mb"] = classes * estimate(clip, model.required_classes(), model.method) / 1e6
        theirs = whole.grads["total"]
        found["gradient_error"] = max(
            float((share.grads["total"][name] - one).abs().max() / one.abs().max()) for name, one in theirs.items()
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", default="ViT-B-16-quickgelu")
    parser.add_argument("--pretrained", default="random")
    parser.add_argument("--classes", type=int, nargs="+", default=[500, 2000, 10000])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=float, default=4.0, help="free memory in GB from which the chunk is chosen")
    parser.add_argument("--compare", type=int, default=2000, help="largest list whose step is repeated without chunks")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given, given.one)))
        return
    rows = []
    for classes in given.classes:
        words = [sys.executable, __file__, *sys.argv[1:], "--one", str(classes)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        one, seconds = rows[-1], rows[-1]["step_cpu_seconds"]
        print(
            f"{classes:6,} classes, chunk {one['chunk'] or 'none'}: {one['peak_mb']:,.0f} MB "
            f"({one['peak_mb'] / rows[0]['peak_mb']:.2f} x the first), {seconds:.1f} CPU s per step "
            f"({1000 * seconds / classes:.1f} ms per class), error of gradients {one.get('gradient_error', '-')}",
            flush=True,
        )
        if given.out:
            given.out.write_text(json.dumps({"clip": given.clip, "batch": given.batch, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
