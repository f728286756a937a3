"""One suite for every registered method on every tiny CLIP: what the rest of the house may rely on.

Nothing here names a method: settings that one needs on a tiny CLIP are in `helpers.SPECIAL_CONFIGS`.
"""

import copy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load

import dear
from dear.backbone import packed
from dear.backbone.clip import content_hash
from dear.engine import run as runs
from dear.engine.feed import StepImages
from dear.engine.gradients import share_of_step
from dear.engine.loop import train
from dear.engine.run import run_job
from dear.errors import InputError
from dear.evaluation.evaluate import evaluate_items
from dear.methods.base import PURPOSES
from helpers import CANCELLING, TINY_CONFIGS, WITHOUT_GRADIENT, build, largest, move_parameters, plain_images
from plain_towers import plain_clip
from toys import KilledError, Toy, at_step

METHODS = dear.list_methods()
NAMES = ["cat", "a rather long name of a class", "dog", "hot air balloon", "x"]
LABELS = torch.tensor([0, 3, 1, 4])
CLOSE = 2e-5  # relative, in fp32


@pytest.fixture(params=TINY_CONFIGS)
def clip(request, tiny_clips):
    return tiny_clips[request.param]


@pytest.fixture(params=METHODS)
def model(request, clip):
    model = build(request.param, clip, NAMES)
    move_parameters(model)
    return model


@pytest.fixture
def images(clip):
    return plain_images(clip, 4)


@pytest.fixture(params=METHODS)
def chosen(request, tiny_clips):
    """A model on one of the CLIPs, another one for the next method: for tests that take long."""
    names = list(TINY_CONFIGS)
    model = build(request.param, tiny_clips[names[METHODS.index(request.param) % len(names)]], NAMES)
    move_parameters(model)
    return model


def apart(ours, theirs):
    """Relative distance of two tensors, or the largest one of two (nested) dicts; NaN if anything is NaN."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        return largest(apart(ours[name], one) for name, one in theirs.items())
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-12))


@pytest.mark.parametrize("bad", ["first", "second"])
def test_the_comparison_notices_nan(bad):
    """Python's `max(0.0, nan)` is 0.0, so gradients were once accepted although one of them was NaN."""
    theirs = {"total": {"first": torch.ones(2), "second": torch.ones(2)}}
    ours = {"total": {**theirs["total"], bad: torch.tensor([1.0, torch.nan])}}
    assert apart(theirs, theirs) < CLOSE
    assert not apart(ours, theirs) < CLOSE
    assert not apart(theirs, ours) < CLOSE


def share(model, images, micro_batch=None, dtype=torch.float32):
    """Gradients of one step, summed over its images."""
    states = {name: value.to(dtype) for name, value in model.states(images.to(dtype), training=True).items()}
    given = StepImages(states, LABELS, torch.arange(len(LABELS)), len(LABELS), ())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    found = share_of_step(model, given, seed=1, step=2, micro_batch=micro_batch, precision="fp32", scaler=scaler)
    for by_name in found.grads.values():
        for name in CANCELLING.get(model.name, ()):
            by_name.pop(name)
    return found.grads, found.sums


def test_the_clips_differ_where_methods_go_wrong(tiny_clips):
    sizes = [clip.geometry for clip in tiny_clips.values()]
    assert any(one.vision_width != one.text_width for one in sizes)
    assert any(one.vision_layers != one.text_layers for one in sizes)
    assert len(METHODS) >= 2


def test_builds(model, clip, images):
    assert model.name in METHODS
    assert model.classes.names == tuple(NAMES)
    out = model(images)
    assert set(model.method.readouts) <= set(PURPOSES)
    assert {model.readout(purpose) for purpose in PURPOSES} <= set(out.readouts)
    assert out.logits is out.readouts[model.readout()]
    for logits in out.readouts.values():
        assert logits.shape == (4, 5)
        assert logits.dtype == torch.float32
        assert logits.isfinite().all()
    for features in (*out.features.values(), *([] if out.classes is None else [out.classes])):
        assert features.shape[1] == clip.geometry.embed_dim
        assert torch.allclose(features.norm(dim=-1), torch.ones(len(features)), atol=1e-5)
    assert model.method.needs.image
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in model.trainable().values())
    assert all(parameter.dtype == torch.float32 for parameter in model.trainable().values())


@torch.no_grad()
def test_forward_is_states_then_forward(model, images):
    assert torch.equal(model(given=model.states(images)).logits, model(images).logits)


@torch.no_grad()
def test_batches_do_not_matter(model, images):
    whole = model(images).logits
    parts = torch.cat([model(image[None]).logits for image in images])
    assert torch.allclose(whole, parts, atol=1e-4)


def test_loss_trains_exactly_what_is_trainable(model, images):
    terms = model.loss(images, LABELS)
    assert "total" in terms
    assert all(term.ndim == 0 and term.isfinite() for term in terms.values())
    if model.trainable():
        terms["total"].backward()
    got = {name for name, p in model.method.named_parameters() if p.grad is not None}
    assert got == set(model.trainable()) - WITHOUT_GRADIENT.get(model.name, set())
    assert all(p.grad.isfinite().all() for p in model.trainable().values() if p.grad is not None)


