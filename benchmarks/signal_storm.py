"""Stop real commands with SIGINT and SIGTERM at random moments, resume them, and compare with undisturbed ones.

The moments are spread over the imports, the start, the middle and the end of each command; every fourth Ctrl-C is
pressed twice. A stopped command must end with the signal's exit code (130 or 143) and say one sentence or nothing,
never a traceback; no process of it may live on. The last run must end well, with the content of an undisturbed one, and
leave no file that an undisturbed one does not leave. Exit code 1 on any flaw. Linux only.

    python benchmarks/signal_storm.py --signals 8 --out signal-storm.json
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kill_storm import (
    PATIENCE,
    Box,
    Command,
    commands,
    finish,
    flaws_of,
    hashes,
    make_photos,
    new_box,
)

from dear.evaluation.choice import read_choice
from dear.model.artefact import read_adapter

PHASES = {"import": (0.02, 0.25), "start": (0.25, 0.5), "middle": (0.5, 0.85), "end": (0.85, 1.1)}
"""When a signal is sent, as a share of the time that the command takes undisturbed."""
SIGNALS_A_FOLDER = 4
TWICE = 4
"""Every Ctrl-C of this number is followed by another one."""
GIVE_UP = 120.0
"""Seconds within which a stopped command must end."""


@dataclass
class Found:
    """What happened to one command."""

    landed: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    flaws: list[str] = field(default_factory=list)
    slowest: float = 0.0
    """Seconds from a signal to the end of the command."""


def stormed(photos: Path, run: Path) -> dict[str, Command]:
    """The commands of this storm: those of the kill storm that write, and a table of predictions."""
    every = commands(photos, run)
    predict = ("predict", str(run), str(photos), "--threads", "1", "--workers", "1", "--out", "out/labels.csv")
    chosen = {name: every[name] for name in ("train", "bench --jobs 2", "train --method auto", "search index")}
    chosen["train --method auto"] = replace(chosen["train --method auto"], state=chosen_state)
    table = Command(predict, predict, lambda folder: hashes(folder, "labels.csv"))
    return {**chosen, "predict": table, "export --onnx": every["export --onnx"]}


def chosen_state(folder: Path) -> object:
    """What is the same in every choice: Ctrl-C ends the trials, and the best method so far is trained."""
    choice, saved = read_choice(folder), read_adapter(folder)
    return choice is not None, saved.manifest.classes


def stop_once(box: Box, words: tuple[str, ...], how: signal.Signals, wait: float, twice: bool, found: Found) -> bool:
    """Stop a command after some seconds; whether it had already done its work."""
    process = box.begin(words)
    time.sleep(wait)
    before = time.perf_counter()
    for _ in range(2 if twice else 1):
        process.send_signal(how)
        time.sleep(0.15 if twice else 0)
    try:
        _, said = process.communicate(timeout=GIVE_UP)
    except subprocess.TimeoutExpired:
        process.kill()
        found.flaws.append(f"{how.name} after {wait:.2f} s: it did not end")
        return False
    found.slowest = max(found.slowest, time.perf_counter() - before)
    found.codes[str(process.returncode)] += 1
    if flaw := flaw_of(process.returncode, said.decode(), how):
        found.flaws.append(f"{how.name} after {wait:.2f} s{' twice' if twice else ''}: {flaw}")
    return process.returncode == 0


def flaw_of(code: int, said: str, how: int) -> str:
    """What is wrong with the end of a stopped command; a process that the signal itself ended has its number, negated.

    Until Python has begun to run our code, it prints a traceback of its own, in which no file of ours appears.
    """
    if "Traceback" in said and f"{Path('dear')}/" not in said and "KeyboardInterrupt" in said:
        return ""
    if code not in (0, 128 + how, -how):
        return f"exit code {code}: {said[-1500:]}"
    if any(word in said for word in ("Traceback", "Exception ignored", "Error:", "leaked")):
        return f"no sentence: {said[-1500:]}"
    sentences = [line for line in said.splitlines() if line.startswith("dear: ")]
    return f"{len(sentences)} sentences: {sentences}" if len(sentences) > 1 else ""


def storm(name: str, command: Command, place: Path, count: int, chance: random.Random) -> dict[str, Any]:
    """Send signals to one command, a few in each folder."""
    alone = new_box(place / "alone", command)
    usual = finish(alone, command.words)
    state, names, found, folders, sent = command.state(alone.out), alone.names(), Found(), 0, 0
    while sent < count:
        box = new_box(place / f"stopped-{folders}", command)
        folders, words, done = folders + 1, command.words, False
        for _ in range(min(SIGNALS_A_FOLDER, count - sent)):
            phase = list(PHASES)[sent % len(PHASES)]
            how = signal.SIGTERM if sent // len(PHASES) % 2 else signal.SIGINT
            twice = how == signal.SIGINT and chance.randrange(TWICE) == 0
            done = stop_once(box, words, how, chance.uniform(*PHASES[phase]) * usual, twice, found)
            found.landed["too late" if done else phase] += 1
            sent += 1
            found.flaws += orphans(box)
            if done:
                break
            if (box.out / "labels.csv").exists():  # written while it was being stopped: nothing is overwritten
                done = True
                break
            words = command.again
        box.age()
        if not done:
            finish(box, command.again)
        found.flaws += flaws_of(box, command, state, names)
    return {
        "command": name,
        "signals": sent,
        "by moment": dict(found.landed),
        "exit codes": dict(found.codes),
        "folders": folders,
        "flaws": found.flaws,
        "seconds undisturbed": round(usual, 1),
        "slowest end": round(found.slowest, 1),
    }


def orphans(box: Box) -> list[str]:
    """Processes of a stopped command that live on."""
    until = time.monotonic() + PATIENCE
    while (left := box.orphans()) and time.monotonic() < until:
        time.sleep(0.1)
    return [f"process {one} lives on" for one in left]


def main() -> None:
    """Run the storm, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=8, help="per command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="+", help="names of commands; by default all")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in its background ignore Ctrl-C
    rows = []
    print("| command | signals | by moment | exit codes | flaws | slowest end |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        photos, made = make_photos(root / "photos", classes=4, each=8), Box(root / "made")
        every = stormed(photos, made.out)
        finish(made, every["train"].words)
        for number, name in enumerate(chosen.commands or every):
            row = storm(name, every[name], root / str(number), chosen.signals, random.Random(f"{chosen.seed} {name}"))
            rows.append(row)
            cells = (row["signals"], row["by moment"], row["exit codes"], len(row["flaws"]), row["slowest end"])
            print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)
            for flaw in row["flaws"]:
                print(f"  {flaw}", file=sys.stderr, flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps({"seed": chosen.seed, "rows": rows}, indent=1) + "\n")
    if any(row["flaws"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
