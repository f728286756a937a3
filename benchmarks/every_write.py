"""End a process at every change of every kind of folder, and fill its disk at every write; then continue it.

The process is forked with everything loaded. It is ended before and after each rename, link, folder, removal and
flush; or from one of its writes on, the disk is full, which must be refused in one sentence. Then the same work is
done again: it must end with the content that it has without a fault, and leave no file behind that it does not leave
otherwise. Leftovers are made two hours older before. Exit code 1 on any flaw. Linux only.

    python benchmarks/every_write.py --out every-write.json
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from dear.errors import DearError, OverwriteError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from faults import Ended, age, crashing, filling, names_below
from folder_kinds import Kind, Kinds, modes

SHOWN = 8
"""Flaws that are printed per kind; the file has all."""


def again(kind: Kind, folder: Path) -> str:
    """Continue after a fault; a sentence if that is refused."""
    said = ""
    for mode in kind.again:
        try:
            kind.fill(folder, modes()[mode])
        except OverwriteError as error:
            said = str(error)
        except DearError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what we look for
            return f"{type(error).__name__}: {error}"
        else:
            return ""
    return said


def flaw_after(kind: Kind, place: Path, state: str, names: set[str]) -> str:
    """What is wrong after a fault, once the work was done again."""
    age(place)
    if (refused := again(kind, place / "out")) and not is_done(kind, place / "out", state):
        return f"not continued: {refused}"
    if not is_done(kind, place / "out", state):
        return "another content"
    left = sorted(names_below(place) - names)
    return f"left behind: {', '.join(left[:3])}" if left else ""


def is_done(kind: Kind, folder: Path, state: str) -> bool:
    """Whether the content of a folder is what it is without a fault."""
    try:
        return kind.state(folder) == state
    except (AssertionError, DearError, OSError):
        return False


def one_fault(kind: Kind, place: Path, what: str, number: int, mode: str) -> Ended:
    """One fault in a folder."""

    def work() -> None:
        kind.fill(place / "out", modes()[mode])

    if what == "full":
        return filling(work, place, number)
    return crashing(work, place, number, after=what == "after")


def measure(name: str, kind: Kind, place: Path, mode: str) -> dict[str, Any]:
    """Every fault in folders of one kind; in mode "overwrite", the folder is filled before."""
    (place / "alone").mkdir(parents=True)
    kind.prepare(place / "alone" / "out")
    for one in ["new", mode] if mode != "new" else ["new"]:
        kind.fill(place / "alone" / "out", modes()[one])
    state, names = kind.state(place / "alone" / "out"), names_below(place / "alone")
    counts, flaws = Counter[str](), Counter[str]()
    for what in ("before", "after", "full"):
        number = 0
        while True:
            number += 1
            work = place / f"{what}-{number}"
            work.mkdir()
            kind.prepare(work / "out")
            if mode != "new":
                kind.fill(work / "out", {})
            ended = one_fault(kind, work, what, number, mode)
            counts[f"{what}: {ended.how}"] += 1
            if ended.how in ("failed", "hung") or (ended.how == "refused" and not is_sentence(ended.words)):
                flaws[plain(f"{what}: {ended.how}: {ended.words}", work)] += 1
            if flaw := flaw_after(kind, work, state, names):
                flaws[plain(f"{what}: {flaw}", work)] += 1
            shutil.rmtree(work)
            if ended.how == "done" and ended.changes < number:
                break
    return {"kind": name, "mode": mode, "counts": dict(counts), "flaws": dict(flaws)}


def plain(text: str, place: Path) -> str:
    """A flaw without what is random in it."""
    return re.sub(r"\.[a-z0-9_]{8}(?=\.tmp)|[0-9a-f]{32}", "*", text.replace(str(place), "PLACE"))


def is_sentence(text: str) -> bool:
    return "\n" not in text and text.endswith((".", "!", "?"))


def main() -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", help="by default all but the paper, whose parts are grids")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        kinds = Kinds(Path(temporary) / "shared")
        every = kinds.every()
        with kinds.ready():
            for name in chosen.kinds or [name for name in every if name != "paper"]:
                for mode in [mode for mode in ("new", "overwrite") if mode in every[name].modes]:
                    row = measure(name, every[name], Path(temporary) / f"{name}-{mode}", mode)
                    rows.append(row)
                    print(f"{name}, {mode}: {row['counts']}, {sum(row['flaws'].values())} flaws", flush=True)
                    for flaw, count in Counter(row["flaws"]).most_common(SHOWN):
                        print(f"  {count} × {flaw}", flush=True)
                    if chosen.out:
                        chosen.out.write_text(json.dumps(rows, indent=1) + "\n")
    if any(row["flaws"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