def test_wrong_labels_are_one_sentence(clip):
    """`Model` checks labels before any method sees them, so one method suffices."""
    model, images = build("zero_shot", clip, NAMES), plain_images(clip, 4)
    for labels in (torch.tensor([0, 1]), torch.tensor([0, 1, 2, 5]), torch.tensor([0.0, 1, 2, 3]), [0, 1, 2, 3]):
        with pytest.raises(InputError, match="Labels") as error:
            model.loss(images, labels)
        assert "\n" not in str(error.value)


def test_forward_and_loss_change_no_tensor(chosen):
    """Only an update changes parameters and buffers: a step that is not finite must leave no trace."""
    with torch.no_grad():
        for parameter in chosen.trainable().values():
            parameter.mul_(3)  # outside of any range that a method clamps to
    before = {name: tensor.clone() for name, tensor in chosen.method.state_dict().items()}
    chosen.loss(plain_images(chosen.clip, 4), LABELS)
    assert before.keys() == chosen.method.state_dict().keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in chosen.method.state_dict().items())


def test_clip_never_changes(model, clip, images):
    before = content_hash(clip.model.state_dict())
    model.requires_grad_(True).train(True)
    clip.requires_grad_(True).train(True)
    assert not any(p.requires_grad for p in clip.parameters())
    assert not any(module.training for module in clip.modules())
    assert model.method.training
    if model.trainable():
        optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        model.loss(images, LABELS)["total"].backward()
        optimiser.step()
    assert content_hash(clip.model.state_dict()) == before == clip.weights_sha256
    assert all(p.grad is None for p in clip.parameters())
    assert model.state_dict().keys() == model.method.state_dict().keys()
    model.requires_grad_(False)
    assert not model.trainable()


@torch.no_grad()
def test_disabled_is_open_clip_exactly(model, clip, images):
    prompts = clip.tokenizer([f"a photo of a {name}." for name in NAMES])
    expected = (
        clip.temperature
        * clip.model.encode_image(images, normalize=True)
        @ clip.model.encode_text(prompts, normalize=True).T
    )
    before = model(images).logits
    with model.disabled():
        assert model.is_disabled
        assert model.for_classes(["a"]).is_disabled
        assert torch.equal(model(images).logits, expected)
        assert torch.equal(model.class_features(), clip.model.encode_text(prompts, normalize=True))
    assert torch.equal(model.plain()(images).logits, expected)
    assert not model.is_disabled
    assert torch.equal(model(images).logits, before)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@torch.no_grad()
def test_saved_and_loaded(model, clip, images, tmp_path):
    first = model.save_pretrained(tmp_path / "a")
    loaded = dear.load(first, clip=clip)
    assert type(loaded.method) is type(model.method)
    assert not loaded.training
    assert not loaded.trainable()
    assert torch.equal(loaded(images).logits, model(images).logits)
    assert contents(loaded.save_pretrained(tmp_path / "b")) == contents(first)
    assert contents(model.save_pretrained(first)) == contents(first)


@torch.no_grad()
def test_other_classes_are_a_view(model, images):
    before = model(images).logits
    view = model.for_classes(NAMES[1:4])
    part = view(images).logits
    assert part.shape == (4, 3)
    if model.method.needs.independent and not model.method.log_probabilities:
        assert apart(part, before[:, 1:4]) < CLOSE
    assert view.method is model.method
    assert view.classes.seen == (1, 2, 3)
    assert model.for_classes(["new", "dog"]).classes.seen == (-1, 2)
    assert torch.equal(model(images).logits, before)


@pytest.mark.parametrize("least", [packed.LEAST_SAVED, 1], ids=["padded", "packed"])
def test_savings_change_no_number(model, images, least, monkeypatch):
    """Logits, loss and gradients beside those of the same method on towers that save nothing."""
    monkeypatch.setattr(packed, "LEAST_SAVED", least)
    monkeypatch.setattr(packed, "GROUP_COST", 1)
    plain = dear.Model(plain_clip(model.clip), model.method, model.classes, trained_on=model.trained_on)
    plain.companions.update(model.companions)
    with torch.no_grad():
        assert apart(model(images).logits, plain(images).logits) < CLOSE
    (grads, sums), (theirs, other) = share(model, images), share(plain, images)
    assert sums == pytest.approx(other, rel=CLOSE, abs=1e-6)
    for term, by_name in theirs.items():
        assert apart(grads[term], by_name) < 10 * CLOSE


