"""An imitation of the model hub on loopback, for tests, and to try commands without a network.

It has two servers, as the real one: the hub redirects large files to its CDN on another port. Every answer can be made
to go wrong with `misbehave`. `serve_fake_hub.py` serves random weights in full size, to try commands by hand.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from urllib.parse import parse_qs, unquote, urlsplit

from fake_hub_uploads import LARGE, Uploads

Content = bytes | Path
CHUNK = 1 << 16


@dataclass(frozen=True)
class Stored:
    """A file of a repository."""

    content: Content
    size: int
    etag: str
    """The sha256 of a large file, git's sha1 of a small one."""
    large: bool

    @classmethod
    def of(cls, name: str, content: Content) -> Stored:
        """Hash a file once."""
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        large = name.endswith(LARGE)
        digest = hashlib.sha256() if large else hashlib.sha1(f"blob {size}\0".encode())
        for chunk in chunks(content):
            digest.update(chunk)
        return cls(content, size, digest.hexdigest(), large)


@dataclass(frozen=True)
class Repository:
    """Files of a model, with what the hub says of them."""

    files: dict[str, Stored]
    commit: str
    license: str | None
    gated: bool
    private: bool = False


@dataclass
class Fault:
    """What goes wrong with one file, or with the list of files (`LIST`)."""

    status: int = 0
    """Answer of the hub instead of the file; 0 for none."""
    headers: Mapping[str, str] = field(default_factory=dict)
    reset_after: int | None = None
    """Bytes of the body after which the CDN resets the connection."""
    close_after: int | None = None
    """Bytes of the body after which the CDN closes the connection without an error."""
    content: bytes | None = None
    """Bytes sent instead of the true ones; everything else that the hub says stays true."""
    length: int | None = None
    """Length that the CDN says the body has; None for the true one."""
    ranges: bool = True
    """Whether the CDN honours Range."""
    chunk: int = CHUNK
    pause: float = 0.0
    """Seconds between chunks."""
    times: int | None = None
    """Number of answers that go wrong; None for all."""


@dataclass(frozen=True)
class Seen:
    """A request that was received."""

    method: str
    path: str
    cdn: bool
    range: str | None
    token: str | None

    def __str__(self) -> str:
        where = "CDN" if self.cdn else "hub"
        return f"{where} {self.method} {self.path}" + (f" [{self.range}]" if self.range else "")


LIST = "file list"
GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}
NO_REPOSITORY = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
NO_REVISION = {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}
NO_FILE = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}


def rate_limit(seconds: int) -> dict[str, str]:
    """Headers of an answer 429 of the real hub."""
    return {"RateLimit": f'"pages";r=0;t={seconds}', "RateLimit-Policy": '"fixed window";"pages";q=100;w=300'}


