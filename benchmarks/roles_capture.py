"""Role discovery's pass over images: speed beside a plain encode_image loop, and peak memory as images grow.

Speed is a ratio of two things measured in one run, alternating, medians of repeats. Memory is the peak of a new
process that reads 2,000 or 20,000 images. Images are synthetic.

    python benchmarks/roles_capture.py --clip local-dir:FOLDER --out capture.json
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.images import ImageList, image_batches
from dear.roles.discover import first_examined_layer
from dear.roles.moments import collect_moments

BATCH = 32


def synthetic(count: int, size: int) -> ImageList:
    def draw(index: int) -> Image.Image:
        return Image.fromarray(np.random.default_rng(index).integers(0, 255, (size, size, 3), dtype=np.uint8))

    return ImageList(tuple(f"{index:06d}" for index in range(count)), draw, "synthetic")


def plain(clip: FrozenClip, images: ImageList) -> None:
    for group in image_batches(images, clip.preprocess_eval, size=BATCH):
        clip.encode_image(group.images)


def captured(clip: FrozenClip, images: ImageList) -> None:
    collect_moments(clip, images, first_layer=first_examined_layer(clip, None), batch=BATCH)


def speed(clip: FrozenClip, count: int, repeats: int) -> dict[str, float]:
    images = synthetic(count, clip.geometry.image_size)
    seconds: dict[str, list[float]] = {"plain": [], "captured": []}
    for turn in range(repeats + 1):
        for name, work in (("plain", plain), ("captured", captured)):
            start = time.perf_counter()
            work(clip, images)
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    ratios = [p / c for p, c in zip(seconds["plain"], seconds["captured"], strict=True)]
    return {
        "images": count,
        "plain_images_per_second": count / median(seconds["plain"]),
        "captured_images_per_second": count / median(seconds["captured"]),
        "ratio_median": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def peak_while_reading(clip: FrozenClip, count: int) -> float:
    """The largest resident size after any batch, in MB: importing libraries peaks higher and would hide growth."""
    page, sizes = resource.getpagesize(), [0]

    def look(position: int) -> None:
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * page)

    images = synthetic(count, clip.geometry.image_size)
    collect_moments(clip, images, first_layer=first_examined_layer(clip, None), batch=BATCH, progress=look)
    return max(sizes) / 2**20


def peak_megabytes(clip: str, pretrained: str | None, count: int) -> float:
    words = [sys.executable, __file__, "--clip", clip, "--memory-of", str(count)]
    words += ["--pretrained", pretrained] if pretrained else []
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clip", default="world")
    parser.add_argument("--pretrained")
    parser.add_argument("--memory-clip", help="backbone for the memory runs; default: the same")
    parser.add_argument("--memory-pretrained")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs=2, default=[2000, 20000])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    clip = load_clip(args.clip, args.pretrained)
    if args.memory_of:
        print(peak_while_reading(clip, args.memory_of))
        return
    found = speed(clip, args.images, args.repeats)
    print("| images/s plain | images/s captured | captured ÷ plain, median (range) |\n|---:|---:|---:|")
    spread = f"{found['ratio_median']:.2f} ({found['ratio_min']:.2f}-{found['ratio_max']:.2f})"
    print(f"| {found['plain_images_per_second']:.1f} | {found['captured_images_per_second']:.1f} | {spread} |\n")
    memory_clip = args.memory_clip or args.clip
    memory_weights = args.memory_pretrained if args.memory_clip else args.pretrained
    peaks = {str(count): peak_megabytes(memory_clip, memory_weights, count) for count in args.sizes}
    few, many = peaks.values()
    print("| images | peak memory, MB |\n|---:|---:|")
    print("\n".join(f"| {count} | {value:.0f} |" for count, value in peaks.items()))
    print(f"difference {100 * (many - few) / few:+.1f} %")
    if args.out:
        args.out.write_text(json.dumps({"clip": args.clip, "speed": found, "peak_megabytes": peaks}, indent=1) + "\n")


if __name__ == "__main__":
    main()
