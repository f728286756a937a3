"""Kill `dear train` at random moments, resume it each time, and compare the adapter's bytes with an undisturbed run's.

Kills are aimed in turn at the start-up, the steps and the end (last checkpoint, saving, exit); where each one landed is
counted afterwards from what the run had written. Several kills hit one run before it may finish. Undisturbed runs with
0, 2 and 4 reading threads are compared too. Exit code 1 on any difference.

    python benchmarks/kill_and_resume.py --kills 30 --out kill-and-resume.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

BEFORE, DURING, AFTER = "before the first step", "during steps", "after the last step"
AIMS = (BEFORE, DURING, AFTER, DURING)
WORKERS = (0, 2, 4)
KILLS_A_RUN = 6
POLL = 0.002


@dataclass(frozen=True)
class Undisturbed:
    """What a run leaves when nothing happens to it, and how long its parts take."""

    sha256: str
    steps: int
    start: float
    stepping: float
    end: float


def command(folder: Path, options: Sequence[str], workers: int = 2, *, resume: bool = False) -> list[str]:
    words = ["train", *options, "--out", str(folder), "--workers", str(workers)]
    return [sys.executable, "-m", "dear", *words, *(["--resume"] if resume else [])]


def begin(words: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"dear train failed with {process.returncode}: {said.decode().strip()}")


def steps_told(folder: Path) -> list[int]:
    """Steps that the log tells of; a torn line tells of none."""
    steps = []
    path = folder / "metrics.jsonl"
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            steps.append(int(json.loads(line)["step"]))
        except ValueError:
            continue
    return steps


def adapter(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def undisturbed(folder: Path, options: Sequence[str], workers: int) -> Undisturbed:
    start = time.perf_counter()
    process = begin(command(folder, options, workers))
    seen: list[tuple[float, int]] = []
    while process.poll() is None:
        if (count := len(steps_told(folder))) > (seen[-1][1] if seen else 0):
            seen.append((time.perf_counter() - start, count))
        time.sleep(POLL)
    total = time.perf_counter() - start
    finish(process)
    first, last = seen[0][0], seen[-1][0]
    return Undisturbed(adapter(folder), len(steps_told(folder)), first, last - first, total - last)


def log_size(folder: Path) -> tuple[int, int]:
    path = folder / "metrics.jsonl"
    facts = path.stat() if path.exists() else None
    return (facts.st_size, facts.st_mtime_ns) if facts else (0, 0)


def kill_once(words: Sequence[str], folder: Path, aim: str, usual: Undisturbed, chance: random.Random) -> str | None:
    """Start or resume a run and kill it; say where that hit, or None where the run was done before."""
    before, told_before = log_size(folder), steps_told(folder)
    step = chance.randrange(1, usual.steps) if aim == DURING else usual.steps
    pause = chance.random() * {BEFORE: usual.start, DURING: usual.stepping / usual.steps, AFTER: usual.end}[aim]
    if aim == AFTER and usual.steps in told_before:
        pause += usual.start  # no further progress is reported, and the start-up comes first
    process, reached = begin(words), None
    while process.poll() is None:
        fresh = log_size(folder) != before
        if reached is None and (aim == BEFORE or step in (steps_told(folder) if fresh or aim == AFTER else ())):
            reached = time.perf_counter()
        if reached is not None and (time.perf_counter() - reached >= pause or (aim == BEFORE and fresh)):
            break
        time.sleep(POLL)
    process.kill()
    _, said = process.communicate()
    if process.returncode == 0:
        return None
    if process.returncode > 0:
        raise SystemExit(f"dear train failed with {process.returncode}: {said.decode().strip()}")
    if usual.steps in steps_told(folder):
        return AFTER
    return BEFORE if log_size(folder) == before else DURING


def flawless(folder: Path, usual: Undisturbed) -> list[str]:
    """What is wrong with a run that was killed and resumed until it was done."""
    flaws = [] if adapter(folder) == usual.sha256 else ["another adapter"]
    if steps_told(folder) != list(range(1, usual.steps + 1)):
        flaws.append("steps missing from the log, or there twice")
    return flaws + [f"{path.name} left behind" for path in folder.glob(".*")]


def killed_runs(
    root: Path, options: Sequence[str], usual: Undisturbed, kills: int, seed: int
) -> tuple[Counter[str], list[list[str]]]:
    """Kill runs until there were enough kills; return where they landed, and the flaws of every run."""
    chance, aims = random.Random(seed), cycle(AIMS)
    landed: Counter[str] = Counter()
    flaws: list[list[str]] = []
    while landed.total() < kills:
        folder = root / f"killed-{len(flaws)}"
        share = sorted(
            (next(aims) for _ in range(min(KILLS_A_RUN, kills - landed.total()))), key=lambda aim: aim == AFTER
        )
        for aim in share:
            where = kill_once(command(folder, options, resume=True), folder, aim, usual, chance)
            if where is None:
                break
            landed[where] += 1
            print(f"kill {landed.total()} of {kills}, aimed {aim}: {where}", file=sys.stderr)
        finish(begin(command(folder, options, resume=True)))
        flaws.append(flawless(folder, usual))
    return landed, flaws


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="world-textures")
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("more", nargs="*", help="further words for dear train, after --")
    return parser.parse_args()


def main() -> None:
    """Run everything in a temporary folder and print a table."""
    chosen = arguments()
    options = [chosen.data, "--set", "mask=all_mixed", "--half", "base", "--shots", str(chosen.shots)]
    options += ["--epochs", str(chosen.epochs), *chosen.more]
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        runs = {workers: undisturbed(root / f"workers-{workers}", options, workers) for workers in WORKERS}
        usual = runs[2]
        landed, flaws = killed_runs(root, options, usual, chosen.kills, chosen.seed)
    same_workers = {workers: run.sha256 == usual.sha256 for workers, run in runs.items()}
    print("| what | runs | result |\n|---|---|---|")
    for workers, same in same_workers.items():
        print(f"| undisturbed, {workers} reading threads | 1 | {'same bytes' if same else 'DIFFERENT'} |")
    wrong = [flaw for one in flaws for flaw in one]
    verdict = "; ".join(sorted(set(wrong))) if wrong else "same bytes, whole log, nothing left behind"
    print(f"| {landed.total()} kills in {usual.steps}-step runs, resumed | {len(flaws)} | {verdict} |")
    for where in (BEFORE, DURING, AFTER):
        print(f"| kills {where} | | {landed[where]} |")
    if chosen.out:
        found = {"command": options, "adapter_sha256": usual.sha256, "steps": usual.steps, "kills": dict(landed)}
        found |= {"same_with_workers": same_workers, "flaws_of_killed_runs": flaws}
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if wrong or not all(same_workers.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
