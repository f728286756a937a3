"""Tasks of a cluster: what they return instead of raising it. Nothing here starts Ray."""

from types import SimpleNamespace

import pytest
import torch

from dear.cluster import nodes, tasks
from dear.errors import TrainingError

LOCAL = SimpleNamespace(remote=lambda **how: lambda run: run)


def greedy(order, error):
    """A task that runs out of memory."""
    raise error


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")], ids=["cpu", "gpu"])
def test_a_task_without_memory_fails_by_itself_and_does_not_end_the_others(error, monkeypatch):
    monkeypatch.setattr(nodes, "problem_here", lambda expected: None)
    order = tasks.make_order(1, ((), ()), None)
    kind, text = tasks.as_task(LOCAL, "test_cluster_tasks:greedy", 1, 0.0)(order, error)
    found = tasks.error_of(kind, text)
    assert isinstance(found, TrainingError), "a cluster error would end a whole search"
    assert "not enough memory" in str(found)
