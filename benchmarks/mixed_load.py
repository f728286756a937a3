"""Many threads on one model: predictions with different class lists, an index that is written, and searches beside it.

Every answer is compared exactly with the one that was computed before, alone in one thread. Memory must stay flat:
the median of the last fifth of the time is compared with that of the second fifth, after everything has been used
once. Open files and temporary files are counted, too. Exit code 1 on a wrong answer, or if memory grew by more than
5 %. Linux only.

    python benchmarks/mixed_load.py --minutes 20 --out mixed-load.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import dear
from dear.errors import DearWarning
from dear.retrieval.index import read_index
from dear.world.datasets import load_world_dataset

COLORS, THINGS = ("red", "green", "blue", "yellow", "white"), ("star", "heart", "circle", "square", "ring", "cross")
LISTS, PHOTOS, PREDICTING, SEARCHING = 200, 12, 6, 1
KINDS = ("cls", "color")
NEAR = 1e-6
"""Difference of two scores of a photo: its row moves while the index is brought up to date, and sums round by place."""
EVERY = 2.0
"""Seconds between two looks at the memory."""
MOST_GROWTH = 1.05


def class_lists(count: int) -> list[tuple[str, ...]]:
    """Different lists of three to eight classes."""
    chance, words = random.Random(0), [f"a {color} {thing}" for color in COLORS for thing in THINGS]
    found: dict[tuple[str, ...], None] = {}
    while len(found) < count:
        found[tuple(chance.sample(words, chance.randint(3, 8)))] = None
    return list(found)


def make_photos(place: Path, count: int) -> list[Path]:
    world, paths = load_world_dataset("world-things"), []
    place.mkdir()
    for number in range(count):
        paths.append(place / f"{number:02}.png")
        Image.fromarray(world.item("train", number % len(world.class_names), number).render()).save(paths[-1])
    return paths


class Load:
    """The threads, what they compare with, and what they find."""

    def __init__(self, place: Path) -> None:
        self.place, self.lists = place, class_lists(LISTS)
        self.photos = make_photos(place / "photos", PHOTOS)
        self.bytes = [path.read_bytes() for path in self.photos]
        clip = dear.load_clip("world")
        self.model = dear.DeAR(clip).for_classes(self.lists[0])
        self.stop, self.wrong, self.counts = threading.Event(), list[str](), Counter[str]()
        self._lock = threading.Lock()
        self.index = place / "index"
        dear.index_images(self.place / "photos", self.index, clip=clip, kinds=KINDS, workers=0)
        self.answers = {
            (photo % PHOTOS, names): self._predict(photo % PHOTOS, names)
            for number, names in enumerate(self.lists)
            for photo in (number, number + 1)
        }
        self.asked = list(self.answers)
        self.found = {
            (photo, by): self._search(photo, by) for photo in range(len(self.photos)) for by in ("cls", "color")
        }
        self.rows = self._rows(self.index)

    def _predict(self, photo: int, names: tuple[str, ...]) -> Any:
        return self.model.predict(self.bytes[photo], names, top_k=len(names))[0].top

    def _search(self, photo: int, by: str) -> Any:
        hits = dear.search(self.model.clip, self.photos[photo], index=self.index, by=by, top_k=5)
        return [(str(hit.path), hit.score) for hit in hits]

    def _rows(self, folder: Path) -> dict[str, list[bytes]]:
        """The features of each file."""
        index = read_index(folder)
        features = [index.features(kind).numpy() for kind in index.kinds]
        return {stamp.path: [one[row].tobytes() for one in features] for row, stamp in enumerate(index.images)}

    def predicting(self, chance: random.Random) -> None:
        """One photo or several among the classes of one list."""
        photo, names = chance.choice(self.asked)
        if chance.random() < 0.8:
            self._compare("predict", self._predict(photo, names), self.answers[photo, names])
            return
        found = self.model.predict([self.bytes[photo]] * 3, names, top_k=1)
        self._compare("predict three", [one.label for one in found], [self.answers[photo, names][0][0]] * 3)

    def searching(self, chance: random.Random) -> None:
        """The nearest photos."""
        photo, by = chance.randrange(len(self.photos)), chance.choice(KINDS)
        found, expected = self._search(photo, by), self.found[photo, by]
        near = all(abs(one[1] - other[1]) < NEAR for one, other in zip(found, expected, strict=True))
        self._compare("search", [path for path, _ in found], [path for path, _ in expected] if near else found[::-1])

    def indexing(self, chance: random.Random) -> None:
        """Another index, new or over the old one, and the one that is searched, brought up to date."""
        other = self.place / "other"
        dear.index_images(self.place / "photos", other, clip=self.model.clip, kinds=KINDS, workers=0, overwrite=True)
        self._compare("index", self._rows(other), self.rows)
        os.utime(chance.choice(self.photos))
        dear.index_images(self.place / "photos", self.index, clip=self.model.clip, kinds=KINDS, workers=0)
        self._compare("index again", self._rows(self.index), self.rows)

    def _compare(self, what: str, found: object, expected: object) -> None:
        with self._lock:
            self.counts[what] += 1
            if found != expected:
                self.counts[f"{what}, wrong"] += 1
                self.wrong.append(f"{what}: {str(found)[:200]} instead of {str(expected)[:200]}")

    def run(self, work: Callable[[random.Random], None], seed: int) -> None:
        """One thread: work until the time is over."""
        chance = random.Random(seed)
        while not self.stop.is_set():
            try:
                work(chance)
            except Exception:  # noqa: BLE001  # whatever it is, it is what we look for
                with self._lock:
                    self.wrong.append(traceback.format_exc(limit=-3))


def resident() -> float:
    """Megabytes of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def main() -> None:
    """Run, print and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DearWarning)
    with tempfile.TemporaryDirectory() as temporary:
        tempfile.tempdir = str(Path(temporary) / "tmp")
        Path(tempfile.tempdir).mkdir()
        load = Load(Path(temporary))
        print(f"{len(load.answers)} answers computed alone", file=sys.stderr, flush=True)
        works = [load.predicting] * PREDICTING + [load.searching] * SEARCHING + [load.indexing]
        threads = [threading.Thread(target=load.run, args=(work, seed)) for seed, work in enumerate(works)]
        began, memory, files = time.monotonic(), list[float](), list[int]()
        for one in threads:
            one.start()
        while time.monotonic() - began < 60 * chosen.minutes:
            time.sleep(EVERY)
            memory.append(resident())
            files.append(open_files())
            if len(memory) % 30 == 0:
                print(f"{memory[-1]:.0f} MB, {files[-1]} files, {load.counts}", file=sys.stderr, flush=True)
        load.stop.set()
        for one in threads:
            one.join()
        left = sorted(path.name for path in Path(tempfile.tempdir).iterdir())
    fifth = len(memory) // 5
    early, late = statistics.median(memory[fifth : 2 * fifth]), statistics.median(memory[-fifth:])
    found = {
        "minutes": chosen.minutes,
        "threads": len(threads),
        "class lists": len(load.lists),
        "answers compared": dict(load.counts),
        "wrong": load.wrong[:20],
        "wrong in all": len(load.wrong),
        "megabytes": {"second fifth": round(early), "last fifth": round(late), "growth": round(late / early, 4)},
        "open files": {"second fifth": files[fifth], "last": files[-1]},
        "temporary files left": left,
    }
    print(json.dumps(found, indent=1))
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    if load.wrong or late > MOST_GROWTH * early:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
