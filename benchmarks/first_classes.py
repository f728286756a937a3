"""Reduce a data set in CoOp's layout to its first or to random classes, for tables that two cores can compute.

Images are linked. With `--folders` the result is a folder of photos with one folder per class, as people have it.

    python benchmarks/first_classes.py DATA/caltech-101 40 SMALL/caltech-101
    python benchmarks/first_classes.py DATA/caltech-101 20 RANDOM/caltech-101 --random 1
    python benchmarks/first_classes.py DATA/caltech-101 10 photos-1 --random 1 --folders
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

Splits = dict[str, list[tuple[str, int, str]]]
"""Image, label and class name by split."""


def reduced(splits: Splits, classes: int, seed: int | None) -> Splits:
    """The first classes by label, or random ones, numbered from zero."""
    labels = sorted({label for rows in splits.values() for _, label, _ in rows})
    if seed is not None:
        random.Random(seed).shuffle(labels)
    places = {label: place for place, label in enumerate(sorted(labels[:classes]))}
    return {
        name: [(image, places[label], words) for image, label, words in rows if label in places]
        for name, rows in splits.items()
    }


def link_photos(splits: Splits, images: Path, out: Path) -> None:
    """One folder per class, with links to all its images."""
    for image, _, words in (row for rows in splits.values() for row in rows):
        link = out / words / image.replace("/", "-")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((images / image).resolve())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with split_zhou_*.json and the images")
    parser.add_argument("classes", type=int, help="number of classes to keep, the first by label")
    parser.add_argument("--random", type=int, metavar="SEED", help="random classes instead, as a seed decides")
    parser.add_argument("--folders", action="store_true", help="make one folder per class instead of a split file")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    (split,) = args.folder.glob("split_zhou_*.json")
    selected = reduced(json.loads(split.read_text()), args.classes, args.random)
    folders = [path for path in sorted(args.folder.iterdir()) if path.is_dir()]
    args.out.mkdir(parents=True)
    if args.folders:
        link_photos(selected, folders[0], args.out)
        return
    (args.out / split.name).write_text(json.dumps(selected))
    for path in folders:
        (args.out / path.name).symlink_to(path.resolve(), target_is_directory=True)


if __name__ == "__main__":
    main()
