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
from dear.model.class_chunk import class_chunk, estimate, free_memory, layer_bytes, step_bytes, stored_bytes, stored_of
from helpers import build, move_parameters, plain_images
from toys import Toy

NAMES = [f"{color} {thing}" for color in ("red", "green", "blue", "gray") for thing in ("cat", "dog", "car")]


@pytest.fixture
def little_memory(clip, monkeypatch):
    """Room for the step of five classes."""
    model = build("dear", clip, NAMES)
    free = int(5.5 * estimate(clip, model.required_classes(), model.method) / module.SHARE)
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


def test_stored_bytes_are_those_of_the_graph():
    x, w, v = torch.ones(10, 4), torch.ones(4, 6, requires_grad=True), torch.ones(6, 2, requires_grad=True)
    hidden = 10 * 6 * 4  # relu and the second product share their input
    assert stored_bytes(lambda: (x @ w).relu() @ v, [w, v]) == 10 * 4 * 4 + hidden
    assert stored_bytes(lambda: (x @ w).relu() @ v, [x, w, v]) == hidden
    assert stored_bytes(lambda: (x @ w.detach()).relu(), []) == 0


def test_the_estimate_follows_what_a_method_trains(clip):
    classes = [f"{name} {number}" for name in NAMES for number in range(20)]
    each = {}
    for first in (1, clip.text.depth):
        model = build("dear", clip, classes, text_first_layer=first)
        each[first] = estimate(clip, model.required_classes(), model.method)
        assert each[first] < step_bytes(clip, clip.text.context)
    assert layer_bytes(clip, 1) < each[clip.text.depth] < each[1]
    few, many = (stored_of(clip, model.required_classes(), model.method, slice(0, count)) for count in (40, 80))
    assert many == pytest.approx(2 * few, rel=0.15)  # the rest are shared rows
    bound = class_chunk(clip, model.required_classes(), free=100 * each[clip.text.depth])
    measured = class_chunk(clip, model.required_classes(), 100 * each[clip.text.depth], model.method)
    assert bound < measured == 32


def test_tensors_that_depend_on_the_data_are_not_needed_for_a_chunk(clip, monkeypatch):
    monkeypatch.setattr(model_module, "free_memory", lambda device: 1)
    model = build("coop", clip, NAMES, per_class=True)  # one context per class, from the first step on
    assert model.class_chunk() == 1


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
