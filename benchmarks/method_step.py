"""What a training step of each method costs, ours beside a plain implementation of the same method.

Plain is the method on towers without savings (`tests/plain_towers.py`): 77 text positions, every row of every layer,
nothing shared between prompts. What the published code computes in every step is computed in every step: `classes` is
part of it for the methods whose code runs the whole text tower per step (`EVERY_STEP`). Ours is measured live (from
images) and cached (from cached frozen quantities). A step is forward, loss, backward and update; a speed is a
ratio of medians of steps taken in turn in one run. Peak memory: what the process grows by during the first step. On a
machine that others use, `--clock cpu --threads 1` counts the seconds that this process computed.

    python benchmarks/method_step.py --methods coop,maple --classes 50 --batch 4 --out method-step.json
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from class_words import class_names

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.engine.feed import IMAGES, StepImages
from dear.engine.gradients import share_of_step
from dear.engine.loop import update
from dear.engine.optim import make_optimiser
from dear.methods.base import Draw
from dear.methods.recipe import SHARED
from dear.methods.registry import get_method, list_methods
from dear.model.load import make_method
from dear.model.model import Model
from dear.storage.markdown import table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers import SPECIAL_CONFIGS, move_parameters
from plain_towers import plain_clip

EVERY_STEP = ("dear", "mmrl", "mmrlpp", "skiptuning", "tcp")
"""Methods whose published code runs text layers that never change in every step."""
NO_SCALER = torch.amp.GradScaler("cpu", enabled=False)


def build(name: str, clip: FrozenClip, classes: int) -> Model:
    """A method as some training would leave it, for as many classes."""
    names = class_names(classes)
    method = make_method(name, clip, SPECIAL_CONFIGS.get(name, {}), seed=1)
    model = Model(clip, method, trained_on=names).for_classes(names)
    if method.overrides("begin"):
        generator = torch.Generator().manual_seed(0)
        count, width = 2 * classes, clip.geometry.embed_dim
        features = {"feature": torch.randn(method.needs.views, count, width, generator=generator)}
        method.begin(clip, Draw(features, torch.arange(count) % classes, model.required_classes()))
    move_parameters(model)
    return model


def images_of(clip: FrozenClip, batch: int, classes: int, views: int) -> StepImages:
    """A step's pictures, as the engine receives them."""
    size, rows = clip.geometry.image_size, batch * views
    generator = torch.Generator().manual_seed(0)
    pictures = {
        IMAGES: torch.randn(rows, 3, size, size, generator=generator),
        f"plain:{IMAGES}": torch.randn(batch, 3, size, size, generator=generator),
    }
    labels = (torch.arange(batch) * 7 % classes).repeat(views)
    return StepImages(pictures, labels, torch.arange(rows), rows, ())


def stepper(model: Model, images: StepImages, *, cached: bool, every_step: bool) -> Callable[[], None]:
    """One whole step of a model, to be called again and again."""
    optimiser = make_optimiser(SHARED, model.method.trained)
    if cached:
        states = model.states(images.inputs[IMAGES], training=True, plain_images=images.inputs[f"plain:{IMAGES}"])
        images = StepImages(states, images.labels, images.rows, images.size, ())

    def step() -> None:
        if every_step:
            model._parts = None
        how: dict[str, Any] = {"seed": 1, "step": 1, "micro_batch": None, "precision": "fp32", "scaler": NO_SCALER}
        share = share_of_step(model, images, **how)
        grads = {term: {n: g / share.rows for n, g in named.items()} for term, named in share.grads.items()}
        update(model.method, optimiser, NO_SCALER, grads, None, share, 1)

    return step


def ways(name: str, clip: FrozenClip, classes: int, batch: int, chosen: Sequence[str]) -> dict[str, Callable[[], None]]:
    """The ways to make a step: "plain", "live", "cached"."""
    plain, found = plain_clip(clip), {}
    plain.text.__dict__["encode"] = clip.text.encode  # targets that are made once are not what is measured
    for way in chosen:
        model = build(name, plain if way == "plain" else clip, classes)
        images = images_of(clip, batch, classes, model.method.needs.views)
        every_step = way == "plain" and name in EVERY_STEP
        found[way] = stepper(model, images, cached=way == "cached", every_step=every_step)
    return found


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def measure(
    name: str, clip: FrozenClip, classes: int, batch: int, plain: int, ours: int, now: Callable[[], float]
) -> dict[str, Any]:
    """Seconds of steps taken in turn, a plain one, then some of ours beside it, and what the first of each needs."""
    steps = ways(name, clip, classes, batch, ("live", "cached", "plain"))
    megabytes = {"live": peak(steps["live"])}
    steps["cached"]()
    seconds: dict[str, list[float]] = {way: [] for way in steps}
    for turn in range(plain):
        for way, work in steps.items():
            for _ in range(1 if way == "plain" else -(-ours // plain)):
                start = now()
                if way == "plain" and not turn:
                    megabytes["plain"] = peak(work)
                else:
                    work()
                seconds[way].append(now() - start)
    middle = {way: median(times) for way, times in seconds.items()}
    return {
        "method": name,
        "classes": classes,
        "batch": batch,
        "seconds": seconds,
        "median": middle,
        "megabytes": megabytes,
    }


def status(field: str) -> float:
    """A size of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def peak(step: Callable[[], None]) -> float:
    """MB that this process grows by at most during a step; freed memory is returned first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS:")
    step()
    return status("VmHWM:") - before


def report(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table."""
    head = ("method", "classes", "batch", "plain s", "live s", "plain ÷ live", "plain ÷ cached", "MB plain", "MB live")
    lines = []
    for row in rows:
        middle, memory = row["median"], row["megabytes"]
        live, cached = middle["plain"] / middle["live"], middle["plain"] / middle["cached"]
        sizes = [f"{memory[way]:,.0f}" for way in ("plain", "live")]
        times = [f"{middle[way]:.2f}" for way in ("plain", "live")]
        lines.append(
            (row["method"], str(row["classes"]), str(row["batch"]), *times, f"{live:.1f}", f"{cached:.1f}", *sizes)
        )
    return table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", default="ViT-B-16-quickgelu")
    parser.add_argument("--methods", default="all", help="comma-separated, or all that train")
    parser.add_argument("--classes", type=int, nargs="+", default=[50])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--plain", type=int, default=2, help="plain steps")
    parser.add_argument("--ours", type=int, default=5, help="steps of ours")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clip = load_clip(args.clip, "random")
    trains = [
        name for name in list_methods() if get_method(name).recipe.epochs or get_method(name).recipe.steps_per_shot
    ]
    rows = []
    for name in trains if args.methods == "all" else args.methods.split(","):
        for classes in args.classes:
            rows.append(measure(name, clip, classes, args.batch, args.plain, args.ours, CLOCKS[args.clock]))
            print(report(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(report(rows))
    if args.out:
        facts = {
            "clip": args.clip,
            "threads": args.threads,
            "clock": args.clock,
            "torch": torch.__version__,
            "rows": rows,
        }
        args.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
