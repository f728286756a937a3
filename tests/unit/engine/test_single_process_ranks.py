"""Alone, nothing of the machinery for several processes does anything."""

import pytest
import torch

from dear.engine.ranks import Ranks, join, local_device
from dear.errors import TrainingError


def test_alone(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    ranks = join(torch.device("cpu"))
    assert ranks == Ranks(0, 1)
    assert ranks.is_first
    tensor = torch.ones(2)
    ranks.sum_(tensor)
    ranks.wait()
    assert tensor.tolist() == [1, 1]
    assert ranks.gather("größe") == ["größe"]


def test_a_world_that_torchrun_did_not_make_is_no_world(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert join(torch.device("cpu")) == Ranks()


def test_waiting_for_a_process_that_stopped_is_one_sentence(monkeypatch):
    def gone(*args):
        raise RuntimeError("Connection closed by peer")

    for name in ("all_reduce", "all_gather", "barrier"):
        monkeypatch.setattr(torch.distributed, name, gone)
    ranks = Ranks(1, 2)
    for wait in (ranks.wait, lambda: ranks.sum_(torch.ones(1)), lambda: ranks.gather("x")):
        with pytest.raises(TrainingError, match="Another process of this training has stopped"):
            wait()


@pytest.mark.parametrize(
    ("wanted", "gpu", "expected"),
    [
        (None, False, "cpu"),
        (None, True, "cuda:3"),
        ("cuda", True, "cuda:3"),
        ("cuda", False, "cuda"),
        ("cuda:1", True, "cuda:1"),
        ("cpu", True, "cpu"),
    ],
)
def test_every_process_has_a_device_of_its_own(monkeypatch, wanted, gpu, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device(wanted) == expected
