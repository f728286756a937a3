"""Two processes on one folder at the same moment, for every kind of folder: one is refused or both are right.

Both are forked from one process that has everything loaded, and begin together, by turns in a new folder, resuming and
overwriting. A round is right if at least one process ended well, whoever did not was refused in a sentence, and the
folder then has the content that one process alone writes. Exit code 1 on any other round.

    python benchmarks/two_writers.py --rounds 20 --out two-writers.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dear.workflows.discover as discovering
from dear.backbone.load import load_clip
from dear.data.dataset import Dataset
from dear.data.open import open_dataset
from dear.engine.job import make_job
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from dear.errors import DearError
from dear.evaluation.cells import make_cells
from dear.evaluation.evaluate import evaluate_items
from dear.evaluation.grid import run_grid
from dear.model.load import load
from dear.model.model import Model
from dear.options.parts import Bench
from dear.paper.run import make_paper
from dear.paper.survey import Order
from dear.retrieval.index import read_index
from dear.retrieval.update import update_index

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers import TINY_CONFIGS, make_photos, varied_roles
from papers import tiny_eurosat, tiny_imagenet

FORK = multiprocessing.get_context("fork")
COSTS = {"seconds", "peak_memory_mb"}
DONE, REFUSED, FAILED = "done", "refused", "failed"
NAMED = re.compile(r"is being written by process (\d+) on \S+ since \d{4}-\d\d-\d\dT")
MODES: dict[str, dict[str, bool]] = {"new": {}, "resume": {"resume": True}, "overwrite": {"overwrite": True}}


@dataclass(frozen=True)
class Kind:
    """How a folder of one kind is filled, and its content afterwards."""

    fill: Callable[[Path, dict[str, bool]], object]
    state: Callable[[Path], str]
    modes: tuple[str, ...] = ("new", "resume", "overwrite")


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def without_costs(cell: Path) -> bytes:
    """A cell without its measurements, which differ each time."""
    content = json.loads(cell.read_text())
    return json.dumps({name: content[name] for name in content.keys() - COSTS}, sort_keys=True).encode()


def letters_as_numbers(phrases: Sequence[str]) -> Any:
    """A stand-in for the sentence model: what matters here is who writes, not what."""
    rows = [np.random.default_rng(random.Random(phrase).randrange(2**32)).normal(size=16) for phrase in phrases]
    return np.stack(rows) / np.linalg.norm(np.stack(rows), axis=1, keepdims=True)


def kinds(place: Path) -> dict[str, Kind]:
    """Every kind of folder, on a tiny CLIP and a few photos of noise."""
    (place / "clip").mkdir()
    (place / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["shallow"]}))
    name = f"local-dir:{place / 'clip'}"
    clip = load_clip(name, "random", seed=7)
    data: Dataset = open_dataset(make_photos(place / "photos", ["ant", "bee", "cow"], 4))
    few = TrainSettings(epochs=1, batch_size=2)
    job = make_job(data, shots=2, seed=1, config={"mask": "all_mixed"}, train=few)
    model: Model = run_job(job, clip)[0]
    phrases = [f"a {one} {other}" for one in ("red", "big", "old", "wet") for other in ("car", "dog", "hat", "sea")]
    (place / "pool.txt").write_text("\n".join(phrases))
    varied_roles(clip).save(place / "roles.json")
    tiny_imagenet(place / "sets")
    tiny_eurosat(place / "sets")

    def grid(folder: Path, how: dict[str, bool]) -> object:
        cells = make_cells("few-shot", [str(place / "photos")], methods=["zero_shot", "dear"], seeds=[1], shots=[1])
        cells = [cell if cell.method != "dear" else _mixed(cell) for cell in cells]
        return run_grid(
            cells, Bench(out=folder, clip=name, pretrained="random", epochs=1, batch_size=2, workers=1, **how)
        )

    def paper(folder: Path, how: dict[str, bool]) -> object:
        settings: dict[str, Any] = {"kind": "full", "clip": name, "pretrained": "random", "data_root": place / "sets"}
        settings |= {"roles": str(place / "roles.json"), "seeds": (1,), "few_shots": (1,), "images": 6, "workers": 1}
        order = Order(folder, train=TrainSettings(epochs=1, cached_views=0), jobs=1, **settings)
        return make_paper(order, if_exists=next((name for name, on in how.items() if on), "refuse"))

    def discovery(folder: Path, how: dict[str, bool]) -> object:
        settings: dict[str, Any] = {"pool": place / "pool.txt", "examples": 0, "phrases": 4}
        return discovering.discover_roles(clip, place / "photos", out=folder, **settings, **how)

    def through_cache(folder: Path, how: dict[str, bool]) -> object:
        found = evaluate_items(model, data, data.train, cache=folder)
        assert found.picks.tolist() == evaluate_items(model, data, data.train).picks.tolist()
        return found

    def rows_kept(folder: Path) -> str:
        """Every row that is there is right: reading them all again computes nothing and finds the same."""
        found = evaluate_items(model, data, data.train, cache=folder)
        return str((found.picks.tolist(), found.scores.accuracy))

    return {
        "run": Kind(
            lambda folder, how: run_job(job, clip, folder, **how),
            lambda folder: digest(*(value.numpy().tobytes() for value in load(folder, clip).state_dict().values())),
        ),
        "grid": Kind(grid, lambda folder: digest(*map(without_costs, sorted((folder / "cells").glob("*.json"))))),
        "paper": Kind(
            paper, lambda folder: digest((folder / "results.json").read_bytes()), ("new", "resume", "resume")
        ),
        "index": Kind(
            lambda folder, how: update_index(model, place / "photos", folder, overwrite=how.get("overwrite", False)),
            lambda folder: digest(read_index(folder).features_NGE.numpy().tobytes()),
        ),
        "discovery": Kind(discovery, lambda folder: digest((folder / "roles.json").read_bytes())),
        "cache": Kind(through_cache, rows_kept, ("new", "resume")),
    }


def _mixed(cell: Any) -> Any:
    return replace(cell, choices=(("mask", "all_mixed"),))


def write(kind: Kind, folder: Path, how: dict[str, bool], start: Any, outcomes: Any) -> None:
    """One of the two processes."""
    try:
        start.wait(60)
        kind.fill(folder, how)
        outcomes.put((os.getpid(), DONE, ""))
    except DearError as error:
        outcomes.put((os.getpid(), REFUSED, str(error)))
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is what we look for
        outcomes.put((os.getpid(), FAILED, f"{type(error).__name__}: {error}"))


def one_round(kind: Kind, folder: Path, mode: str, alone: str) -> tuple[str, bool]:
    """Both at once; what came of it, and whether a refusal named the other process."""
    start, outcomes = FORK.Barrier(2), FORK.Queue()
    both = [FORK.Process(target=write, args=(kind, folder, MODES[mode], start, outcomes)) for _ in range(2)]
    for process in both:
        process.start()
    found = [outcomes.get(timeout=300) for _ in both]
    for process in both:
        process.join(60)
    pids = {pid for pid, _, _ in found}
    named = [match for _, _, said in found if (match := NAMED.search(said))]
    outcomes = sorted(outcome for _, outcome, _ in found)
    if FAILED in outcomes or outcomes == [REFUSED, REFUSED]:
        return "; ".join(said for _, _, said in found if said), False
    if (state := kind.state(folder)) != alone:
        return f"the folder differs from what one process writes ({state[:12]})", False
    if any("another process" in said for _, _, said in found):
        return "a refusal does not say by whom", False
    if any(int(match[1]) not in pids for match in named):
        return "a refusal names a process that is not there", False
    return " and ".join(outcomes), bool(named)


def measure(name: str, kind: Kind, place: Path, rounds: int) -> dict[str, Any]:
    started, counts, named, wrong = time.monotonic(), Counter[str](), 0, []
    kind.fill(place / "alone", {})
    alone = kind.state(place / "alone")
    folder = place / "both"
    for number in range(rounds):
        mode = kind.modes[number % len(kind.modes)]
        if mode == "new":
            shutil.rmtree(folder, ignore_errors=True)
        verdict, names = one_round(kind, folder, mode, alone)
        counts[verdict] += 1
        named += names
        if verdict not in ("done and done", "done and refused"):
            wrong.append(f"round {number + 1}, {mode}: {verdict}")
    return {
        "kind": name,
        "rounds": rounds,
        "one refused": counts["done and refused"],
        "of them by the lock": named,
        "both right": counts["done and done"],
        "wrong": wrong,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=["run", "grid", "paper", "index", "discovery", "cache"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)  # before the fork: a child of a process with threads may hang
    warnings.simplefilter("ignore")
    discovering.load_encoder = lambda name: letters_as_numbers  # type: ignore[assignment]
    found = []
    print("kind      | rounds | one refused | of them by the lock | both right | wrong")
    with tempfile.TemporaryDirectory() as temporary:
        every = kinds(Path(temporary))
        for name in args.kinds:
            (Path(temporary) / name).mkdir()
            row = measure(name, every[name], Path(temporary) / name, args.rounds)
            found.append(row)
            counts = (row["one refused"], row["of them by the lock"], row["both right"], len(row["wrong"]))
            print(
                f"{name:<9} | {args.rounds:>6} | {counts[0]:>11} | {counts[1]:>19} | {counts[2]:>10} | {counts[3]:>5}"
            )
            for sentence in row["wrong"]:
                print(f"  {sentence}")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    if any(row["wrong"] for row in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
