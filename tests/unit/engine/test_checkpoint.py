"""A checkpoint comes back whole or is refused with a sentence."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import dear
from dear.engine import checkpoint as module
from dear.engine.checkpoint import Progress, read_checkpoint, write_checkpoint
from dear.engine.optim import make_optimiser
from dear.errors import CheckpointError
from dear.methods.base import NoConfig

SHAPES = {"tokens": (3, 4), "scalars": (2,), "one": ()}
PROGRESS = Progress(step=3, skipped=2, scaler={"scale": 8.0, "growth_tracker": 1})
KINDS = ("sgd", "adam", "adamw")


def fresh(shapes=SHAPES, seed=0, kind="adamw"):
    generator = torch.Generator().manual_seed(seed)
    method = dear.Method(None, NoConfig())
    for name, shape in shapes.items():
        method.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))
    method.register_buffer("seen", torch.tensor([seed, 2**40 + seed]))
    method.register_buffer("rounded", torch.tensor([seed + 0.5]).to(torch.bfloat16))
    return method, make_optimiser(dear.Recipe(optimiser=kind, lr=0.1), method.trained)


def advance(method, optimizer, steps):
    for step in range(steps):
        for parameter in method.parameters():
            parameter.grad = torch.full_like(parameter, 0.3 + step) * parameter.detach()
        optimizer.step()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    method, optimizer = fresh()
    advance(method, optimizer, 3)
    write_checkpoint(path, method, optimizer, PROGRESS)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_from_a_checkpoint_is_the_same_as_never_having_stopped(tmp_path, kind):
    kept, kept_optimizer = fresh(kind=kind)
    advance(kept, kept_optimizer, 3)
    write_checkpoint(tmp_path / "c", kept, kept_optimizer, PROGRESS, {"tokens": torch.ones(3, 4)})
    method, optimizer = fresh(seed=1, kind=kind)
    progress, average = read_checkpoint(tmp_path / "c", method, optimizer)
    assert progress == PROGRESS
    assert torch.equal(average["tokens"], torch.ones(3, 4))
    advance(method, optimizer, 2)
    advance(kept, kept_optimizer, 2)
    assert method.seen.tolist() == [0, 2**40]  # whole numbers stay whole numbers
    assert method.rounded.dtype == torch.bfloat16
    expected = kept.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in method.state_dict().items())
    for name, parameter in method.trained.items():
        state, theirs = optimizer.state[parameter], kept_optimizer.state[kept.trained[name]]
        assert state.keys() == theirs.keys()
        assert all(torch.equal(state[key], theirs[key]) for key in state)


def test_a_parameter_without_updates_has_no_moments(tmp_path):
    method, optimizer = fresh()
    method.tokens.grad = torch.ones_like(method.tokens)
    optimizer.step()
    write_checkpoint(tmp_path / "c", method, optimizer, Progress(step=1))
    again, optimizer = fresh(seed=1)
    read_checkpoint(tmp_path / "c", again, optimizer)
    assert set(optimizer.state) == {again.tokens}


def test_before_the_first_update_there_are_no_moments(tmp_path):
    write_checkpoint(tmp_path / "c", *fresh(), Progress())
    assert read_checkpoint(tmp_path / "c", *fresh(seed=1)) == (Progress(), {})


def test_what_was_read_does_not_hang_on_the_file(path):
    method, optimizer = fresh(seed=1)
    read_checkpoint(path, method, optimizer)
    before = {name: optimizer.state[p]["exp_avg"].clone() for name, p in method.trained.items()}
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert all(torch.equal(optimizer.state[p]["exp_avg"], before[name]) for name, p in method.trained.items())


def refused(path, match="is damaged or not a checkpoint of this method: start over with overwrite=True", shapes=SHAPES):
    method, optimizer = fresh(shapes, seed=1)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    with pytest.raises(CheckpointError, match=match) as error:
        read_checkpoint(path, method, optimizer)
    assert str(path) in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())
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
    save_file({f"method/{name}": torch.zeros(shape) for name, shape in SHAPES.items()}, path)
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
    sentence = r"cannot be written \(No space left on device\); the one before it is whole: fix that and resume"
    with pytest.raises(CheckpointError, match=sentence):
        write_checkpoint(path, *fresh(), Progress(step=9))
    assert path.read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]


def test_a_vanished_folder_is_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_checkpoint(tmp_path / "gone" / "c", *fresh(), Progress())


def test_no_other_format_is_read(path, monkeypatch):
    monkeypatch.setattr(module, "FORMAT", "dear-checkpoint 3")
    refused(Path(path))


def test_a_checkpoint_says_what_everything_is(path):
    names = set(load_file(path))
    assert {name for name in names if name.startswith("method/")} == {
        f"method/{n}" for n in (*SHAPES, "seen", "rounded")
    }
    moments = {f"optimiser/{name}/{key}" for name in SHAPES for key in ("step", "exp_avg", "exp_avg_sq")}
    assert {name for name in names if name.startswith("optimiser/")} == moments


def test_small_methods_are_written_by_steps(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    pace = module.Pace(fresh()[0], every=3)
    assert [step for step in range(1, 9) if pace.due(step, ends_epoch=step == 4, ends=False)] == [3, 4, 6]


def test_large_methods_are_written_by_time_and_at_the_end(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    pace, written = module.Pace(fresh()[0], every=1), []
    for step in range(1, 9):
        now[0] += 0.4 * module.SECONDS
        if pace.due(step, ends_epoch=True, ends=step == 8):
            written.append(step)
    assert written == [3, 6, 8]
