"""Classes are encoded in chunks if a step of all would not fit into the free memory, with the same gradients."""

import pytest
import torch

from dear.backbone.precision import computing
from dear.engine.feed import StepImages
from dear.engine.gradients import share_of_step
from dear.engine.run import run_job
from dear.engine.run_folder import read_run
from dear.model import class_chunk as module
from dear.model import model as model_module
from dear.model.class_chunk import class_chunk, free_memory, step_bytes
from helpers import build, move_parameters, plain_images
from toys import Toy

NAMES = [f"{color} {thing}" for color in ("red", "green", "blue", "gray") for thing in ("cat", "dog", "car")]


@pytest.fixture
def little_memory(clip, monkeypatch):
    """Room for the step of five classes."""
    longest = build("dear", clip, NAMES).required_classes()
    tokens = clip.text.tokenize(longest.prompts()).ids_CT.shape[1] + module.LEARNED
    free = int(5.5 * step_bytes(clip, min(clip.text.context, tokens)) / module.SHARE)
    monkeypatch.setattr(model_module, "free_memory", lambda device: free)


def gradients(model, images):
    labels, scaler = torch.arange(4), torch.amp.GradScaler("cpu", enabled=False)
    step = StepImages({"images": images}, labels, torch.arange(4), 4, ())
    with computing(model.clip.device):
        share = share_of_step(model, step, seed=0, step=1, micro_batch=None, precision="fp32", scaler=scaler)
    return share.grads["total"]


def test_chunks_are_found_from_the_free_memory_and_gradients_stay(clip, little_memory):
    model, images = build("dear", clip, NAMES), plain_images(clip, 4)
    move_parameters(model)
    whole = model.for_classes(NAMES, chunk=len(NAMES))
    assert [at for at, _ in model.frozen_parts()] == [slice(0, 4), slice(4, 8), slice(8, 12)]
    assert len(whole.frozen_parts()) == 1
    ours, theirs = gradients(model, images), gradients(whole, images)
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert float((ours[name] - expected).abs().max() / expected.abs().max()) < 1e-5
    with torch.no_grad():
        assert torch.allclose(model(images).logits, whole(images).logits, atol=1e-5)


def test_enough_memory_leaves_the_classes_whole(clip):
    classes = build("dear", clip, NAMES).required_classes()
    assert class_chunk(clip, classes, free=1 << 40) is None
    assert class_chunk(clip, classes, free=None) is None
    assert class_chunk(clip, classes, free=1) == 1


def test_a_method_that_couples_its_classes_is_never_chunked(clip, little_memory):
    model = build("mm_adapter", clip, NAMES)
    assert not model.method.needs.independent
    assert len(model.frozen_parts()) == 1


def test_a_run_records_the_chunk_but_stays_the_same_run(clip, tmp_path, monkeypatch):
    run_job(Toy().job(), clip, tmp_path / "whole", workers=0)
    monkeypatch.setattr(model_module, "free_memory", lambda device: 1)
    run_job(Toy().job(), clip, tmp_path / "chunked", workers=0)
    whole, chunked = (read_run(tmp_path / name) for name in ("whole", "chunked"))
    assert chunked["class_chunk"] == 1
    assert "class_chunk" not in whole
    assert chunked["fingerprint"] == whole["fingerprint"]


@pytest.mark.parametrize(
    ("line", "folder", "files", "left"),
    [
        (
            "0::/box",
            "box",
            {"memory.max": "5000", "memory.current": "3000", "memory.stat": "anon 9\ninactive_file 500\n"},
            2500,
        ),
        ("0::/box/inner", "box", {"memory.max": "5000", "memory.current": "3000", "memory.stat": ""}, 2000),
        (
            "4:cpu,memory:/",
            "memory",
            {"memory.limit_in_bytes": "900", "memory.usage_in_bytes": "1000", "memory.stat": ""},
            0,
        ),
        ("0::/box", "box", {"memory.max": "max", "memory.current": "3000", "memory.stat": ""}, 8192),
    ],
    ids=["v2", "a parent's limit", "v1", "no limit"],
)
def test_the_limit_of_a_container_counts(line, folder, files, left, tmp_path, monkeypatch):
    (tmp_path / folder).mkdir()
    for name, text in files.items():
        (tmp_path / folder / name).write_text(text)
    for name, text in {"OWN_GROUP": f"{line}\n", "MEMORY": "MemTotal: 99 kB\nMemAvailable: 8 kB\n"}.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(module, name, tmp_path / name)
    monkeypatch.setattr(module, "CGROUPS", tmp_path)
    assert free_memory(torch.device("cpu")) == left
