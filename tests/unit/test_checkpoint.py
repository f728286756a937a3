"""A checkpoint comes back whole or is refused with a sentence."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dear.engine import checkpoint as module
from dear.engine.checkpoint import Progress, read_checkpoint, write_checkpoint
from dear.errors import CheckpointError

SHAPES = {"tokens": (3, 4), "scalars": (2,), "one": ()}
PROGRESS = Progress(step=3, skipped=2, scaler={"scale": 8.0, "growth_tracker": 1})


def fresh(shapes=SHAPES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parameters = {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}
    return parameters, torch.optim.AdamW(parameters.values(), lr=0.1)


def advance(parameters, optimizer, steps):
    for step in range(steps):
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, 0.3 + step) * parameter.detach()
        optimizer.step()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    parameters, optimizer = fresh()
    advance(parameters, optimizer, 3)
    write_checkpoint(path, parameters, optimizer, PROGRESS)
    return path


def test_going_on_from_a_checkpoint_is_going_on(path):
    kept, kept_optimizer = fresh()
    advance(kept, kept_optimizer, 3)
    parameters, optimizer = fresh(seed=1)
    assert read_checkpoint(path, parameters, optimizer) == PROGRESS
    advance(parameters, optimizer, 2)
    advance(kept, kept_optimizer, 2)
    for name, parameter in parameters.items():
        assert torch.equal(parameter, kept[name])
        for moment in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(optimizer.state[parameter][moment], kept_optimizer.state[kept[name]][moment])


def test_before_the_first_update_there_are_no_moments(tmp_path):
    parameters, optimizer = fresh()
    write_checkpoint(tmp_path / "c", parameters, optimizer, Progress())
    assert read_checkpoint(tmp_path / "c", *fresh(seed=1)) == Progress()


def test_what_was_read_does_not_hang_on_the_file(path):
    parameters, optimizer = fresh(seed=1)
    read_checkpoint(path, parameters, optimizer)
    before = {name: optimizer.state[p]["exp_avg"].clone() for name, p in parameters.items()}
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert all(torch.equal(optimizer.state[p]["exp_avg"], before[name]) for name, p in parameters.items())


def refused(path, match="is damaged or not a checkpoint of this method: start again with --overwrite", shapes=SHAPES):
    parameters, optimizer = fresh(shapes, seed=1)
    before = {name: p.detach().clone() for name, p in parameters.items()}
    with pytest.raises(CheckpointError, match=match) as error:
        read_checkpoint(path, parameters, optimizer)
    assert str(path) in str(error.value)
    assert all(torch.equal(p, before[name]) for name, p in parameters.items())
    assert not optimizer.state


def test_any_flipped_byte_is_found(path):
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        refused(path)


def test_a_truncated_file_is_found(path):
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        refused(path)


def test_foreign_files_are_refused(path):
    path.write_text("hello")
    refused(path)
    save_file({"x": torch.zeros(2)}, path)
    refused(path)
    save_file({f"parameter.{name}": torch.zeros(shape) for name, shape in SHAPES.items()}, path)
    refused(path)


@pytest.mark.parametrize("shapes", [{"tokens": (3, 4)}, {**SHAPES, "more": (1,)}, {**SHAPES, "tokens": (1, 4)}])
def test_another_methods_checkpoint_is_refused(path, shapes):
    refused(path, shapes=shapes)


def test_a_missing_file_is_one_sentence(tmp_path):
    refused(tmp_path / "none.safetensors", "cannot be read")


def test_full_disk_keeps_the_old_file(path, monkeypatch):
    whole = path.read_bytes()

    def no_space(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    sentence = r"cannot be written \(No space left on device\); the one before it is whole: put that right and go on"
    with pytest.raises(CheckpointError, match=sentence):
        write_checkpoint(path, *fresh(), Progress(step=9))
    assert path.read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]


def test_a_vanished_folder_is_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_checkpoint(tmp_path / "gone" / "c", *fresh(), Progress())


def test_no_other_format_is_read(path, monkeypatch):
    monkeypatch.setattr(module, "FORMAT", "dear-checkpoint 2")
    refused(Path(path))
