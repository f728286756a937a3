"""Measure what selection on more images than we allow, or on the test images, would add.

Every method is trained once, few-shot, with its own recipe. What it selects (an epoch, α, β, a ratio) is
selected in three ways: by our rule, on at most four held-out images per class; by the rule of its published code; on
the test images, as some published code does for ImageNet. Test accuracies are compared with ours, pair by pair.

    python benchmarks/honest_selection.py --out honest-selection.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.dataset import Dataset
from dear.data.open import opened
from dear.data.splits import few_shot
from dear.engine.feature_sets import held_images
from dear.engine.job import Job, make_job
from dear.engine.loop import Metrics
from dear.engine.run import run_job
from dear.methods.base import Draw
from dear.model.model import Model
from dear.options.parts import Training
from dear.storage.markdown import table

AT_ONCE = 64
LAST, VALIDATION, TEST, AS_MANY = "last", "validation", "test", "as many as shots"
CONFIG = {"clip_adapter": {"choose_ratio": True}}


@dataclass(frozen=True)
class Rule:
    """Which images choose the epoch (`LAST`: none do) and the numbers (None: there are none).

    LP++ makes its steps in `finish`, so that what it chooses there, an epoch, is one of the numbers.
    """

    epoch: str
    numbers: str | None = None
    larger: bool = False
    """Whether the accuracy of the best epoch counts if it is the larger one, as Tip-Adapter-F's code has it."""


PUBLISHED = {
    "clip_adapter": Rule(LAST, TEST),
    "tip_adapter": Rule(LAST, VALIDATION),
    "tip_adapter_f": Rule(TEST, VALIDATION, larger=True),
    "ape": Rule(LAST, VALIDATION),
    "ape_t": Rule(VALIDATION, VALIDATION),
    "mm_adapter": Rule(VALIDATION),
    "textrefiner": Rule(VALIDATION),
    "gda": Rule(LAST, VALIDATION),
    "lppp": Rule(LAST, AS_MANY),
}
ON_TEST = {
    "clip_adapter": Rule(LAST, TEST),
    "tip_adapter": Rule(LAST, TEST),
    "tip_adapter_f": Rule(TEST, TEST, larger=True),
    "ape": Rule(LAST, TEST),
    "ape_t": Rule(TEST, TEST),
    "mm_adapter": Rule(TEST),
    "textrefiner": Rule(TEST),
    "gda": Rule(LAST, TEST),
    "lppp": Rule(LAST, TEST),
}


class WatchedJob(Job):
    """A job whose model can be looked at while it is trained."""

    def build(self, clip: FrozenClip) -> Model:
        """The untrained model, cached as `model`; the training images that it ends with are cached as `drawn`."""
        model = super().build(clip)
        finish = model.method.finish

        def remember(clip: FrozenClip, draw: Draw, held: Draw | None) -> None:
            object.__setattr__(self, "drawn", draw)
            finish(clip, draw, held)

        object.__setattr__(model.method, "finish", remember)
        object.__setattr__(self, "model", model)
        return model

    model: Model
    drawn: Draw


@torch.no_grad()
def accuracy(model: Model, images: Draw) -> float:
    """Per cent of images that a model gets right."""
    right = 0
    for first in range(0, images.labels.shape[0], AT_ONCE):
        part = {name: tensor[first : first + AT_ONCE] for name, tensor in images.image.items()}
        right += int((model(given=part).logits.argmax(1) == images.labels[first : first + AT_ONCE]).sum())
    return 100 * right / images.labels.shape[0]


