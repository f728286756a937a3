"""Connecting to Ray: addresses, what does not answer, and room for work. Nothing here starts Ray."""

import builtins
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from dear import __version__
from dear.cluster import blocks
from dear.cluster.connection import SETTINGS, address_of, answers, check_room, connected
from dear.cluster.nodes import here
from dear.errors import ClusterError, MissingExtraError, typed
from dear.storage.locks import locked


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ray", None),
        ("ray:auto", "auto"),
        ("ray:head", "head:6379"),
        ("ray:10.0.0.1:7000", "10.0.0.1:7000"),
        ("ray:[::1]:7000", "[::1]:7000"),
    ],
)
def test_addresses(text, address):
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", "spark", "ray:", "ray: ", "ray:head:x", "ray::7", "ray:h:0", "ray:ray://h:1"])
def test_what_is_not_an_address(text):
    with pytest.raises(ValueError, match="not "):
        address_of(text)


@contextmanager
def server(reply: bytes) -> Iterator[str]:
    """A server that answers one client with these bytes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            line, _ = listening.accept()
            with line:
                line.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def test_only_what_speaks_as_ray_does_answers():
    with server(bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0))) as address:
        assert answers(address)
    with server(b"HTTP/1.1 400 Bad Request\r\n") as address:
        assert not answers(address)
    assert not answers(address)  # nobody listens there any more


def test_nobody_answers():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with typed(), pytest.raises(ClusterError) as error, connected(f"ray:127.0.0.1:{port}"):
        raise AssertionError
    start = f"No Ray answers at 127.0.0.1:{port}: start one there with 'ray start --head', or correct "
    assert str(error.value) == f"{start}--on ray:127.0.0.1:{port}."


def test_without_the_extra(monkeypatch):
    usual = builtins.__import__

    def without_ray(name, *more):
        if name == "ray":
            raise ModuleNotFoundError(name)
        return usual(name, *more)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    with pytest.raises(MissingExtraError, match=r"on='ray' needs Ray: pip install 'dear-vlm\[ray\]'\."):
        connected("ray").__enter__()


def node(cpus, gpus=0, alive=True):
    return {"Alive": alive, "Resources": {"CPU": cpus, **({"GPU": gpus} if gpus else {})}}


def test_room():
    nodes = [node(8, 1), node(3), node(64, 8, alive=False)]
    assert check_room(nodes, 2) == 5
    assert check_room(nodes, 1, 0.25) == 4
    assert check_room(nodes, 4, 0.25) == 2


def test_no_room():
    with typed(), pytest.raises(ClusterError, match=r"^--gpus 0.25 asks for a GPU, but the cluster has none: leave"):
        check_room([node(8)], 1, 0.25)
    with typed(), pytest.raises(ClusterError, match=r"^--threads 9 asks for more CPUs than any node .* \(at most 8\)"):
        check_room([node(8), node(4)], 9)
    with typed(), pytest.raises(ClusterError, match=r"beside a GPU \(at most 8\): give fewer threads"):
        check_room([node(8), node(4, 1)], 8, 1)
    with pytest.raises(ClusterError, match="none"):
        check_room([], 1, 1)


def worker_of(order):
    return lambda block: {"done": block["number"] + order["first"]}


def test_blocks_are_done_only_by_nodes_that_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with locked(tmp_path / "out", "index"):
        expected = here(tmp_path / "out", current=tmp_path / "out")
        row = {"block": json.dumps({"number": 3})}
        assert json.loads(blocks._Actor(worker_of, '{"first": 4}', expected)(row)["result"]) == {"done": 7}
        older = blocks._Actor(worker_of, "{}", expected._replace(versions={"dear": "0.0.1"}))
        found = json.loads(older(row)["result"])
        assert found["error"] == "ClusterError"
        assert f"has dear {__version__}, but this machine has 0.0.1: install the same version" in found["text"]
        elsewhere = blocks._Actor(worker_of, "{}", expected._replace(folder=str(tmp_path / "other")))
        assert "does not see the folder" in json.loads(elsewhere(row)["result"])["text"]


def test_nodes_are_checked_before_the_first_block(tmp_path, monkeypatch):
    asked = []

    def refuse(ray, expected, cpus, gpus):
        asked.append((expected.folder, cpus, gpus))
        raise ClusterError("The node n has dear 0.0.1.")

    monkeypatch.setattr(blocks, "check_nodes", refuse)
    cluster = blocks.Cluster(SimpleNamespace(nodes=lambda: [node(2)]), threads=2)
    with locked(tmp_path, "index"):
        assert not list(blocks.each_block(cluster, worker_of, {}, [], tmp_path))  # nothing to do, nobody to ask
        with pytest.raises(ClusterError, match=r"The node n has dear 0\.0\.1"):
            next(blocks.each_block(cluster, worker_of, {}, [{"number": 1}], tmp_path))
    assert asked == [(str(tmp_path.resolve()), 2, 0.0)]
