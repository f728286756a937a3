"""Kill one of the workers of Ray that this process started, once something happened."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNTIL = 400
"""Seconds to wait for something that must happen."""


ACTORS, TASKS = b"ray::MapWorker", b"ray::run"
"""How the processes of actors of Ray Data, and of our tasks, begin their names."""


def workers(kind: bytes) -> list[int]:
    """Processes of a kind below this process."""
    parents, names = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pid = int(place.name)
            parents[pid] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            names[pid] = (place / "cmdline").read_bytes()
    return [pid for pid, name in names.items() if name.startswith(kind) and _below_us(pid, parents)]


def _below_us(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


@contextmanager
def killing_one(when: Callable[[], bool], kind: bytes = ACTORS) -> Iterator[list[int]]:
    """Kill one worker with −9 as soon as the condition holds; its process is listed."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        until = time.monotonic() + UNTIL
        while not over.is_set() and time.monotonic() < until:
            found = workers(kind) if when() else []
            if found:
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])
                return
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