class FakeHub:
    """Hub and CDN, from `with FakeHub() as hub` until the end of the block."""

    def __init__(self, port: int = 0) -> None:
        self.repositories: dict[str, Repository] = {}
        self.commits: dict[tuple[str, str], Repository] = {}
        """Every state that a repository had, by its commit."""
        self.requests: list[Seen] = []
        self.writers: dict[str, set[str]] = {}
        """Tokens, and the namespaces that they may write to."""
        self.large: dict[str, bytes] = {}
        """Large files that were uploaded, by their sha256."""
        self.messages: list[str] = []
        """Messages of the commits that were made."""
        self.before_commit: Callable[[], object] | None = None
        """Called before a commit is accepted."""
        self._faults: dict[tuple[str, str], Fault] = {}
        self._lock = Lock()
        self._servers = [_Server(("127.0.0.1", port), self, cdn=False), _Server(("127.0.0.1", 0), self, cdn=True)]
        self.endpoint, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def __enter__(self) -> FakeHub:
        for server in self._servers:
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(
        self,
        repository: str,
        files: Mapping[str, Content],
        *,
        license: str | None = None,
        gated: bool = False,
        private: bool = False,
    ) -> Repository:
        """Add or replace a repository; a gated one refuses its files without a token, a private one hides itself."""
        stored = {name: Stored.of(name, content) for name, content in files.items()}
        commit = hashlib.sha1(repr([(name, one.etag) for name, one in sorted(stored.items())]).encode()).hexdigest()
        made = Repository(stored, commit, license, gated, private)
        self.repositories[repository] = self.commits[repository, commit] = made
        return made

    def at(self, repository: str, revision: str) -> Repository | None:
        """A repository at a commit, or as it is now; None if it never had this commit."""
        now = self.repositories.get(repository)
        return now if revision == "main" else self.commits.get((repository, revision))

    def may_see(self, repository: str, authorization: str | None) -> bool:
        """Whether a repository exists for somebody."""
        found, token = self.repositories.get(repository), (authorization or "").removeprefix("Bearer ")
        return found is not None and (
            not found.private or repository.partition("/")[0] in self.writers.get(token, set())
        )

    def misbehave(self, repository: str, file: str, fault: Fault | None) -> None:
        """Let something go wrong with a file or with `LIST`; None to behave again."""
        if fault is None:
            self._faults.pop((repository, file), None)
        else:
            self._faults[repository, file] = fault

    def fault(self, repository: str, file: str, *, use: bool = True) -> Fault:
        """What goes wrong now; `use` counts it."""
        with self._lock:
            fault = self._faults.get((repository, file), Fault())
            if fault.times == 0:
                return Fault()
            if use and fault.times is not None:
                fault.times -= 1
            return fault

    def seen(self, words: str = "") -> list[Seen]:
        """Requests whose path contains some words."""
        return [one for one in self.requests if words in one.path]

    def environment(self, cache: Path) -> dict[str, str]:
        """Environment variables with which a process uses this hub, a cache of its own and no proxy."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_HOME": str(cache),
            "HF_HUB_CACHE": str(cache / "hub"),
            "HF_TOKEN_PATH": str(cache / "token"),
            "HF_TOKEN": "",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], hub: FakeHub, *, cdn: bool) -> None:
        self.hub, self.cdn = hub, cdn
        super().__init__(address, _Handler)

    def handle_error(self, *_: object) -> None:
        """A client that goes away is none of our business."""


class _Handler(Uploads, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Requests are in `FakeHub.requests`."""

    def _record(self, path: str) -> None:
        header = self.headers.get
        seen = Seen(self.command, path, self.server.cdn, header("Range"), header("Authorization"))
        self.server.hub.requests.append(seen)

    def _answer(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        self._record(path)
        if self.server.cdn:
            _, repository_a, repository_b, file = path.split("/", 3)
            self._send_file(f"{repository_a}/{repository_b}", parse_qs(url.query).get("commit", ["main"])[0], file)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            self._send_list(match[1], match[2] or "main", blobs="blobs" in parse_qs(url.query))
        elif match := re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", path):
            self._send_file(match[1], match[2], match[3])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], match[2], match[3])
        else:
            self._send(404, {})

    def _refused(self, repository: str, revision: str, file: str) -> bool:
        """Answer with the error that is due, if any."""
        token = self.headers.get("Authorization")
        found = self.server.hub.at(repository, revision)
        if not self.server.hub.may_see(repository, token):
            self._send(401, NO_REPOSITORY, b"Invalid username or password.")
            return True
        if found is None:
            self._send(404, NO_REVISION)
            return True
        fault = self.server.hub.fault(repository, file, use=False)
        if fault.status:
            fault = self.server.hub.fault(repository, file)
            self._send(fault.status, dict(fault.headers))
        elif file != LIST and found.gated and not token:
            self._send(401, GATED)
        elif file != LIST and file not in found.files:
            self._send(404, {**NO_FILE, "X-Repo-Commit": found.commit})
        else:
            return False
        return True

    def _send_list(self, repository: str, revision: str, *, blobs: bool) -> None:
        if self._refused(repository, revision, LIST):
            return
        found = self.server.hub.at(repository, revision)
        card = {} if found.license is None else {"license": found.license}
        answer = {
            "id": repository,
            "modelId": repository,
            "sha": found.commit,
            "private": found.private,
            "gated": "auto" if found.gated else False,
            "tags": [f"license:{name}" for name in card.values()],
            "cardData": card,
            "siblings": [_sibling(name, one, blobs) for name, one in found.files.items()],
        }
        self._send(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def _resolve(self, repository: str, revision: str, file: str) -> None:
        if self._refused(repository, revision, file):
            return
        hub = self.server.hub
        found = hub.at(repository, revision)
        stored = found.files[file]
        inner = f"/api/resolve-cache/models/{repository}/{found.commit}/{file}"
        headers = {"X-Repo-Commit": found.commit, "Accept-Ranges": "bytes", "ETag": f'"{stored.etag}"'}
        headers |= {"X-Linked-Size": str(stored.size), "X-Linked-ETag": f'"{stored.etag}"'}
        if stored.large:
            self._send(302, {**headers, "Location": f"{hub.cdn}/{repository}/{file}?commit={found.commit}"})
        else:
            self._send(307, {**headers, "Location": inner})

    def _send_file(self, repository: str, commit: str, file: str) -> None:
        found = self.server.hub.at(repository, commit)
        stored = found.files[file]
        head = self.command == "HEAD"
        fault = self.server.hub.fault(repository, file, use=not head)
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "") if fault.ranges else None
        start = int(wanted[1]) if wanted else 0
        if start >= stored.size:
            return self._send(416, {"Content-Range": f"bytes */{stored.size}"})
        self.send_response(206 if wanted else 200)
        length = stored.size - start if fault.length is None else fault.length
        headers = {"ETag": f'"{stored.etag}"', "Accept-Ranges": "bytes", "Content-Length": str(length)}
        if not self.server.cdn:
            headers["X-Repo-Commit"] = found.commit
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{stored.size - 1}/{stored.size}"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if head:
            return None
        stop = next((one for one in (fault.reset_after, fault.close_after) if one is not None), None)
        sent = 0
        for chunk in chunks(stored.content if fault.content is None else fault.content, start, fault.chunk):
            part = chunk if stop is None else chunk[: stop - sent]
            self.wfile.write(part)
            sent += len(part)
            if stop is not None and sent >= stop:
                return self._hang_up(reset=fault.reset_after is not None)
            if fault.pause:
                time.sleep(fault.pause)
        return None

    def _hang_up(self, *, reset: bool) -> None:
        """End the connection in the middle of a body."""
        self.wfile.flush()
        self.close_connection = True
        if reset:
            wait_until_read(self.server.server_port, self.client_address[1])  # a reset discards what is on its way
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def wait_until_read(server: int, client: int) -> None:
    """Wait until the client has read everything that was sent, by the queues of both ports; at most two seconds."""
    table, ports = Path("/proc/net/tcp"), {server, client}
    for _ in range(200):
        time.sleep(0.01)
        rows = [row.split() for row in table.read_text().splitlines()[1:]] if table.exists() else []
        ends = [row for row in rows if {int(one.rpartition(":")[2], 16) for one in row[1:3]} == ports]
        if all(row[4] == "00000000:00000000" for row in ends):
            return


def chunks(content: Content, start: int = 0, size: int = CHUNK):
    """The bytes from `start` on, in pieces."""
    if isinstance(content, bytes):
        yield from (content[at : at + size] for at in range(start, len(content), size))
        return
    with content.open("rb") as file:
        file.seek(start)
        while chunk := file.read(size):
            yield chunk


def _sibling(name: str, stored: Stored, blobs: bool) -> dict[str, object]:
    if not blobs:
        return {"rfilename": name}
    large = {"lfs": {"sha256": stored.etag, "size": stored.size, "pointerSize": 134}} if stored.large else {}
    return {"rfilename": name, "size": stored.size, "blobId": stored.etag[:40], **large}
