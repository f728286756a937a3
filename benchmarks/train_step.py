"""A training step beside a plain implementation's, its peak memory, and evaluation beside OpenCLIP's encode_image.

The plain way is `tests/reference.py`: 77 text positions, every layer of both towers every step, a separate pass through
the frozen model. It is spared what no one would repeat: prompts are tokenized and masks are built once. Ours is
measured live (from images) and with cached views (from fp16 rows in a `FeatureStore`). A step is forward, loss,
backward and AdamW; a speed is the median of ratios of steps taken in turn in one run. Images and weights' values
do not matter.

    python benchmarks/train_step.py --clip ViT-B-16-quickgelu --pretrained random --out train-step.json
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from class_words import class_names
from torch import Tensor
from train_step_report import report

from dear.backbone.clip import FrozenClip
from dear.backbone.frozen import States, shape_of
from dear.backbone.load import load_clip
from dear.data.prompts import DEFAULT_TEMPLATE
from dear.engine.feature_store import FeatureStore, store_description
from dear.methods.base import Batch
from dear.model.load import DeAR
from dear.model.model import Model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import reference as plain
from helpers import move_parameters, varied_roles
from oracle import TOLERANCE, relative_error

Pass = Callable[[], tuple[Tensor, Tensor]]
"""Logits and loss of a batch."""


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass
class Stopwatch:
    """A clock, and the time spent in the plain way's frozen text pass, which a less plain trainer would run once."""

    now: Callable[[], float]
    seconds: float = 0.0

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds that some work takes."""
        start = self.now()
        work()
        return self.now() - start


def spread(ratios: list[float]) -> dict[str, float]:
    return {"median": median(ratios), "min": min(ratios), "max": max(ratios)}


def build(clip: FrozenClip, names: list[str]) -> Model:
    """A model with every role among its heads, as some training would leave it."""
    model = DeAR(clip, varied_roles(clip)).for_classes(names)
    move_parameters(model)
    return model


def batch_of(clip: FrozenClip, batch: int, classes: int) -> tuple[Tensor, Tensor]:
    size = clip.geometry.image_size
    images = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    return images, torch.arange(batch) * 7 % classes


def remembered(work: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function, with cached results."""
    results: dict[str, Tensor] = {}

    def once(*arguments: Any, **named: Any) -> Tensor:
        key = repr((arguments, named))
        if key not in results:
            results[key] = work(*arguments, **named)
        return results[key]

    return once


def spare_the_plain_way(clip: FrozenClip, now: Callable[[], float]) -> Stopwatch:
    """Tokenize prompts and build masks once, and time its frozen text pass."""
    plain.role_mask = remembered(plain.role_mask)
    clip.tokenizer = remembered(clip.tokenizer)
    encode_text, watch = clip.model.encode_text, Stopwatch(now)

    def encode(*arguments: Any, **named: Any) -> Tensor:
        start = now()
        features: Tensor = encode_text(*arguments, **named)
        watch.seconds += now() - start
        return features

    clip.model.encode_text = encode
    return watch


def plain_pass(model: Model, images: Tensor, labels: Tensor, names: list[str]) -> Pass:
    prompts = [DEFAULT_TEMPLATE.replace("{}", name) for name in names]

    def run() -> tuple[Tensor, Tensor]:
        outputs, terms = plain.reference(model, images, labels, prompts)
        return outputs["logits"], terms["total"]

    return run


def our_pass(model: Model, labels: Tensor, states: Callable[[], States]) -> Pass:
    batch = Batch(labels, size=labels.shape[0])

    def run() -> tuple[Tensor, Tensor]:
        out = model(given=states(), batch=batch)
        return out.logits, model.method.loss(out, batch)["total"]

    return run


def kept(cache: Path, clip: FrozenClip, states: States) -> dict[str, FeatureStore]:
    stores = {}
    for name, rows in states.items():
        stores[name] = FeatureStore.open(cache, store_description(clip, name, "view 1"), shape_of(clip.vision, name))
        stores[name].put([str(index) for index in range(len(rows))], rows)
    return stores


