"""SkipTuning's own life: what it keeps of classes, its draw, its copies of CLIP's layers, its large checkpoints."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import dear
from dear.engine import checkpoint
from dear.engine.run import run_job
from dear.engine.run_folder import CHECKPOINT
from dear.methods.base import Batch
from helpers import build, plain_images
from toys import KilledError, Toy, adapter_hash, at_step

NAMES = [f"thing {number}" for number in range(12)]
LABELS = torch.tensor([3, 3, 3, 3])


@pytest.fixture(params=["plain", "odd", "shallow"])
def clip(request, tiny_clips):
    return tiny_clips[request.param]


def step(model, labels=LABELS, seed=1, number=1):
    images = plain_images(model.clip, len(labels))
    return model(images, batch=Batch(labels, seed, number, None, len(labels)))


@torch.no_grad()
def test_untrained_copies_are_plain_clip(clip):
    model, images = build("skiptuning", clip, NAMES), plain_images(clip, 3)
    assert torch.allclose(model(images).logits, model.plain()(images).logits, atol=1e-4)
    own = {tensor.data_ptr() for tensor in model.trainable().values()}
    assert not own & {tensor.data_ptr() for tensor in clip.parameters()}


def test_a_step_keeps_half_of_the_classes_and_its_labels(clip):
    out = step(build("skiptuning", clip, NAMES))
    kept = out.rest["kept"]
    assert 7 <= len(kept) < 12
    assert kept.tolist() == sorted(kept.tolist())
    assert [NAMES[kept[place]] for place in out.rest["labels"]] == [NAMES[label] for label in LABELS]
    assert out.logits.shape == (4, len(kept))


def test_labels_survive_where_few_classes_are_kept(clip):
    labels = torch.arange(4)
    out = step(build("skiptuning", clip, NAMES, top=1.5, most=1), labels)
    assert out.rest["kept"][out.rest["labels"]].tolist() == labels.tolist()
    two = step(build("skiptuning", clip, NAMES[:2]), torch.tensor([0, 1, 1, 0]))
    assert two.rest["kept"].tolist() == [0, 1]


def test_all_classes_are_kept_if_none_are_to_be_skipped(clip):
    assert step(build("skiptuning", clip, NAMES, top=1.0)).rest["kept"].tolist() == list(range(12))


def test_ranks_are_drawn_once_per_seed_or_in_every_step(clip):
    def drawn(seed, number, **config):
        return tuple(
            step(build("skiptuning", clip, NAMES * 1, falloff=2.0, **config), LABELS, seed, number)
            .rest["ranks"]
            .tolist()
        )

    assert len({drawn(1, number) for number in range(1, 9)}) == 1
    assert len({drawn(seed, 1) for seed in range(1, 9)}) > 1
    assert len({drawn(1, number, redraw=True) for number in range(1, 9)}) > 1


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_copies_are_trained_in_fp32_on_a_clip_in_half(tiny_folders, precision):
    clip = dear.load_clip(f"local-dir:{tiny_folders['odd']}", "random", precision=precision, seed=5)
    model, images = build("skiptuning", clip, NAMES), plain_images(clip, 4)
    assert {tensor.dtype for tensor in model.trainable().values()} == {torch.float32}
    with torch.no_grad():
        assert torch.allclose(model(images).logits, model.plain()(images).logits, atol=2.0)
    model.loss(images, LABELS)["total"].backward()
    assert all(tensor.grad.isfinite().all() for tensor in model.trainable().values())


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_a_large_state_is_written_by_time_and_resumed_to_the_same_bytes(clip, tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(checkpoint, "LARGE", 0)
    monkeypatch.setattr(checkpoint, "SECONDS", seconds)
    job = replace(Toy(per_class=4).job(method="skiptuning", epochs=2, batch_size=2), shots=4)
    run_job(job, clip, tmp_path / "whole", workers=0)
    with pytest.raises(KilledError):
        run_job(job, clip, tmp_path / "killed", workers=0, on_step=at_step(8))
    assert (tmp_path / "killed" / CHECKPOINT).is_file() == (seconds == 0)
    run_job(job, clip, tmp_path / "killed", workers=0, if_exists="resume")
    assert adapter_hash(tmp_path / "whole") == adapter_hash(tmp_path / "killed")
    states = [load_file(tmp_path / name / CHECKPOINT) for name in ("whole", "killed")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
