"""Connecting to Ray: addresses, what does not answer, and room for work. Nothing here starts Ray."""

import builtins
import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from dear import __version__
from dear.cluster import blocks, tasks
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


class FakeRay(SimpleNamespace):
    """In place of the package: notes the addresses that it is asked to connect to."""

    def __init__(self, error=None):
        refused = {"AuthenticationError": PermissionError, "RayError": RuntimeError}
        super().__init__(asked=[], error=error, exceptions=SimpleNamespace(**refused))

    def is_initialized(self):
        return False

    def init(self, address, **options):
        self.asked.append((address, options.get("_node_ip_address")))
        signal.signal(signal.SIGTERM, lambda *_: None)
        if self.error:
            raise self.error

    def shutdown(self):
        pass


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr("dear.cluster.connection.answers", lambda address: "silent" not in address)
    return fake


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("10.0.0.1", ("10.0.0.1:6379", None)),
        (" head:7000 ", ("head:7000", None)),
        ("auto", ("auto", None)),
        ("local", ("local", "127.0.0.1")),
        ("", ("local", "127.0.0.1")),
    ],
)
def test_the_variable_is_read_as_the_option_is(ray, monkeypatch, text, asked):
    monkeypatch.setenv("RAY_ADDRESS", text)
    with connected("ray"), connected("ray:other"):
        assert ray.asked == [asked, ("other:6379", None)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ray://host:10001", "RAY_ADDRESS is ray://host:10001, but Ray's client is not supported: set it to HOST:6379"),
        ("http://host:8265", "RAY_ADDRESS is http://host:8265, which is not an address: set it to HOST:6379, or unset"),
        ("host:99999", "RAY_ADDRESS is host:99999, which is not an address"),
        ("silent", "No Ray answers at silent:6379: start one there with 'ray start --head', or correct RAY_ADDRESS."),
    ],
)
def test_a_wrong_variable_is_named(ray, monkeypatch, text, sentence):
    monkeypatch.setenv("RAY_ADDRESS", text)
    with typed(), pytest.raises(ClusterError) as error, connected("ray"):
        raise AssertionError
    assert str(error.value).startswith(sentence)
    assert not ray.asked


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("head", PermissionError(), r"^The Ray at head:6379 \(RAY_ADDRESS\) needs its token"),
        ("head", RuntimeError("no"), r"^The Ray at head:6379 \(RAY_ADDRESS\) does not accept this process \(no\)"),
        ("auto", ConnectionError(), r"^No Ray runs on this machine: .*, or give its address, in RAY_ADDRESS\.$"),
    ],
)
def test_what_refuses_is_named_with_the_variable(ray, monkeypatch, text, error, sentence):
    monkeypatch.setenv("RAY_ADDRESS", text)
    ray.error = error
    with pytest.raises(ClusterError, match=sentence), connected("ray"):
        raise AssertionError


@pytest.mark.parametrize("error", [None, ConnectionError("no"), KeyboardInterrupt()])
def test_sigterm_is_as_before_also_if_connecting_fails(ray, error):
    ray.error, before = error, signal.getsignal(signal.SIGTERM)
    try:
        with connected("ray:head"):
            assert signal.getsignal(signal.SIGTERM) == before
    except (ClusterError, KeyboardInterrupt):
        assert error
    assert signal.getsignal(signal.SIGTERM) == before
    signal.signal(signal.SIGTERM, before)


def node(cpus, gpus=0, alive=True):
    return {"Alive": alive, "Resources": {"CPU": cpus, **({"GPU": gpus} if gpus else {})}}


def test_room():
    nodes = [node(8, 1), node(3), node(64, 8, alive=False)]
    assert check_room(nodes, 2) == 5
    assert check_room(nodes, 1, 0.25) == 4
    assert check_room(nodes, 4, 0.25) == 2
    assert [check_room([node(99, gpus)], 1, share) for gpus, share in ((1, 0.2), (1, 0.1), (8, 0.1))] == [5, 10, 80]


def test_nodes_that_left_for_good_are_not_waited_for(monkeypatch):
    """A grid stood still without a word."""
    monkeypatch.setattr(tasks, "LOOKS", 3)
    alive = [[node(4)], [node(4, alive=False)], [node(4)], *[[node(1), node(4, alive=False)]] * 3]
    seen = iter(alive)
    ray = SimpleNamespace(wait=lambda *_, **__: ([], ["task"]), nodes=lambda: next(seen))
    with typed(), pytest.raises(ClusterError, match=r"^--threads 2 asks for more CPUs than any node .* \(at most 1\)"):
        tasks.first_done(ray, ["task"], 2, 0)
    assert list(seen) == []
    ray = SimpleNamespace(wait=lambda waiting, **_: (waiting[1:], waiting[:1]))
    assert tasks.first_done(ray, ["one", "other"], 2, 0) == "other"


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
