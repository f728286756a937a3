"""Kill real commands with SIGKILL at random moments, resume them, and compare with commands that nothing happened to.

Each command runs in a folder of its own, with its home, cache and temporary files inside. Every other kill is aimed at
the time after the command has begun to write. After each kill no process of it may live on. The last run must end
well, with the same content as an undisturbed one, and leave no file that an undisturbed one does not leave. Leftovers
are made two hours older before that, as only those are removed that no living process can still need. Exit code 1 on
any flaw. Linux only.

    python benchmarks/kill_storm.py --kills 6 --out kill-storm.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from dear.retrieval.index import read_index
from dear.world.datasets import load_world_dataset

KILLS_A_FOLDER = 5
POLL, PATIENCE = 0.01, 5.0
"""Seconds between two looks at a process, and within which the processes of a killed command must end."""
TIMES = {"seconds", "encoding_seconds", "training_seconds", "peak_memory_mb", "made", "estimated"}
RANDOM = re.compile(r"(?<=segment-)[0-9a-f]{16}|(?<=features-)[0-9a-f]{16}|\b[0-9a-f]{32}\b")
TWO_HOURS = 7200


@dataclass(frozen=True)
class Command:
    """What is typed, how it is typed again after a kill, and the content that must be the same."""

    words: tuple[str, ...]
    again: tuple[str, ...]
    state: Callable[[Path], object]
    first: tuple[str, ...] = ()
    """What is in the folder before, made by another command."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def timeless(content: Any) -> Any:
    """JSON without what a clock or a memory meter measured."""
    if isinstance(content, dict):
        return {name: timeless(value) for name, value in content.items() if name not in TIMES}
    return [timeless(one) for one in content] if isinstance(content, list) else content


def documents(folder: Path, pattern: str) -> dict[str, Any]:
    found = sorted(folder.glob(pattern))
    assert found, f"{folder} has no {pattern}"
    return {path.relative_to(folder).as_posix(): timeless(json.loads(path.read_text())) for path in found}


def hashes(folder: Path, *patterns: str) -> dict[str, str]:
    found = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    assert found, f"{folder} has none of {patterns}"
    return {path.relative_to(folder).as_posix(): sha256(path) for path in found}


def steps(folder: Path) -> list[int]:
    if not (folder / "metrics.jsonl").exists():  # a method without gradient steps
        return []
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def run_state(folder: Path) -> object:
    return hashes(folder, "adapter_model.safetensors", "adapter_config.json", "shots.json", "README.md"), steps(folder)


def grid_state(folder: Path) -> object:
    return documents(folder, "cells/*.json"), hashes(folder, "runs/*/adapter_model.safetensors")


def compare_state(folder: Path) -> object:
    return grid_state(folder), documents(folder, "compare.json")


def auto_state(folder: Path) -> object:
    return run_state(folder), documents(folder, "auto.json")


def index_state(folder: Path) -> object:
    index = read_index(folder)
    features = [index.features(kind).numpy() for kind in index.kinds]
    rows = [hashlib.sha256(b"".join(one[row].tobytes() for one in features)).hexdigest() for row in range(len(index))]
    return sorted(zip((stamp.path for stamp in index.images), rows, strict=True))


def discovery_state(folder: Path) -> object:
    return hashes(folder, "roles*.json", "*.svg", "index*.html"), documents(folder, "discovery.json")


def export_state(folder: Path) -> object:
    return hashes(folder, "*.onnx", "*.json")


def commands(photos: Path, run: Path) -> dict[str, Command]:
    """The commands of the storm, each small enough to take seconds."""
    one, few = ("--threads", "1", "--workers", "1"), ("--shots", "2", "--seeds", "1", "--epochs", "1")
    world = ("--clip", "world")
    train = ("train", str(photos), *world, "--epochs", "3", "--shots", "4", *one, "--out", "out")
    auto = ("train", str(photos), *world, "--method", "auto", "--epochs", "2", "--budget", "1h", "--cached-views", "2")
    auto += ("--candidates", "tip_adapter,linear_probe,clip_adapter", *one, "--out", "out")
    grid = (*world, "--data", str(photos), *few, *one, "--out", "out", "--methods", "zero_shot,coop,dear,tip_adapter_f")
    index = ("search", "index", str(photos), *world, "--threads", "1", "--out", "out")
    discover = ("roles", "discover", *world, "--images", str(photos), "--pool", "world", "--examples", "4")
    discover += ("--threads", "1", "--out", "out")
    export = ("export", str(run), "--onnx", "out", "--threads", "1", "--overwrite")
    bench, compare = ("bench", "few-shot", *grid, "--jobs", "2"), ("compare", *grid)
    replace = (*train, "--overwrite")
    return {
        "train": Command(train, (*train, "--resume"), run_state),
        "train --overwrite": Command(replace, replace, run_state, first=(*train, "--seed", "2")),
        "bench --jobs 2": Command(bench, (*bench, "--resume"), grid_state),
        "search index": Command(index, index, index_state),
        "roles discover": Command(discover, (*discover, "--resume"), discovery_state),
        "compare": Command(compare, (*compare, "--resume"), compare_state),
        "train --method auto": Command(auto, (*auto, "--resume"), auto_state),
        "export --onnx": Command(export, export, export_state, first=(*export, "--classes", "cat,dog")),
    }


