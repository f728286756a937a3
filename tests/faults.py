"""Crashes and full disks at every change of a folder, in child processes that are forked with everything loaded."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from dear.errors import DearError

FORK = multiprocessing.get_context("fork")
CHANGES = ("replace", "rename", "link", "symlink", "mkdir", "rmdir", "unlink", "fsync")
"""Functions of `os` before and after which a process is ended."""
WRITES = ("replace", "rename", "link", "symlink", "mkdir", "fsync")
"""Functions of `os` that fail on a full disk; so do opening a file to write it, and creating a temporary one."""
CRASHED = 77
LIMIT = 120.0
Happen = Callable[[int, Callable[[], Any]], Any]
RANDOM = re.compile(r"(?<=segment-)([0-9a-f]{16}|\d+)|(?<=features-)[0-9a-f]{16}|\b[0-9a-f]{32}\b")


class Ended(NamedTuple):
    """How a child process ended: "done", "refused" with a sentence, "failed" with an error, "crashed" or "hung"."""

    how: str
    words: str
    changes: int


@contextmanager
def counted(
    place: Path, names: tuple[str, ...], happen: Callable[[int, Callable[[], Any]], Any]
) -> Iterator[list[int]]:
    """Call `happen` with the number of each change below a folder and with what does it."""
    count = [0]

    def wrapped(real: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            if not _is_below(place, arguments, more):
                return real(*arguments, **more)
            count[0] += 1
            with named(arguments[0]):
                return happen(count[0], lambda: real(*arguments, **more))

        return call

    patches = [patch.object(os, name, wrapped(getattr(os, name))) for name in names]
    for one in patches:
        one.start()
    try:
        yield count
    finally:
        for one in patches:
            one.stop()


@contextmanager
def named(file: Any) -> Iterator[None]:
    """Name the file in an error of the disk, as the system does unless it is asked by a file's number."""
    try:
        yield
    except OSError as error:
        if error.filename is None and not isinstance(file, int):
            error.filename = str(file)
        raise


def _is_below(place: Path, arguments: tuple[Any, ...], more: dict[str, Any]) -> bool:
    first = arguments[0]
    if isinstance(first, int):
        first = Path(f"/proc/self/fd/{first}").readlink()
    elif (at := more.get("dir_fd")) is not None:
        first = Path(f"/proc/self/fd/{at}").readlink() / first
    return Path(first).absolute().is_relative_to(place)


def crashing(work: Callable[[], object], place: Path, number: int, *, after: bool) -> Ended:
    """Run something in a child that ends before or after its change of a number, as a kill would end it."""

    def happen(at: int, real: Callable[[], Any]) -> Any:
        if at == number and not after:
            os._exit(CRASHED)
        found = real()
        if at == number:
            os._exit(CRASHED)
        return found

    return in_child(work, lambda: counted(place, CHANGES, happen))


def filling(work: Callable[[], object], place: Path, number: int) -> Ended:
    """Run something in a child for which the disk is full from its write of a number on."""

    def happen(at: int, real: Callable[[], Any]) -> Any:
        return real() if at < number else full()

    @contextmanager
    def disk() -> Iterator[list[int]]:
        opens, makes = open, tempfile.mkstemp
        with counted(place, WRITES, happen) as count:

            def opened(file: Any, mode: str = "r", *more: Any, **others: Any) -> Any:
                if set(mode) & set("wax+") and not isinstance(file, int) and _is_below(place, (file,), {}):
                    count[0] += 1
                    with named(file):
                        return happen(count[0], lambda: opens(file, mode, *more, **others))
                return opens(file, mode, *more, **others)

            def made(*arguments: Any, **more: Any) -> Any:
                if str(more.get("dir")).startswith(str(place)):
                    count[0] += 1
                    with named(more["dir"]):
                        return happen(count[0], lambda: makes(*arguments, **more))
                return makes(*arguments, **more)

            with patch("builtins.open", opened), patch("io.open", opened), patch("tempfile.mkstemp", made):
                yield count

    return in_child(work, disk)


def full() -> NoReturn:
    """What a full disk says."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def in_child(work: Callable[[], object], faults: Callable[[], Any]) -> Ended:
    """Run something in a forked child, and say how it ended."""
    ours, theirs = FORK.Pipe(duplex=False)

    def run() -> None:
        how, words, count = "done", "", [0]
        try:
            with faults() as count:
                work()
        except DearError as error:
            how, words = "refused", str(error)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is what we look for
            how, words = "failed", f"{type(error).__name__}: {error}"
        theirs.send(Ended(how, words, count[0]))
        theirs.close()
        os._exit(0)

    child = FORK.Process(target=run)
    child.start()
    theirs.close()
    deadline, found = time.monotonic() + LIMIT, None
    while found is None and time.monotonic() < deadline:
        if ours.poll(0.05):
            try:
                found = ours.recv()
            except EOFError:
                found = Ended("crashed", "", 0)
    if found is None:
        child.kill()
    child.join()
    return found or Ended("hung", "", 0)


def names_below(place: Path) -> set[str]:
    """The names of everything below a folder, without what is random in them."""
    return {RANDOM.sub("*", path.relative_to(place).as_posix()) for path in place.rglob("*")}


def age(place: Path, seconds: float = 7200) -> None:
    """Make hidden files and folders older, as if the crash had been two hours ago."""
    then = time.time() - seconds
    for path in place.rglob("*"):
        if any(part.startswith(".") for part in path.relative_to(place).parts):
            os.utime(path, (then, then), follow_symlinks=False)
