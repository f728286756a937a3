"""Nodes of Ray on loopback, each in processes of its own that a test can kill; token authentication is on."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "10",
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_metrics_collection": "0",
}
START = 120
"""Seconds that a node has to start; the machine may be busy."""


class Nodes:
    """A head node and any number of others, of one CPU each, in a folder with a short name."""

    def __init__(self, folder: Path, source: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as line:
            self.address = f"127.0.0.1:{line.getsockname()[1]}"
        self.folder = folder
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        mine = {"RAY_AUTH_TOKEN_PATH": str(token), "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **QUIET, **mine}
        self.started: list[subprocess.Popen] = []

    def start(self, *, head: bool = False, environment: dict[str, str] | None = None) -> subprocess.Popen:
        """Start a node and wait until it is there."""
        name = f"n{len(self.started)}"
        port = self.address.rpartition(":")[2]
        place = ["--head", f"--port={port}", "--include-dashboard=false"] if head else [f"--address={self.address}"]
        size = ["--num-cpus=1", "--object-store-memory=80000000", "--node-ip-address=127.0.0.1"]
        ray = Path(sys.executable).with_name("ray")
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            node = subprocess.Popen(
                [ray, "start", *place, *size, "--block", f"--temp-dir={self.folder / name}", f"--node-name={name}"],
                env={**self.environment, **(environment or {})},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.started.append(node)
        until = time.monotonic() + START
        while b"--block" not in log.read_bytes():
            if node.poll() is not None or time.monotonic() > until:
                raise AssertionError(log.read_text())
            time.sleep(0.2)
        return node

    def kill(self, node: subprocess.Popen, how: int = signal.SIGKILL) -> None:
        """End a node with everything it started, as a power cut does."""
        for pid in self.processes(session=node.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        node.wait()

    def processes(self, session: int | None = None) -> list[int]:
        """Living processes of these nodes, or of one of them; all have the folder in their environment."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                facts = (place / "stat").read_text().rpartition(")")[2].split()
                ours = str(self.folder).encode() in (place / "environ").read_bytes()
                wanted = session is None or int(facts[3]) == session
                if facts[0] != "Z" and ours and wanted and int(place.name) != os.getpid():
                    found.append(int(place.name))
        return found

    def end(self) -> None:
        """End all nodes, the head last."""
        for node in reversed(self.started):
            self.kill(node)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def ray_nodes(source: Path, others: int = 1) -> Iterator[Nodes]:
    """A cluster of a head node and others; all end with the block."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # sockets need short names
    nodes = Nodes(folder, source)
    try:
        nodes.start(head=True)
        for _ in range(others):
            nodes.start()
        yield nodes
    finally:
        nodes.end()
        shutil.rmtree(folder, ignore_errors=True)
