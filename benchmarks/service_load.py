"""examples/serve.py under load: concurrent requests with several class lists, then hostile uploads. Linux only.

python benchmarks/service_load.py [--requests 200] [--out results/service.json]

Starts the service with uvicorn on the loopback interface, with an adapter of the embedded world and one thread. Every
answer is compared with `dear.predict` for the same photo and class list.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import dear

ROOT = Path(__file__).resolve().parents[1]
LISTS = (None, ["red", "green", "blue"], ["a star", "a heart", "a circle", "a square"])
GIGABYTE, PIECE = 1_000_000_000, 1_000_000


def form(photo: bytes, classes: list[str] | None) -> tuple[bytes, dict[str, str]]:
    """A photo and a class list as the body of a request, and its headers."""
    parts = [("photo", 'filename="photo.png"', photo), *(("classes", "", name.encode()) for name in classes or ())]
    body = b"".join(
        f'--B\r\nContent-Disposition: form-data; name="{name}"; {more}\r\n\r\n'.encode() + data + b"\r\n"
        for name, more, data in parts
    )
    return body + b"--B--\r\n", {"Content-Type": "multipart/form-data; boundary=B"}


def post(port: int, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, Any], float]:
    """Status, answer and seconds of one request on a connection of its own."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # the service may answer before the end
            connection.request("POST", "/predict", body, headers, encode_chunked=not isinstance(body, bytes))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), time.perf_counter() - began
    finally:
        connection.close()


def memory(pid: int, what: str) -> int:
    """Megabytes of a process: VmRSS now, VmHWM at most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(int(next(line for line in lines if line.startswith(what)).split()[1]) / 1000)


def hostile() -> dict[str, tuple[Any, dict[str, str]]]:
    """Uploads that nobody should send."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 40_000, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 60_001)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"

    def streamed() -> Iterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n\r\n'
        for _ in range(GIGABYTE // PIECE):
            yield b"x" * PIECE

    return {
        "bomb of 2,400 megapixels": form(bomb, None),
        "1 GB streamed": (
            streamed(),
            {"Content-Type": "multipart/form-data; boundary=B", "Transfer-Encoding": "chunked"},
        ),
        "EPS": form(eps, None),
        "text": form(b"not a photo", None),
        "JSON": (b"{}", {"Content-Type": "application/json"}),
    }


def load(port: int, pid: int, model: dear.Model, photos: list[bytes], count: int) -> dict[str, Any]:
    """Send all requests at once and compare the answers with those of `dear.predict`."""
    asked = [(photos[number % len(photos)], LISTS[number % len(LISTS)]) for number in range(count)]
    bodies, before = [form(*one) for one in asked], memory(pid, "VmRSS")
    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(lambda body: post(port, *body), bodies))
    wrong = 0
    for (photo, classes), (status, answer, _) in zip(asked, found, strict=True):
        (expected,) = model.predict(photo, classes)
        wrong += status != 200 or answer["label"] != expected.label
    seconds = sorted(one for _, _, one in found)
    return {
        "requests": count,
        "class_lists": len(LISTS),
        "wrong": wrong,
        "refused": sum(status == 503 for status, _, _ in found),
        "seconds": {"median": statistics.median(seconds), "p95": seconds[int(0.95 * count)], "max": seconds[-1]},
        "megabytes": {"before": before, "after": memory(pid, "VmRSS"), "most": memory(pid, "VmHWM")},
    }


def attack(port: int, pid: int, photo: bytes) -> list[dict[str, Any]]:
    """What each hostile upload is answered, and whether the service still answers others."""
    rows = []
    for name, request in hostile().items():
        status, answer, seconds = post(port, *request)
        alive = post(port, *form(photo, None))[0] == 200
        sentence, most = answer["detail"], memory(pid, "VmHWM")
        rows.append(
            {
                "upload": name,
                "status": status,
                "answer": sentence,
                "seconds": seconds,
                "alive": alive,
                "megabytes": most,
            }
        )
    return rows


def main() -> None:
    """Measure, print and write JSON."""
    words = argparse.ArgumentParser()
    words.add_argument("--requests", type=int, default=200)
    words.add_argument("--out", type=Path, default=Path("results/service.json"))
    given = words.parse_args()
    data = dear.open_dataset("world-blooms")
    pictures, photos = data.images(data.test).spread(40), []
    for number in range(len(pictures)):
        file = io.BytesIO()
        pictures.open(number).save(file, "PNG")
        photos.append(file.getvalue())
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        model = dear.fit("world-blooms", clip="world", shots=1, epochs=1, threads=1, out=f"{folder}/run")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "serve:app",
            "--app-dir",
            str(ROOT / "examples"),
            "--port",
            str(port),
        ]
        with subprocess.Popen(
            [*command, "--log-level", "warning"],
            env={**os.environ, "DEAR_RUN": f"{folder}/run", "DEAR_THREADS": "1"},
        ) as server:
            try:
                wait_for(port)
                found = {
                    "load": load(port, server.pid, model, photos, given.requests),
                    "hostile": attack(port, server.pid, photos[0]),
                }
            finally:
                server.terminate()
    print(json.dumps(found, indent=1))
    given.out.write_text(json.dumps(found, indent=1) + "\n")


def wait_for(port: int) -> None:
    """Wait until the service answers."""
    for _ in range(1200):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("The service did not start.")


if __name__ == "__main__":
    main()
