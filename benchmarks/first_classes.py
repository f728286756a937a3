"""Reduce a data set in CoOp's layout to its first or to random classes, for tables that two cores can compute.

Images are linked.

    python benchmarks/first_classes.py DATA/caltech-101 40 SMALL/caltech-101
    python benchmarks/first_classes.py DATA/caltech-101 20 RANDOM/caltech-101 --random 1
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with split_zhou_*.json and the images")
    parser.add_argument("classes", type=int, help="number of classes to keep, the first by label")
    parser.add_argument("--random", type=int, metavar="SEED", help="random classes instead, as a seed decides")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    for path in sorted(args.folder.iterdir()):
        if path.name.startswith("split_zhou_") and path.suffix == ".json":
            splits = json.loads(path.read_text())
            labels = sorted({row[1] for rows in splits.values() for row in rows})
            if args.random is not None:
                random.Random(args.random).shuffle(labels)
            places = {label: place for place, label in enumerate(sorted(labels[: args.classes]))}
            selected = {
                name: [[image, places[label], words] for image, label, words in rows if label in places]
                for name, rows in splits.items()
            }
            (args.out / path.name).write_text(json.dumps(selected))
        elif path.is_dir():
            (args.out / path.name).symlink_to(path.resolve(), target_is_directory=True)


if __name__ == "__main__":
    main()
