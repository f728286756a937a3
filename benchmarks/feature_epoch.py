"""What an epoch of the methods that work on features alone costs, from cached states.

Random features of a CLIP's width stand for the cached ones: a centre per class and noise. Of the shots of a class four
are held out for the methods that choose on held-out images. Timed are `begin` (a cache, or the whole fit), an epoch by
the method's own recipe as the engine runs it, and `finish` (what is chosen on held-out images).

    python benchmarks/feature_epoch.py --classes 500 --shots 16 --out feature-epoch.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from class_words import class_names
from method_step import CLOCKS, NO_SCALER

from dear.backbone.clip import FrozenClip
from dear.backbone.frozen import PLAIN, shape_of
from dear.backbone.load import load_clip
from dear.engine.feed import StepImages
from dear.engine.gradients import share_of_step
from dear.engine.loop import update
from dear.engine.optim import make_optimiser
from dear.methods.base import Draw
from dear.model.load import make_method
from dear.model.model import Model
from dear.storage.markdown import table

METHODS = "clip_adapter,tip_adapter,tip_adapter_f,ape,ape_t,mm_adapter,linear_probe,role_gains,taskres,gda,lppp,clap"
SETTINGS = {"role_gains": {"mask": "all_mixed"}}
"""Random weights have no role map."""
HELD = 4
"""Held-out images of each class, out of its shots."""


def quantities(model: Model, labels: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    """Random quantities (N, …) for images of these classes, by the names that the method needs."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name in sorted({"feature", f"{PLAIN}feature", *model.method.needs.image, *model.method.needs.training}):
        shape = shape_of(model.clip.vision, name.removeprefix(PLAIN))
        centres = torch.randn(int(labels.max()) + 1, *shape, generator=torch.Generator().manual_seed(0))
        found[name] = centres[labels] + 2 * torch.randn(len(labels), *shape, generator=generator)
    return found


def epoch(model: Model, states: dict[str, torch.Tensor], labels: torch.Tensor) -> Callable[[], int]:
    """One epoch by the method's own recipe, to be called again and again; it gives its number of steps."""
    recipe = model.method.recipe
    optimiser, size = make_optimiser(recipe, model.method.trained), recipe.batch_size

    def run() -> int:
        order, steps = torch.randperm(len(labels)), 0
        for first in range(0, len(labels) - size + 1, size):
            at, steps = order[first : first + size], steps + 1
            images = StepImages({n: x[at] for n, x in states.items()}, labels[at], torch.arange(size), size, ())
            how: dict[str, Any] = {"seed": 1, "micro_batch": None, "precision": "fp32", "scaler": NO_SCALER}
            share = share_of_step(model, images, step=steps, **how)
            grads = {term: {n: g / share.rows for n, g in named.items()} for term, named in share.grads.items()}
            update(model.method, optimiser, NO_SCALER, grads, recipe.clip_norm, share, steps)
        return steps

    return run


def seconds(work: Callable[[], Any], now: Callable[[], float]) -> float:
    """Seconds of some work by a clock."""
    start = now()
    work()
    return now() - start


def measure(
    name: str, clip: FrozenClip, classes: int, shots: int, epochs: int, now: Callable[[], float]
) -> dict[str, Any]:
    """Seconds of `begin`, of an epoch, and of `finish`."""
    names = class_names(classes)
    method = make_method(name, clip, SETTINGS.get(name, {}), seed=1)
    model = Model(clip, method, trained_on=names).for_classes(names)
    kept_back = HELD if method.needs.held_out else 0
    labels = torch.arange(classes).repeat_interleave(shots - kept_back)
    states = quantities(model, labels, 1)
    passes = method.needs.views if method.needs.passes is None else method.needs.passes
    image = {n: x if n.startswith(PLAIN) else x.expand(passes, *x.shape) for n, x in states.items()}
    draw, held = Draw(image, labels, model.required_classes()), None
    if kept_back:
        right = torch.arange(classes).repeat_interleave(kept_back)
        held = Draw(quantities(model, right, 2), right, model.required_classes())
    model.frozen_parts()  # class features are cached states too
    begun, times, steps = seconds(lambda: method.begin(clip, draw), now), [], 0
    if method.recipe.epochs or method.recipe.steps_per_shot:
        run = epoch(model, states, labels)
        steps = run()
        times = [seconds(run, now) for _ in range(epochs)]
    ended = seconds(lambda: method.finish(clip, draw, held), now)
    return {"method": name, "begin": begun, "epochs": times, "steps": steps, "finish": ended, "images": len(labels)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", default="ViT-B-16-quickgelu")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--classes", type=int, default=500)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clip = load_clip(args.clip, "random")
    rows = []
    for name in args.methods.split(","):
        rows.append(measure(name, clip, args.classes, args.shots, args.epochs, CLOCKS[args.clock]))
        print(json.dumps(rows[-1]), flush=True)
    head = ("method", "images", "before", "steps per epoch", "epoch", "after")
    lines = [
        (
            row["method"],
            f"{row['images']:,}",
            f"{row['begin']:.2f} s",
            str(row["steps"] or "–"),
            f"{median(row['epochs']):.2f} s" if row["epochs"] else "–",
            f"{row['finish']:.2f} s",
        )
        for row in rows
    ]
    print(table(head, lines))
    if args.out:
        facts = {
            **{n: getattr(args, n) for n in ("clip", "classes", "shots", "threads", "clock")},
            "torch": torch.__version__,
        }
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