class Box:
    """A folder in which a command runs, with its home, cache and temporary files."""

    def __init__(self, place: Path) -> None:
        self.place, self.mark = place, secrets.token_hex(8)
        for name in ("work", "home", "tmp", "cache"):
            (place / name).mkdir(parents=True)
        self.env = {**os.environ, "HOME": str(place / "home"), "TMPDIR": str(place / "tmp")}
        self.env |= {"DEAR_CACHE": str(place / "cache"), "DEAR_STORM": self.mark, "OMP_NUM_THREADS": "1"}

    @property
    def out(self) -> Path:
        return self.place / "work" / "out"

    def begin(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "dear", *words],
            cwd=self.place / "work",
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def written(self) -> set[tuple[str, int]]:
        """Names and times of everything in the box, whatever it is."""
        found = set()
        for path in self.place.rglob("*"):
            try:
                found.add((str(path), path.lstat().st_mtime_ns))
            except FileNotFoundError:
                continue
        return found

    def names(self) -> Counter[str]:
        """The names of all files, without what is random in them."""
        paths = (path.relative_to(self.place).as_posix() for path in self.place.rglob("*") if "home" not in path.parts)
        return Counter(RANDOM.sub("*", path) for path in paths)

    def age(self) -> None:
        """Make hidden files and folders older, as if the kill had been two hours ago."""
        then = time.time() - TWO_HOURS
        for path in self.place.rglob("*"):
            if any(part.startswith(".") for part in path.relative_to(self.place).parts) or "tmp" in path.parts:
                os.utime(path, (then, then), follow_symlinks=False)

    def orphans(self) -> list[int]:
        """Processes of this box that live."""
        found = []
        for one in Path("/proc").glob("[0-9]*"):
            try:
                if f"DEAR_STORM={self.mark}".encode() in (one / "environ").read_bytes().split(b"\0"):
                    found.append(int(one.name))
            except OSError:
                continue
        return found


def finish(box: Box, words: Sequence[str]) -> float:
    """Run a command to its end; seconds that it took."""
    began = time.perf_counter()
    process = box.begin(words)
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"dear {' '.join(words)} failed with {process.returncode}: {said.decode()[-2000:]}")
    return time.perf_counter() - began


def kill_once(box: Box, words: Sequence[str], usual: float, chance: random.Random, *, late: bool) -> str | None:
    """Kill a command at a random moment; what it had done by then, or None if it was done."""
    before, process, began = box.written(), box.begin(words), time.perf_counter()
    begun = None if late else began
    wait = chance.random() * usual * (0.6 if late else 1.0)
    while process.poll() is None and (begun is None or time.perf_counter() - begun < wait):
        if begun is None and box.written() != before:
            begun = time.perf_counter()
        time.sleep(POLL)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    if process.returncode == 0:
        return None
    if process.returncode > 0:
        raise SystemExit(f"dear {' '.join(words)} failed with {process.returncode}: {said.decode()[-2000:]}")
    return "writing" if box.written() != before else "before it wrote"


def flaws_of(box: Box, command: Command, usual: object, usual_names: Counter[str]) -> list[str]:
    """What is wrong after a command was killed, resumed and done."""
    found = [] if command.state(box.out) == usual else ["another content"]
    more = box.names()
    return found + [f"{name} left behind" for name in sorted(more) if name not in usual_names]


def storm(name: str, command: Command, place: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """Kill one command several times, a few times in each folder."""
    alone = new_box(place / "alone", command)
    usual = finish(alone, command.words)
    state, names = command.state(alone.out), alone.names()
    landed, flaws, folders, done = Counter[str](), list[str](), 0, 0
    while landed.total() < kills:
        box = new_box(place / f"killed-{folders}", command)
        folders += 1
        words: tuple[str, ...] = command.words
        for _ in range(min(KILLS_A_FOLDER, kills - landed.total())):
            where = kill_once(box, words, usual, chance, late=landed.total() % 2 == 1)
            if where is None:
                done += 1
                break
            landed[where] += 1
            deadline = time.monotonic() + PATIENCE
            while (left := box.orphans()) and time.monotonic() < deadline:
                time.sleep(0.1)
            flaws += [f"process {one} lives on" for one in left]
            for one in left:
                os.kill(one, signal.SIGKILL)
            words = command.again
        box.age()
        finish(box, command.again)
        flaws += flaws_of(box, command, state, names)
    return {
        "command": name,
        "kills": landed.total(),
        "kills by place": dict(landed),
        "folders": folders,
        "done before the kill": done,
        "flaws": flaws,
        "seconds undisturbed": round(usual, 1),
    }


def new_box(place: Path, command: Command) -> Box:
    box = Box(place)
    if command.first:
        finish(box, command.first)
    return box


def make_photos(place: Path, classes: int, each: int) -> Path:
    """Photos of the embedded world in class folders."""
    world = load_world_dataset("world-textures")
    for label in range(classes):
        folder = place / world.class_names[label]
        folder.mkdir(parents=True)
        for number in range(each):
            Image.fromarray(world.item("train", label, number).render()).save(folder / f"{number}.png")
    return place


def main() -> None:
    """Run the storm, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=6, help="per command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="+", help="names of commands; by default all")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    rows = []
    print("| command | kills | while writing | folders | flaws | seconds undisturbed |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        photos, made = make_photos(root / "photos", classes=4, each=8), Box(root / "made")
        every = commands(photos, made.out)
        if "export --onnx" in (chosen.commands or every):
            finish(made, every["train"].words)
        for number, name in enumerate(chosen.commands or every):
            row = storm(name, every[name], root / str(number), chosen.kills, random.Random(f"{chosen.seed} {name}"))
            rows.append(row)
            counts = row["kills"], row["kills by place"].get("writing", 0), row["folders"], len(row["flaws"])
            print(f"| {name} | {' | '.join(map(str, counts))} | {row['seconds undisturbed']} |", flush=True)
            for flaw, count in Counter(row["flaws"]).items():
                print(f"  {count} × {flaw}", flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps({"seed": chosen.seed, "rows": rows}, indent=1) + "\n")
    if any(row["flaws"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