def results_of(model: Model, work: Pass) -> dict[str, Tensor]:
    """Logits, loss and every gradient."""
    model.zero_grad()
    logits, total = work()
    total.backward()
    gradients = {f"gradient of {name}": p.grad for name, p in model.trainable().items() if p.grad is not None}
    found = {"logits": logits.detach(), "loss": total.detach(), **gradients}
    model.zero_grad()
    return found


def worst(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, float]:
    errors = {name: relative_error(ours[name], value) for name, value in theirs.items()}
    of_gradients = [error for name, error in errors.items() if name.startswith("gradient")]
    gradients = float(torch.tensor(of_gradients, dtype=torch.float64).max())  # Python's max may drop a NaN
    return {"logits": errors["logits"], "loss": errors["loss"], "gradients": gradients}


def agreement(model: Model, passes: Mapping[str, Pass], rounded: Pass) -> dict[str, dict[str, float]]:
    """Largest relative errors; the first two must be small, the others say what fp16 costs."""
    found = {name: results_of(model, work) for name, work in passes.items()}
    errors = {
        "live against plain": worst(found["live"], found["plain"]),
        "cached against ours from the same rounded view": worst(found["cached"], results_of(model, rounded)),
        "cached against live (fp16's share)": worst(found["cached"], found["live"]),
    }
    for name in list(errors)[:2]:
        if wrong := {what: error for what, error in errors[name].items() if not error <= TOLERANCE}:
            raise SystemExit(f"{name}: relative errors above {TOLERANCE}: {wrong}")
    return errors


def measure_steps(clip: FrozenClip, watch: Stopwatch, classes: int, batch: int, repeats: int) -> dict[str, Any]:
    """Seconds of a step each way, taken in turn, and how well the ways agree."""
    names = class_names(classes)
    model = build(clip, names)
    images, labels = batch_of(clip, batch, classes)
    setup = watch.timed(model.frozen_parts)
    states = model.states(images, training=True)
    keys = [str(index) for index in range(batch)]
    with tempfile.TemporaryDirectory() as cache:
        stores = kept(Path(cache), clip, states)
        passes = {
            "plain": plain_pass(model, images, labels, names),
            "live": our_pass(model, labels, lambda: model.states(images, training=True)),
            "cached": our_pass(model, labels, lambda: {name: store.get(keys) for name, store in stores.items()}),
        }
        rounded = {name: value.half().float() for name, value in states.items()}
        errors = agreement(model, passes, our_pass(model, labels, lambda: rounded))
        seconds = alternate(model, passes, watch, repeats)
    ways = [way for way in passes if way != "plain"]
    ratios = {way: [p / o for p, o in zip(seconds["plain"], seconds[way], strict=True)] for way in ways}
    lean = [p - t for p, t in zip(seconds["plain"], seconds["plain_frozen_text"], strict=True)]
    lean_ratios = {way: [p / o for p, o in zip(lean, seconds[way], strict=True)] for way in ways}
    lengths = clip.text.tokenize([DEFAULT_TEMPLATE.replace("{}", name) for name in names]).end_C + 1
    return {
        "classes": classes,
        "prompt_tokens_longest": int(lengths.max()),
        "prompt_tokens_mean": float(lengths.float().mean()),
        "frozen_text_seconds": setup,
        "errors": errors,
        "median_seconds": {way: median(times) for way, times in seconds.items()},
        "plain_over_ours": {way: spread(values) for way, values in ratios.items()},
        "plain_without_frozen_text_over_ours": {way: spread(values) for way, values in lean_ratios.items()},
    }


