"""The nodes of a cluster: whether each has the same packages and sees the same folder, before anything runs on it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from dear import __version__
from dear.cluster.connection import has_room
from dear.errors import ClusterError
from dear.storage.files import MEGABYTE, read_regular
from dear.storage.locks import LOCK

ANSWER = 180.0
"""Seconds that a node has to start a worker and answer."""


class Expected(NamedTuple):
    """What a node needs, to do what this process would do."""

    versions: dict[str, str]
    folder: str
    """The output folder, which all nodes share; its lock is signed by this process."""
    signature: bytes
    current: str
    """The folder that relative paths begin at."""


def here(out: Path, current: Path | None = None) -> Expected:
    """What this process has; the output folder is locked by it. Relative paths begin at `current`, by default here."""
    folder, start = out.resolve(), (current or Path.cwd()).resolve()
    return Expected(versions_here(), str(folder), read_regular(folder / LOCK, most=MEGABYTE), str(start))


def versions_here() -> dict[str, str]:
    """Versions that decide a result; Ray itself compares its own and Python's."""
    try:
        return {"dear": __version__, "torch": version("torch")}
    except PackageNotFoundError:
        return {"dear": __version__}


def problem_here(expected: Expected) -> str | None:
    """Why this node cannot be used, as one sentence; None if it can: then relative paths begin at `current`."""
    name, found = socket.gethostname(), versions_here()
    for package, wanted in expected.versions.items():
        if found.get(package) != wanted:
            has = f"{package} {found[package]}" if package in found else f"no {package}"
            return f"The node {name} has {has}, but this machine has {wanted}: install the same version on both."
    try:
        same = read_regular(Path(expected.folder) / LOCK, most=MEGABYTE) == expected.signature
    except OSError:
        same = False
    if not same:
        return f"The node {name} does not see the folder {expected.folder}: choose one that all nodes share."
    try:
        os.chdir(expected.current)
    except OSError:
        return f"The node {name} has no folder {expected.current}: start the command from one that all nodes share."
    return None


def check_nodes(ray: Any, expected: Expected, cpus: float, gpus: float) -> None:
    """Refuse a cluster with a node that could compute something else, or would write somewhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {one["NodeID"]: one["NodeName"] for one in ray.nodes() if has_room(one, cpus, gpus)}
    task = ray.remote(num_cpus=0, max_retries=0)(_look())
    plain = expected._asdict()  # a node may have a dear without our classes
    asked = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(plain): name
        for node, name in nodes.items()
    }
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER)
    for one in silent:
        raise ClusterError(f"The node {asked[one]} has started no process within {ANSWER:.0f} s: see what runs there.")
    for one in answered:
        try:
            problem = ray.get(one)
        except ray.exceptions.RayTaskError as error:
            raise ClusterError(f"The node {asked[one]} cannot run dear ({last_line(error)}).") from error
        except ray.exceptions.RayError:
            continue  # it has just died; Ray runs nothing there
        if problem is not None:
            raise ClusterError(problem)


def last_line(error: BaseException) -> str:
    """What an error of Ray says in the end, after the traceback of a node."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _look() -> Callable[[dict[str, Any]], str | None]:
    def look(expected: dict[str, Any]) -> str | None:  # local, so Ray sends it as it is: dear may be missing there
        try:
            from dear.cluster.nodes import Expected, problem_here
        except ImportError:
            import socket
            import sys

            try:
                found = f"dear {sys.modules['dear'].__version__}"
            except (KeyError, AttributeError):
                found = "no dear"
            wanted = f"this machine has {expected['versions']['dear']}: install the same version on both"
            return f"The node {socket.gethostname()} has {found}, but {wanted}."
        return problem_here(Expected(**expected))

    return look