class Epochs:
    """The state of the last epoch, and of the first best one by each kind of images."""

    def __init__(self, job: WatchedJob, images: dict[str, Draw]) -> None:
        self._job, self._images = job, images
        self.best: dict[str, tuple[float, dict[str, Tensor]]] = {}

    def __call__(self, metrics: Metrics) -> None:
        """Look at a model after a step; only the last one of an epoch counts."""
        epochs = self._job.resolved.epochs
        if metrics["step"] % (metrics["steps"] // epochs):
            return
        model = self._job.model
        state = {name: tensor.clone() for name, tensor in model.method.state_dict().items()}
        self.best[LAST] = (0.0, state)
        for kind in (VALIDATION, TEST):
            reached = accuracy(model, self._images[kind])
            if kind not in self.best or reached > self.best[kind][0]:
                self.best[kind] = (reached, state)


def by_rule(job: WatchedJob, rule: Rule, epochs: Epochs, images: dict[str, Draw]) -> float:
    """Test accuracy if epoch and numbers are chosen by a rule."""
    model, before = job.model, 0.0
    if rule.epoch in epochs.best:
        before, state = epochs.best[rule.epoch]
        model.method.load_state_dict(state)
    if rule.numbers is not None:
        model.method.finish(model.clip, job.drawn, images[rule.numbers])
    found = accuracy(model, images[TEST])
    return max(found, before) if rule.larger else found


def quantities(model: Model, dataset: Dataset, known: dict[Any, dict[str, Draw]]) -> dict[str, Draw]:
    """Validation and test images as what a method needs of them; methods that need the same share it."""
    key = (dataset.name, *model.names())
    if key not in known:
        splits = {VALIDATION: dataset.val, TEST: dataset.test}
        made = {kind: held_images(model, dataset, items, seed=0, workers=0) for kind, items in splits.items()}
        known[key] = {kind: draw for kind, draw in made.items() if draw is not None}
    return known[key]


def as_many(dataset: Dataset, validation: Draw, shots: int, seed: int) -> Draw:
    """Validation images, as many of each class as there are shots."""
    chosen = {item.id for item in few_shot(dataset.val, shots, seed)}
    rows = [row for row, item in enumerate(dataset.val) if item.id in chosen]
    image = {name: tensor[rows] for name, tensor in validation.image.items()}
    return replace(validation, image=image, labels=validation.labels[rows])


def measure(
    name: str, clip: FrozenClip, dataset: Dataset, shots: int, seed: int, cache: Path, known: dict[Any, Any]
) -> dict[str, Any]:
    """Test accuracies of one training by the three rules."""
    how: dict[str, Any] = {"method": name, "config": CONFIG.get(name, {}), "protocol": "few-shot"}
    made = make_job(dataset, shots=shots, seed=seed, train=Training(cached_views=10), **how)
    job = WatchedJob(**{field.name: getattr(made, field.name) for field in fields(Job)})
    found = dict(quantities(job.build(clip), dataset, known))
    found[AS_MANY] = as_many(dataset, found[VALIDATION], shots, seed)
    epochs = Epochs(job, found)
    model, _ = run_job(job, clip, cache=cache, workers=0, on_step=epochs)
    rules = {"published": PUBLISHED[name], "test": ON_TEST[name]}
    ours = accuracy(model, found[TEST])
    others = {what: by_rule(job, rule, epochs, found) for what, rule in rules.items()}
    return {"method": name, "data": dataset.name, "shots": shots, "seed": seed, "ours": ours, **others}


def summary(rows: list[dict[str, Any]]) -> str:
    """Means by method, and what the other rules bring on average."""
    lines = []
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        gains = [[row[kind] - row["ours"] for row in own] for kind in ("published", "test")]
        spread = [f"{mean(one):+.2f} ± {stdev(one):.2f}" if len(one) > 1 else f"{one[0]:+.2f}" for one in gains]
        spread = [one.replace("-", "−") for one in spread]
        ours = mean(row["ours"] for row in own)
        lines.append((f"[`{name}`](../methods/{name}.md)", f"{ours:.2f}", *spread, str(len(own))))
    return table(("method", "ours", "published rule", "on test images", "trainings"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", default="world")
    parser.add_argument("--data", default="world-textures,world-scenes,world-broad")
    parser.add_argument("--methods", default=",".join(PUBLISHED))
    parser.add_argument("--shots", default="4,16")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="folder for frozen quantities; a temporary one by default")
    parser.add_argument("--out", type=Path, help="file for the numbers; what it has is not computed again")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clip = load_clip(args.clip)
    rows = json.loads(args.out.read_text()) if args.out and args.out.exists() else []
    done = {(row["method"], row["data"], row["shots"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for data in args.data.split(","):
            dataset, known = opened(data), dict[Any, Any]()
            for seed in map(int, args.seeds.split(",")):
                for shots in map(int, args.shots.split(",")):
                    for name in args.methods.split(","):
                        if (name, data, shots, seed) in done:
                            continue
                        rows.append(measure(name, clip, dataset, shots, seed, args.cache or Path(folder), known))
                        print(json.dumps(rows[-1]), flush=True)
                        if args.out:
                            args.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(summary(rows))


if __name__ == "__main__":
    main()
