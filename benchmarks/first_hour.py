"""Measure what a user sees while waiting: time to first output, terminal captures, offline messages, quickstart.

Every command is run in a terminal of its own (a pty), whose screen is what a person would see (pyte).

    python benchmarks/first_hour.py signs                 # time to the first output of every command
    python benchmarks/first_hour.py captures              # train, bench, discover, predict at 60, 80 and 120 columns
    python benchmarks/first_hour.py offline               # a hub that refuses, and one that never answers
    python benchmarks/first_hour.py quickstart            # alone and next to two busy programs
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte

from dear.storage.markdown import table

DEAR = (sys.executable, "-m", "dear")
BUSY = (sys.executable, "-c", "while True: pass")
HEIGHT = 24
BAR = "━"
BENCH = "bench base-to-novel --clip world --data world-textures --methods coop,maple --seeds 1 --epochs 3"


def in_terminal(words: Sequence[str], columns: int) -> Iterator[tuple[float, bytes]]:
    """Run a command in a terminal; what it prints, with the seconds since it was started."""
    child, terminal = pty.fork()
    if not child:
        os.environ["TERM"] = "xterm-256color"
        os.execv(words[0], list(words))
    start = time.perf_counter()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, columns, 0, 0))
    try:
        while True:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    printed = os.read(terminal, 65536)
                except OSError:  # how a pty says that the command has ended
                    return
                if not printed:
                    return
                yield time.perf_counter() - start, printed
    finally:
        os.close(terminal)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, as typed."""
    for name, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            yield from leaves(one, (*words, name)) if hasattr(one, "commands") else [(*words, name)]


def signs(_: Path) -> None:
    """Seconds until the first output, which is printed before anything is loaded."""
    import typer

    from dear.cli import app

    rows = []
    for words in [(), ("-h",), *leaves(typer.main.get_command(app))]:
        wrong = [] if words in ((), ("-h",)) else ["no-such-thing"]  # nothing is to be carried out
        seconds, first = next(in_terminal([*DEAR, *words, *wrong], 80))
        rows.append((" ".join(("dear", *words)), f"{seconds:.2f}", first.decode(errors="replace").strip()[:40]))
    print(table(("command", "seconds", "what"), rows))


def bars_of(words: Sequence[str], columns: int) -> list[str]:
    """What stood on the screen beside a bar, in the middle of each stage."""
    screen = pyte.Screen(columns, HEIGHT)
    stream, seen = pyte.ByteStream(screen), {}
    for _, printed in in_terminal(words, columns):
        stream.feed(printed)
        bars = tuple(line.rstrip() for line in screen.display if BAR in line)
        if bars:
            total = bars[-1].split()[0].partition("/")[2]
            seen.setdefault((len(bars), total), []).append(bars)
    return ["\n".join(shown[len(shown) * 2 // 3]) for shown in seen.values()]


def captures(place: Path) -> None:
    """Train, bench, discover and predict while they run."""
    photos, run = place / "photos", place / "run"
    _drawings(photos)
    world = ["--clip", "world"]
    how = {
        "train": lambda out: ["train", "world-blooms", *world, "--epochs", "4", "--out", out],
        "bench": lambda out: [*BENCH.split(), "--out", out],
        "discover": lambda out: ["roles", "discover", *world, "--images", str(photos), "--out", out],
        "predict": lambda out: ["predict", str(run), str(photos), "--out", f"{out}.csv"],
    }
    subprocess.run([*DEAR, "train", "world-blooms", *world, "--epochs", "1", "--out", str(run)], check=True)
    for name, words in how.items():
        for columns in (60, 80, 120):
            found = bars_of([*DEAR, *words(str(place / f"{name}-{columns}"))], columns)
            assert all(len(line) <= columns for shown in found for line in shown.split("\n"))
            print(f"\n{name}, {columns} columns\n" + "\n--\n".join(found), flush=True)


def _drawings(folder: Path) -> None:
    """300 images of the world in class folders."""
    from dear.data.open import open_dataset

    blooms = open_dataset("world-blooms")
    for number, item in enumerate(blooms.split("test")[:300]):
        label = folder / blooms.class_names[item.label]
        label.mkdir(parents=True, exist_ok=True)
        blooms.open(item.id).save(label / f"{number}.png")


def offline(place: Path) -> None:
    """Seconds until the sentence, for a hub that refuses a connection and for one that takes it and never answers."""
    deaf = socket.create_server(("127.0.0.1", 0))
    closed = socket.create_server(("127.0.0.1", 0))
    refusing = closed.getsockname()[1]
    closed.close()
    words = [*DEAR, "train", "photos", "--out", "run", "--clip", "ViT-B-16-quickgelu", "--pretrained", "openai"]
    _drawings(place / "photos")
    for what, port in (("refuses", refusing), ("never answers", deaf.getsockname()[1])):
        env = {
            **os.environ,
            "HF_ENDPOINT": f"http://127.0.0.1:{port}",
            "HF_HOME": str(place / "hub"),
            "NO_PROXY": "127.0.0.1",
        }
        start = time.perf_counter()
        done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True)
        print(f"a hub that {what}: {time.perf_counter() - start:.1f} s, exit {done.returncode}: {done.stderr.strip()}")


@contextmanager
def beside(count: int) -> Iterator[None]:
    """So many programs that compute all the time."""
    others = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for one in others:
            one.kill()


def quickstart(place: Path) -> None:
    """Seconds with waiting threads that spin (as before) and that sleep (the default now)."""
    rows = []
    for others in (0, 2):
        times = {}
        for policy in ("ACTIVE", "PASSIVE"):
            out = place / f"quickstart-{others}-{policy}"
            env = {**os.environ, "OMP_WAIT_POLICY": policy}
            with beside(others):
                start = time.perf_counter()
                subprocess.run([*DEAR, "quickstart", "--out", str(out)], env=env, check=True, capture_output=True)
                times[policy] = time.perf_counter() - start
            shutil.rmtree(out)
        ratio = times["ACTIVE"] / times["PASSIVE"]
        rows.append((f"beside {others} programs", f"{times['ACTIVE']:.1f}", f"{times['PASSIVE']:.1f}", f"{ratio:.2f}"))
    print(table(("quickstart", "spinning, s", "sleeping, s", "before ÷ after"), rows))


def main() -> None:
    what = {one.__name__: one for one in (signs, captures, offline, quickstart)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=what)
    chosen = parser.parse_args().what
    with tempfile.TemporaryDirectory() as place:
        what[chosen](Path(place))


if __name__ == "__main__":
    main()
