"""`--method auto --on ray` with an imitation of Ray that runs tasks in this process; `make ray` uses the real one."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import dear
from dear.errors import ClusterError, ConfigError
from dear.evaluation.choice import read_choice
from dear.workflows import auto_on_ray
from helpers import make_photos

CLASSES = ("cat", "dog", "hot air balloon", "tea pot")
HOW = {"candidates": "tip_adapter,linear_probe,clip_adapter", "cached_views": 2, "epochs": 2, "workers": 0}


class InProcess:
    """Tasks of an imitated Ray: a task that is in `never` is never done."""

    def __init__(self):
        self.ran, self.cancelled, self.never = [], [], set()
        errors = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "RayError")
        self.exceptions = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in errors})

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2}}]

    def put(self, value):
        return value

    def remote(self, **how):
        assert (how["num_cpus"], how["retry_exceptions"]) == (1, False)
        return lambda run: SimpleNamespace(remote=lambda *arguments: (run, arguments))

    def wait(self, tasks, timeout, num_returns=1):
        done = [task for task in tasks if task[1][2] not in self.never]
        return done, [task for task in tasks if task not in done]

    def get(self, task):
        run, arguments = task
        self.ran.append(arguments[2])
        return run(*arguments)

    def cancel(self, task, force):
        self.cancelled.append(task[1][2])


@pytest.fixture
def ray(monkeypatch):
    found = InProcess()

    @contextmanager
    def connected(on):
        yield found

    monkeypatch.setattr(auto_on_ray, "connected", connected)
    monkeypatch.setattr(auto_on_ray, "check_nodes", lambda *arguments: None)
    threads = torch.get_num_threads()
    yield found
    torch.set_num_threads(threads)


@pytest.fixture
def fit(tmp_path, tiny_folders):
    photos = make_photos(tmp_path / "photos", CLASSES, 6)
    clip = {"clip": f"local-dir:{tiny_folders['plain']}", "pretrained": "random"}

    def fit(out, **options):
        return dear.fit(photos, method="auto", out=tmp_path / out, threads=1, **clip, **HOW, **options)

    return fit


def timeless(folder):
    content = json.loads((folder / "auto.json").read_text())
    del content["seconds"]
    return content, (folder / "adapter_model.safetensors").read_bytes()


def test_a_cluster_answers_as_this_machine_does(fit, ray, tmp_path):
    fit("here")
    fit("there", on="ray")
    assert timeless(tmp_path / "there") == timeless(tmp_path / "here")
    choice = read_choice(tmp_path / "there")
    asked = {(method, name) for method, name, shots in ray.ran if shots is None}
    assert len(asked) == 3 * 6 + 4, "plain CLIP answers for the linear probe if classes are left out"
    assert ({shots for _, _, shots in ray.ran} == {None}) == (choice.curve == {})


def test_what_is_not_done_in_time_is_not_tried(fit, ray, tmp_path):
    ray.never.add(("clip_adapter", "left out 1", None))
    fit("run", on="ray")
    states = {one.method: one.state for one in read_choice(tmp_path / "run").candidates}
    assert states == {
        "zero_shot": "tried",
        "tip_adapter": "tried",
        "linear_probe": "tried",
        "clip_adapter": "not tried",
    }
    assert ("clip_adapter", "fold 4", None) in ray.cancelled


def test_an_interrupted_search_on_a_cluster_is_resumed_without_it(fit, ray, tmp_path, monkeypatch):
    fit("whole", on="ray")
    stop = iter([False] * 7 + [True])

    def get(task):
        if next(stop, False):
            raise RuntimeError("a power cut")
        return InProcess.get(ray, task)

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(RuntimeError, match="a power cut"):
        fit("run", on="ray")
    fit("run", resume=True)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_a_node_that_sees_other_photos_is_refused(fit, ray, monkeypatch):
    real = auto_on_ray.run_task
    monkeypatch.setattr(auto_on_ray, "run_task", lambda *arguments: {**real(*arguments), "mark": "another"})
    with pytest.raises(ClusterError, match="A node sees other photos or weights than this machine"):
        fit("run", on="ray")


def test_an_error_on_a_node_leaves_the_candidate_out(fit, ray, tmp_path, monkeypatch):
    real = auto_on_ray.run_task

    def run_task(order, options, asked):
        if asked[0] == "clip_adapter":
            raise ConfigError("It does not fit.")
        return real(order, options, asked)

    monkeypatch.setattr(auto_on_ray, "run_task", run_task)
    fit("run", on="ray")
    failed = {one.method: one.why for one in read_choice(tmp_path / "run").candidates if one.state == "failed"}
    assert failed == {"clip_adapter": "It does not fit."}


def test_what_a_cluster_cannot_be_sent_is_one_sentence(tmp_path, clip):
    photos = make_photos(tmp_path / "photos", CLASSES[:2], 2)
    for how in ({"clip": clip, "out": tmp_path / "run"}, {"clip": "world"}):
        with pytest.raises(ConfigError, match="what is in memory cannot be sent to a cluster"):
            dear.fit(photos, method="auto", on="ray", **how)
    with pytest.raises(ConfigError, match="on='ray' works with method='auto' only"):
        dear.fit(photos, clip, method="coop", on="ray")