def test_trained_killed_and_resumed_to_the_same_bytes(chosen, tmp_path, monkeypatch):
    model, clip = chosen, chosen.clip
    monkeypatch.setattr(runs, "train", lambda *args, **kwargs: train(*args, **kwargs, checkpoint_every=1))
    toy = Toy(per_class=2)
    if toy.job(method=model.name).split(model.method)[1]:
        toy = Toy(per_class=3)  # one image of each class is held out
    job = toy.job(method=model.name, epochs=1, batch_size=3)
    whole, progress = run_job(job, clip, tmp_path / "whole", workers=0)
    steps = 2 if model.trainable() and (job.resolved.epochs or job.resolved.steps_per_shot) else 0
    assert progress.step == steps
    if steps:
        with pytest.raises(KilledError):
            run_job(job, clip, tmp_path / "killed", workers=0, on_step=at_step(2))
    resumed, _ = run_job(job, clip, tmp_path / "killed", if_exists="resume", workers=0)
    kept, again = (contents(tmp_path / name) for name in ("whole", "killed"))
    states = []
    for folder in (kept, again):
        folder.pop("metrics.jsonl", None)  # tells times
        states.append(load(folder.pop("checkpoint.safetensors")) if steps else {})  # its header is in any order
    assert kept == again
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    shown = plain_images(clip, 2)
    with torch.no_grad():
        assert torch.equal(resumed(shown).logits, whole(shown).logits)


def test_chunks_of_classes_are_the_whole(model, images):
    chunked = model.for_classes(NAMES, chunk=2)
    with torch.no_grad():
        assert apart(chunked(images).logits, model(images).logits) < CLOSE
    grads, sums = share(model, images)
    in_chunks, other = share(chunked, images)
    assert apart(in_chunks, grads) < CLOSE
    assert other == pytest.approx(sums, rel=CLOSE)
    if model.method.needs.independent:
        assert [at for at, _ in chunked.frozen_parts()] == [slice(0, 2), slice(2, 4), slice(4, 5)]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, CLOSE), (torch.float64, 1e-12)], ids=["fp32", "fp64"])
def test_micro_batches_are_the_whole(chosen, dtype, close):
    model, clip = chosen, chosen.clip
    images = plain_images(clip, 4)
    if model.method.needs_whole_batch or model.method.needs.views > 1:
        return  # such a method refuses them
    model = copy.deepcopy(model).to(dtype)  # a copy: the backbone is shared by all tests
    grads, sums = share(model, images, dtype=dtype)
    for size in (1, 3):
        in_parts, other = share(model, images, size, dtype=dtype)
        assert apart(in_parts, grads) < close
        assert other == pytest.approx(sums, rel=close)


@pytest.mark.filterwarnings("ignore")
def test_exports_with_a_free_batch_size(chosen):
    model, clip = chosen, chosen.clip
    free = {"images": {0: torch.export.Dim("batch")}}
    with torch.no_grad():
        baked = model.eval().baked().eval()
        exported = torch.export.export(baked, (plain_images(clip, 3),), dynamic_shapes=free, strict=False).module()
        for count in (1, 5):
            shown = plain_images(clip, count, seed=count)
            assert apart(baked(shown), model(shown).logits) < CLOSE
            assert apart(exported(shown), model(shown).logits) < CLOSE


def test_two_threads_with_two_class_lists_never_mix(chosen):
    """200 calls on one model from two threads, a quarter of them switched off. At 929d2f9, where classes and the
    off-switch were state of the model, 85 to 90 of DeAR's 200 answers were wrong.
    """
    model, clip = chosen, chosen.clip
    lists = NAMES[:3], ["fish", "bird", "a much longer name of a class"] if model.method.needs.novel else NAMES[2:]
    shown = plain_images(clip, 2)
    with torch.no_grad():
        expected = [model.for_classes(names)(shown).logits for names in lists]
        plain = [model.for_classes(names).plain()(shown).logits for names in lists]
    wrong, ready = [], threading.Barrier(2)

    @torch.no_grad()
    def call(which):
        ready.wait()
        for number in range(100):
            view = model.for_classes(lists[which])
            if which and number % 2:
                with model.disabled():
                    found, right = view(shown).logits, plain[which]
            else:
                found, right = view(shown).logits, expected[which]
            if not torch.equal(found, right):
                wrong.append((which, number))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(call, (0, 1)))
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_two_threads_share_one_view(chosen):
    """What a view caches is computed while others read it.

    Until a thread asks for torch's number of threads, its matrix products run on all cores and differ in the last bits:
    MMRL++'s answers on the tower of odd widths did, in one of three runs of this test.
    """
    model, clip = chosen, chosen.clip
    shown = plain_images(clip, 2)
    with torch.no_grad():
        right = model(shown).logits
    view, wrong, ready = model.for_classes(NAMES), [], threading.Barrier(4)

    @torch.no_grad()
    def call(_):
        ready.wait()
        wrong.extend(number for number in range(10) if not torch.equal(view(shown).logits, right))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))
    assert not wrong


@torch.no_grad()
def test_every_method_can_be_tested_beside_plain_clip(chosen):
    """A method that reads terms of heads alone could not be evaluated: plain CLIP found nothing to start from."""
    dataset = replace(Toy().dataset, class_names=tuple(NAMES))
    found = evaluate_items(chosen, dataset, dataset.test, workers=0, beside_plain=True)
    alone = evaluate_items(chosen.plain(), dataset, dataset.test, workers=0)
    assert found.plain_picks.tolist() == alone.picks.tolist()
