"""The share of this machine's own matrix-product rate that a training step of DeAR reaches, by one thread.

Multiplications and additions of a step are counted by torch while it runs; its CPU time is compared with that of plain
products of square matrices, in turn. What is left goes into attention, norms, activations, copies and Python.

    python benchmarks/matmul_share.py --out results/matmul-share.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from dear.backbone.load import load_clip
from dear.methods.base import Batch
from dear.model.load import DeAR

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers import move_parameters, varied_roles

SIDE = 1024
"""Side of the square matrices."""


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of some work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Products and steps in turn; a step is measured live, from images, and from cached frozen quantities."""
    torch.set_num_threads(1)
    clip = load_clip(options.clip, options.pretrained)
    model = DeAR(clip, varied_roles(clip)).for_classes([f"thing {number}" for number in range(options.classes)])
    move_parameters(model)
    size = clip.geometry.image_size
    images = torch.randn(options.batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    batch = Batch(torch.arange(options.batch) % options.classes, size=options.batch)
    states, square = model.states(images, training=True), torch.randn(SIDE, SIDE)

    def step(live: bool) -> None:
        model.zero_grad()
        given = model.states(images, training=True) if live else states
        model.method.loss(model(given=given, batch=batch), batch)["total"].backward()  # type: ignore[no-untyped-call]

    result: dict[str, Any] = {"clip": options.clip, "batch": options.batch, "classes": options.classes}
    for name, live in (("live", True), ("cached", False)):
        with FlopCounterMode(display=False) as counter:
            step(live)
        operations, rates, steps = counter.get_total_flops(), [], []
        for _ in range(options.repeats):
            rates.append(2 * SIDE**3 / seconds(lambda: square @ square))
            steps.append(operations / seconds(lambda live=live: step(live)))  # type: ignore[misc]
        share = median(one / other for one, other in zip(steps, rates, strict=True))
        result[name] = {"product_gflops": median(rates) / 1e9, "step_gflops": median(steps) / 1e9, "share": share}
    return result


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", default="world")
    parser.add_argument("--pretrained")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = measure(options)
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
