"""What CLIPs of several kinds cost in their real size, with random weights: features, and a training step.

Stock is the forward of both towers by their own code, without gradients: a batch of images, and one prompt per class.
A step is forward, loss, backward and update of DeAR (`mask=all_mixed`), or of CoOp if the image tower's layers cannot
be reached, on the same images and classes. Times are medians of turns taken one after the other in one run, in seconds
that one thread computed. Peak memory is what the process grows by in the first turn of each, weights not counted.
Tokenizers from the hub are replaced by one with a token per word, so that nothing is downloaded.

    python benchmarks/backbone_sizes.py --out results/backbone-sizes.json
    python benchmarks/results_tables.py --write    # puts the tables into docs/how-to/which-clip.md
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import open_clip
import torch
from class_words import class_names
from clip_tables import Facts, cost_table, step_table
from method_step import build, images_of, peak, stepper

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.backbone.support import Can
from dear.engine.feed import IMAGES
from dear.workflows.backbones import find_backbone

BACKBONES = ("ViT-B-16", "ViT-B-16-SigLIP2-256", "EVA02-B-16", "PE-Core-B-16", "ViTamin-S", "RN50-quickgelu")
BATCH, CLASSES = 2, 8


class WordTokenizer:
    """One token per word and no start token, in the place of a tokenizer from the hub."""

    def __init__(self, name: str) -> None:
        text = (open_clip.get_model_config(name) or {})["text_cfg"]
        self.context, self.words = text["context_length"], text["vocab_size"] - 1

    def __call__(self, texts: Sequence[str], context_length: int | None = None) -> torch.Tensor:
        found = torch.zeros(len(texts), context_length or self.context, dtype=torch.long)
        for row, text in zip(found, texts, strict=True):
            ids = [1 + zlib.crc32(word.encode()) % self.words for word in text.split()][: len(row)]
            row[: len(ids)] = torch.tensor(ids, dtype=torch.long)
        return found


def load(name: str) -> FrozenClip:
    """A CLIP of random weights; nothing is downloaded."""
    stand_in = patch.object(open_clip, "get_tokenizer", lambda *_, **__: WordTokenizer(name))
    with stand_in if find_backbone(name).extra else nullcontext():
        return load_clip(name, "random")


def measure(name: str, turns: int) -> Facts:
    """Seconds and peak memory of a CLIP."""
    clip = load(name)
    method = "dear" if Can.IMAGE_LAYERS in clip.can else "coop"
    model = build(method, clip, CLASSES)
    images = images_of(clip, BATCH, CLASSES, model.method.needs.views)
    pictures = images.inputs[IMAGES][:BATCH]
    prompts = [f"a photo of a {words}." for words in class_names(CLASSES)]
    ways = {
        "stock image": lambda: clip.encode_image(pictures),
        "stock text": lambda: clip.encode_text(prompts),
        "our text": lambda: clip.text.encode(prompts),
        "step": stepper(model, images, cached=False, every_step=False),
    }
    megabytes = {way: peak(work) for way, work in ways.items()}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, work in ways.items():
            start = time.process_time()
            work()
            seconds[way].append(time.process_time() - start)
    return {
        "backbone": name,
        "method": method,
        "pixels": clip.geometry.image_size,
        "tokens": clip.geometry.context_length,
        "parameters": sum(one.numel() for one in clip.model.parameters()),
        "trained": sum(one.numel() for one in model.method.trained.values()),
        "seconds": {way: [round(one, 4) for one in times] for way, times in seconds.items()},
        "megabytes": {way: round(one) for way, one in megabytes.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", default=",".join(BACKBONES))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    facts: Facts = {"batch": BATCH, "classes": CLASSES, "threads": 1, "clock": "cpu", "torch": torch.__version__}
    facts["rows"] = []
    for name in args.backbones.split(","):
        facts["rows"].append(measure(name, args.turns))
        gc.collect()
        print(step_table({**facts, "rows": facts["rows"][-1:]}).splitlines()[-1], file=sys.stderr, flush=True)
    print(cost_table(facts), step_table(facts), sep="\n\n")
    if args.out:
        args.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
