"""Ctrl-C and SIGTERM at every moment of a command: one sentence or silence, and whatever was begun can be resumed.

The quick tests are about the first and the last moments; `benchmarks/signal_storm.py` stops real commands at random.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import heed_interrupts
from needs import needs_posix

BEGIN = """
import sys
import dear.entry

def stop(*_):
    raise KeyboardInterrupt

sys.argv[1:] = ["ls", "methods"]
setattr(dear.entry, {name!r}, stop)
dear.entry.main()
"""
END = """
import atexit, os, signal, sys
from dear.entry import main

sys.argv[1:] = ["--version"]
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
main()
"""
TWICE = """
import dear.cli
from dear.entry import main

def stop(*_):
    raise KeyboardInterrupt

dear.cli._run = stop
main()
"""


def ended(script):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, preexec_fn=heed_interrupts
    )


@pytest.mark.parametrize("name", ["waiting", "open_streams", "check_place", "first_words"])
def test_ctrl_c_before_the_imports_is_one_sentence(name):
    needs_posix()
    environment = os.environ.copy()
    os.environ.pop("OMP_WAIT_POLICY", None), os.environ.pop("GOMP_SPINCOUNT", None)
    try:
        done = ended(BEGIN.format(name=name))
    finally:
        os.environ.update(environment)
    assert (done.returncode, done.stderr) == (130, "\ndear: stopped before anything was done.\n")


def test_ctrl_c_while_python_shuts_down_is_silent():
    """Python printed a traceback of what it was doing at that moment, and the exit code was 0."""
    needs_posix()
    done = ended(END)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_between_two_commands_is_silent():
    needs_posix()
    done = ended(TWICE)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "predict", "bench --jobs 2", "train --method auto", "search index"])
def test_commands_that_are_stopped_at_random_moments(tmp_path_factory, monkeypatch, name):
    """Six signals each; the export, whose files differ by torch's version only, has its own row in the benchmark."""
    needs_posix()
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
    from kill_storm import Box, finish, make_photos
    from signal_storm import storm, stormed

    place = tmp_path_factory.mktemp("storm")
    photos, made = make_photos(place / "photos", classes=4, each=8), Box(place / "made")
    commands = stormed(photos, made.out)
    finish(made, commands["train"].words)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in a shell's background ignores it
    try:
        row = storm(name, commands[name], place / "storm", 6, random.Random(name))
    finally:
        signal.signal(signal.SIGINT, before)
    assert row["signals"] == 6
    assert row["flaws"] == []
