"""What processes of a grid run in tests of executors: no torch; a long cell leaves files when it begins and ends."""

import multiprocessing
import time
from pathlib import Path
from types import SimpleNamespace

LONGEST = 20.0
"""Seconds after which a cell that nobody ended ends by itself."""


def begin(*_):
    """In place of `begin_process`."""


def run(cell, options: SimpleNamespace):
    """Run a cell called "long", which nobody should wait for, "bad", which raises, or "short"."""
    place: Path = options.place
    if cell == "long":
        (place / "begun").touch()
        time.sleep(LONGEST)
        (place / "ended").touch()
    _wait_for(place / "begun")
    if cell == "bad":
        raise ValueError("bad cell")
    return cell


def _wait_for(path):
    until = time.monotonic() + LONGEST
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)


def a_child_of_somebody_else():
    """A process that waits for a minute, started by the caller's program."""
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), daemon=True)
    child.start()
    return child
