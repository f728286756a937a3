"""Two processes on one folder at the same moment, for every kind of folder: one is refused or both are right.

Both are forked from one process that has everything loaded, and begin together, by turns in a new folder, resuming and
overwriting. A round is right if at least one process ended well, whoever did not was refused in a sentence, and the
folder then has the content that one process alone writes. Exit code 1 on any other round.

    python benchmarks/two_writers.py --rounds 20 --out two-writers.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from dear.errors import DearError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from folder_kinds import How, Kind, Kinds, modes

FORK = multiprocessing.get_context("fork")
DONE, REFUSED, FAILED = "done", "refused", "failed"
NAMED = re.compile(r"is being written by process (\d+) on \S+ since \d{4}-\d\d-\d\dT")


def write(kind: Kind, folder: Path, how: How, start: Any, outcomes: Any) -> None:
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
    both = [FORK.Process(target=write, args=(kind, folder, modes()[mode], start, outcomes)) for _ in range(2)]
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
    parser.add_argument("--kinds", nargs="+", help="by default all")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    print("kind       | rounds | one refused | of them by the lock | both right | wrong")
    with tempfile.TemporaryDirectory() as temporary:
        kinds = Kinds(Path(temporary) / "shared")
        every = kinds.every()
        for name in args.kinds or every:
            (Path(temporary) / name).mkdir()
            with kinds.ready():
                row = measure(name, every[name], Path(temporary) / name, args.rounds)
            found.append(row)
            counts = (row["one refused"], row["of them by the lock"], row["both right"], len(row["wrong"]))
            print(
                f"{name:<10} | {args.rounds:>6} | {counts[0]:>11} | {counts[1]:>19} | {counts[2]:>10} | {counts[3]:>5}",
                flush=True,
            )
            for sentence in row["wrong"]:
                print(f"  {sentence}")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    if any(row["wrong"] for row in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