def alternate(model: Model, passes: Mapping[str, Pass], watch: Stopwatch, repeats: int) -> dict[str, list[float]]:
    """Seconds of whole steps; the first round warms up."""
    optimizer = torch.optim.AdamW(model.trainable().values(), lr=1e-5, weight_decay=5e-4)
    seconds: dict[str, list[float]] = {way: [] for way in [*passes, "plain_frozen_text"]}
    for turn in range(repeats + 1):
        for way, work in passes.items():
            watch.seconds = 0.0
            taken = watch.timed(partial(take_step, optimizer, work))
            if turn:
                seconds[way].append(taken)
            if turn and way == "plain":
                seconds["plain_frozen_text"].append(watch.seconds)
    return seconds


def take_step(optimizer: torch.optim.Optimizer, work: Pass) -> None:
    optimizer.zero_grad()
    work()[1].backward()
    optimizer.step()


@torch.inference_mode()
def measure_evaluation(clip: FrozenClip, watch: Stopwatch, classes: int, batch: int, repeats: int) -> dict[str, Any]:
    """Images per second: ours with cached class features, and OpenCLIP's encode_image alone."""
    model = build(clip, class_names(classes))
    images, _ = batch_of(clip, batch, classes)
    seconds: dict[str, list[float]] = {"open_clip": [], "ours": []}
    for turn in range(repeats + 1):
        theirs = watch.timed(lambda: clip.model.encode_image(images))
        ours = watch.timed(lambda: model(images))
        if turn:
            seconds["open_clip"].append(theirs)
            seconds["ours"].append(ours)
    return {
        "images": batch,
        "images_per_second": {way: batch / median(times) for way, times in seconds.items()},
        "ours_over_open_clip": spread([t / o for t, o in zip(seconds["open_clip"], seconds["ours"], strict=True)]),
    }


def status(field: str) -> float:
    """A size of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def peak_of_a_step(clip: FrozenClip, way: str, classes: int, batch: int) -> float:
    """MB that a process grows by at most during one step; ours with the frozen part of the classes."""
    names = class_names(classes)
    model = build(clip, names)
    images, labels = batch_of(clip, batch, classes)
    optimizer = torch.optim.AdamW(model.trainable().values(), lr=1e-5, weight_decay=5e-4)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS:")
    if way == "plain":
        take_step(optimizer, plain_pass(model, images, labels, names))
    else:
        take_step(optimizer, our_pass(model, labels, lambda: model.states(images, training=True)))
    return status("VmHWM:") - before


def measure_memory(given: argparse.Namespace, classes: int) -> dict[str, Any]:
    """Each way in a process of its own."""
    peaks: dict[str, float] = {}
    for way in ("plain", "ours"):
        words = [sys.executable, __file__, "--clip", given.clip, "--pretrained", given.pretrained, "--memory-of", way]
        words += ["--classes", str(classes), "--batch", str(given.batch), "--threads", str(given.threads)]
        peaks[way] = float(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return {"classes": classes, "megabytes": peaks, "ours_over_plain": peaks["ours"] / max(peaks["plain"], 1e-9)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", default="ViT-B-16-quickgelu")
    parser.add_argument("--pretrained", default="random")
    parser.add_argument("--classes", type=int, nargs="+", default=[500, 24])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--eval-batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="cpu on a machine that others use")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory-of", choices=["plain", "ours"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clip = load_clip(given.clip, given.pretrained)
    watch = spare_the_plain_way(clip, CLOCKS[given.clock])
    most = max(given.classes)
    if given.memory_of:
        print(peak_of_a_step(clip, given.memory_of, most, given.batch))
        return
    found = {
        "clip": given.clip,
        "pretrained": given.pretrained,
        "batch": given.batch,
        "threads": given.threads,
        "clock": given.clock,
        "repeats": given.repeats,
        "torch": torch.__version__,
        "steps": [measure_steps(clip, watch, count, given.batch, given.repeats) for count in given.classes],
        "memory": measure_memory(given, most),
        "evaluation": measure_evaluation(clip, watch, most, given.eval_batch, given.repeats),
    }
    print(report(found))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
