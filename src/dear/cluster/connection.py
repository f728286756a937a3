"""Connect to Ray, where `--on ray[:ADDRESS]` runs work on several machines.

Nothing waits for ever: an address where nobody answers, and CPUs or GPUs that no node has, are refused in one sentence.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dear.errors import ClusterError, MissingExtraError, option
from dear.storage.files import shown

RAY = "ray"
AUTO = "auto"
"""The address of a Ray that was started on this machine."""
LOCAL = "local"
"""What Ray calls a Ray of its own."""
ADDRESS = "RAY_ADDRESS"
"""The environment variable with the address for `ray`."""
PORT = 6379
"""The port of a head node, unless another one is named."""
ANSWER = 5.0
"""Seconds to wait for the first bytes of an answer."""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of HTTP/2, and therefore of Ray, begins: a preface and empty settings."""
SETTINGS = 4
"""The type of the frame with which a server of HTTP/2 answers."""


def address_of(on: str) -> str | None:
    """The address in `ray:ADDRESS`, with a port; None for `ray`."""
    engine, colon, address = on.partition(":")
    if engine != RAY or (colon and not address) or "://" in address or any(one.isspace() for one in on):
        raise ValueError("not ray or ray:ADDRESS")
    if not address or address == AUTO:
        return address or None
    host, _, port = address.rpartition(":") if ":" in address else (address, ":", str(PORT))
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError("not an address")
    return f"{host}:{port}"


@contextmanager
def connected(on: str) -> Iterator[Any]:
    """The package `ray`, connected to a cluster in the `with` block.

    `ray` is the cluster that RAY_ADDRESS names or, without it, a Ray of its own on this machine, which ends with the
    block. `ray:auto` is one that was started on this machine, and `ray:HOST:PORT` the one with this head node; this
    machine has to be one of its nodes. A connection that exists already is used and stays open.
    """
    is_own = address_of(on) is None and _variable() is None
    if is_own and "RAY_AUTH_MODE" not in os.environ and RAY not in sys.modules:  # Ray reads it when imported
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # for nobody else here
    ray = _imported()
    if ray.is_initialized():
        yield ray
        return
    address = _address(on)
    with _own_signals():
        _connect(ray, on, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _variable() -> str | None:
    """What RAY_ADDRESS is set to; None if it is empty, or asks for a Ray of its own."""
    text = os.environ.get(ADDRESS, "").strip()
    return None if text in ("", LOCAL) else text


def _address(on: str) -> str | None:
    """The address in `ray:ADDRESS`, or for `ray` the one in RAY_ADDRESS; None for a Ray of its own."""
    text = _variable()
    if text is None or on != RAY:
        return address_of(on)
    if text.startswith("ray://"):
        raise ClusterError(
            f"{ADDRESS} is {shown(text)}, but Ray's client is not supported: set it to HOST:{PORT}, the address of the "
            f"head node, on a machine that is one of the nodes."
        )
    try:
        return address_of(f"{RAY}:{text}")
    except ValueError:
        raise ClusterError(
            f"{ADDRESS} is {shown(text)}, which is not an address: set it to HOST:{PORT}, or unset it."
        ) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Leave SIGTERM as it is: Ray replaces what it does, and exits without a word."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _imported() -> Any:
    """Ray, which never reports its use and prints errors only."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # those of Ray's own actors; ours are results
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # work that asks for no GPU sees none
    try:
        import ray
    except ImportError:
        raise MissingExtraError(f"{option(on=RAY)} needs Ray: pip install 'dear-vlm[ray]'.") from None
    return ray


def _connect(ray: Any, on: str, address: str | None) -> None:
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        return
    named = ADDRESS if on == RAY else option(on=on)
    if address != AUTO and not answers(address):
        raise ClusterError(f"No Ray answers at {address}: start one there with 'ray start --head', or correct {named}.")
    place = f"{address} ({named})" if on == RAY else address
    try:
        ray.init(address, **quiet)
    except (ray.exceptions.AuthenticationError, PermissionError):
        raise ClusterError(f"The Ray at {place} needs its token: {_TOKEN}.") from None
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        if address == AUTO:
            example = f"in {ADDRESS}" if on == RAY else f"as in {option(on=f'ray:10.0.0.1:{PORT}')}"
            raise ClusterError(
                f"No Ray runs on this machine: start one with 'ray start --head', or give its address, {example}."
            ) from None
        first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ClusterError(
            f"The Ray at {place} does not accept this process ({first}): join this machine to the cluster with "
            f"'ray start --address={address}', with the same Ray and Python and, if it has a token: {_TOKEN}."
        ) from None


_TOKEN = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to a file with the token of the cluster"


def answers(address: str) -> bool:
    """Whether a server that could be Ray's answers at HOST:PORT within a few seconds."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER) as line:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return True
            line.sendall(HELLO)
            line.settimeout(ANSWER)
            start = line.recv(9)
            return len(start) > 3 and start[3] == SETTINGS
    except (OSError, UnicodeError):
        return False


def check_room(nodes: list[Mapping[str, Any]], cpus: float, gpus: float = 0) -> int:
    """How many tasks of this size run at once on these nodes (of `ray.nodes()`); none is refused."""
    sizes = [(one["Resources"].get("CPU", 0), one["Resources"].get("GPU", 0)) for one in nodes if one["Alive"]]
    most_cpus, most_gpus = (max((size[place] for size in sizes), default=0) for place in (0, 1))
    if gpus > most_gpus:
        has = f"at most {most_gpus:g} on a node" if most_gpus else "none"
        raise ClusterError(
            f"{option(gpus=gpus)} asks for a GPU, but the cluster has {has}: leave it out to compute on CPUs, or start "
            f"a node with a GPU."
        )
    found = sum(_tasks(cpu, gpu, cpus, gpus) for cpu, gpu in sizes)
    if not found:
        raise ClusterError(
            f"{option(threads=f'{cpus:g}')} asks for more CPUs than any node of the cluster has"
            f"{' beside a GPU' if gpus else ''} (at most {most_cpus:g}): give fewer threads."
        )
    return found


def has_room(node: Mapping[str, Any], cpus: float, gpus: float = 0) -> bool:
    """Whether a node (of `ray.nodes()`) is alive and large enough for a task of this size."""
    sizes = node["Resources"]
    return bool(node["Alive"]) and _tasks(sizes.get("CPU", 0), sizes.get("GPU", 0), cpus, gpus) > 0


def _tasks(cpu: float, gpu: float, cpus: float, gpus: float) -> int:
    """How many tasks of a size fit on a node."""
    return int(min(cpu / cpus, gpu / gpus if gpus else cpu / cpus) + 1e-9)  # 1 / 0.1 is a bit more or less than 10
