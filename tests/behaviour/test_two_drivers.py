"""Two drivers of a cluster on one folder, and nodes with another dear, with an imitation of Ray in this process.

`make ray` does the same with the real one, in tests/cluster.
"""

import json
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from dear import __version__
from dear.cluster import nodes, tasks
from dear.errors import ClusterError, DearError, FolderBusyError, OverwriteError
from dear.evaluation import on_ray
from dear.evaluation.cells import make_cells
from dear.evaluation.grid import run_grid
from dear.storage.locks import locked
from helpers import make_photos
from needs import needs
from small_runs import small_grid

OLDER = "0.0.1"


class InProcess:
    """Ray's tasks, run one after the other when they are waited for; `before` is called before each one."""

    def __init__(self):
        names = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "RayError")
        self.exceptions = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in names})
        self.before = lambda: None

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2}}]

    def put(self, value):
        return value

    def remote(self, **_):
        def task(run):
            return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *words: partial(run, *words)))

        return task

    def wait(self, tasks, num_returns=1, timeout=None):
        return tasks[:1], tasks[1:]

    def get(self, task):
        self.before()
        return task()

    def cancel(self, task, force):
        pass


@pytest.fixture
def ray(monkeypatch):
    found = InProcess()

    @contextmanager
    def connected(on):
        yield found

    monkeypatch.setattr(on_ray, "connected", connected)
    monkeypatch.setattr(on_ray, "check_nodes", lambda *_: None)
    threads = torch.get_num_threads()
    yield found
    torch.set_num_threads(threads)


@pytest.fixture
def drive(tmp_path, tiny_folders):
    photos = make_photos(tmp_path / "photos", ["ant", "bee", "cow"], 4)

    def drive(out, **now):
        options = small_grid(tmp_path / out, tiny_folders, workers=1, threads=1, **now)
        cells = make_cells("few-shot", [str(photos)], methods=["zero_shot", "tip_adapter"], seeds=[1], shots=[1])
        return run_grid(cells, options)

    return drive


def test_a_second_driver_is_refused_and_the_first_one_ends_well(ray, drive, tmp_path):
    said = []

    def another():
        ray.before = lambda: None
        for how in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises((FolderBusyError, OverwriteError)) as error:
                drive("grid", on="ray", **how)
            said.append(str(error.value))

    ray.before = another
    first, alone = drive("grid", on="ray"), drive("alone")
    assert [one.scores for one in first] == [one.scores for one in alone]
    assert "already contains a grid: add resume=True" in said[0]
    for text in said[1:]:
        assert text.startswith(f"The grid in {tmp_path / 'grid'} is being written by process ")
        assert text.endswith(": wait for it, stop it, or choose another folder.")


def test_a_second_driver_on_another_machine_is_refused(ray, drive, tmp_path, monkeypatch):
    """On a shared disk its lock may not be seen, but its signature and heartbeat are."""
    said = []

    def another():
        ray.before = lambda: None
        with monkeypatch.context() as there:
            there.setattr("dear.storage.locks.socket.gethostname", lambda: "elsewhere")
            there.setattr("dear.storage.locks._acquire", lambda *_: None)
            with pytest.raises(FolderBusyError) as error:
                drive("grid", on="ray", resume=True)
        said.append(str(error.value))

    ray.before = another
    assert len(drive("grid", on="ray")) == 2
    assert "is being written by process " in said[0]


def test_a_node_with_another_version_returns_both_in_one_sentence(ray, drive, monkeypatch):
    """It joined after the nodes were asked; nothing is computed there."""
    here = nodes.versions_here
    monkeypatch.setattr(nodes, "versions_here", lambda: {**here(), "dear": OLDER})
    expected = nodes.here
    monkeypatch.setattr(on_ray, "here", lambda *words: expected(*words)._replace(versions=here()))
    with pytest.raises(ClusterError) as error:
        drive("grid", on="ray")
    text = str(error.value)
    assert f"has dear {OLDER}, but this machine has {__version__}: install the same version on both." in text


ANSWER = """
import json, pickle, sys
task, arguments = pickle.loads(sys.stdin.buffer.read())
print(json.dumps(task(*arguments)))
"""


@pytest.mark.parametrize("found", ["no dear", f"dear {OLDER}"])
def test_a_node_whose_dear_has_no_clusters_names_both_versions(tmp_path, found):
    """Its error was taken for that of a dead node, so that it was found out by the first cell that ran there."""
    needs("ray")
    from ray import cloudpickle

    package = tmp_path / "node" / "dear"
    package.mkdir(parents=True)
    text = f"__version__ = {OLDER!r}" if OLDER in found else "raise ImportError"
    (package / "__init__.py").write_text(text)
    with locked(tmp_path / "out", "grid"):
        sent = cloudpickle.dumps((nodes._look(), (nodes.here(tmp_path / "out")._asdict(),)))
    script = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(package.parent)!r})\n{ANSWER}"]
    done = subprocess.run(script, input=sent, capture_output=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(done.stdout)
    assert answer.endswith(f" has {found}, but this machine has {__version__}: install the same version on both.")


class TaskError(Exception):
    """As Ray's, which is an error of Ray, too."""


def test_a_task_that_raises_on_a_node_is_not_a_dead_node(tmp_path, monkeypatch):
    exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=Exception)
    affinity = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", affinity)

    def get(_):
        raise TaskError("Traceback\n  somewhere\nModuleNotFoundError: No module named 'torch'\n")

    ray = SimpleNamespace(
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 2}, "NodeID": "1", "NodeName": "box"}],
        remote=lambda **_: lambda run: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda one: 1)),
        wait=lambda asked, **_: (asked, []),
        get=get,
        exceptions=exceptions,
    )
    with locked(tmp_path / "out", "grid"), pytest.raises(DearError) as error:
        nodes.check_nodes(ray, nodes.here(tmp_path / "out"), 1, 0)
    assert str(error.value) == "The node box cannot run dear (ModuleNotFoundError: No module named 'torch')."


def test_errors_of_ray_are_named_by_their_last_line():
    assert nodes.last_line(ValueError("a\n b \n\n")) == "b"
    assert nodes.last_line(ValueError("")) == "ValueError"
    assert tasks.error_of("FolderError", "x").args == ("x",)
