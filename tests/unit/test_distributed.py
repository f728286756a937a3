"""Alone, nothing of the machinery for several processes does anything."""

import pytest
import torch

from dear.engine.distributed import Ranks, join, local_device


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
