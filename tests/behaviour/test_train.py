"""The loop: it learns, its result depends on the settings alone, and it stops before it could do harm."""

import math

import pytest
import torch

import dear
from dear import Recipe
from dear.backbone.clip import content_hash
from dear.engine.checkpoint import Progress
from dear.engine.feed import Feed, live_views
from dear.engine.loop import resolve_precision, train
from dear.engine.ranks import Ranks
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from dear.errors import ConfigError, DataError, TrainingError
from helpers import largest
from toys import Toy


@pytest.fixture
def toy():
    return Toy()


def trained(toy, clip, job=None, **kwargs):
    """Parameters after a run without a folder, and what was told of each step."""
    told = []
    model, _ = run_job(job or toy.job(), clip, on_step=told.append, workers=0, **kwargs)
    return {name: p.detach().clone() for name, p in model.trainable().items()}, told


def furthest(first, second):
    return largest(float((first[name] - second[name]).abs().max()) for name in first)


def test_loss_falls_where_there_is_something_to_learn(toy, clip):
    frozen = content_hash(clip.state_dict())
    _, told = trained(toy, clip, toy.job(epochs=20, batch_size=9, lr=2e-2))
    assert told[-1]["ce"] < 0.5 * told[0]["ce"]
    assert told[-1]["total"] < told[0]["total"]
    assert content_hash(clip.state_dict()) == frozen


def test_what_is_told_of_a_step(toy, clip):
    _, told = trained(toy, clip)
    assert [one["step"] for one in told] == [1, 2, 3, 4, 5, 6]
    assert [one["epoch"] for one in told] == [1, 1, 1, 2, 2, 2]
    assert [one["lr"] for one in told] == [1e-5] * 3 + [1e-3] * 3
    for one in told:
        assert one["steps"] == 6
        assert one["problems"] == []
        assert one["images_per_second"] > 0
        assert math.isclose(sum(value for name, value in one.items() if name.startswith("weight_")), 1, rel_tol=1e-5)
        assert all(isinstance(one[name], float) for name in ("total", "ce", "reg_image", "reg_text", "fusion"))


def test_speed_counts_the_waiting_for_images(toy, clip, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("dear.engine.loop.time.perf_counter", lambda: now[0])
    model = toy.job().build(clip)
    view = live_views(toy.dataset, toy.dataset.train, clip.preprocess_train, 1)

    def slow(index, epoch):
        now[0] += 2.0
        return view(index, epoch)

    told = []
    feed = Feed(slow, [item.label for item in toy.dataset.train], batch_size=3, seed=1, workers=0)
    train(model, feed, Recipe(epochs=1), on_step=told.append)
    assert [one["images_per_second"] for one in told] == [0.5] * 3


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 100])
def test_micro_batches_add_up_to_the_batch(toy, clip, micro_batch):
    whole, told = trained(toy, clip, toy.job(epochs=2, batch_size=5))
    parts, told_too = trained(toy, clip, toy.job(epochs=2, batch_size=5, micro_batch=micro_batch))
    assert furthest(whole, parts) < 1e-5
    assert [one["total"] for one in told] == pytest.approx([one["total"] for one in told_too], rel=1e-4)


def test_another_seed_is_another_result(toy, clip):
    first, again, other = (trained(toy, clip, toy.job(seed=seed))[0] for seed in (1, 1, 2))
    assert furthest(first, again) == 0
    assert furthest(first, other) > 1e-3


def poisoned(toy, clip, from_step):
    """A feed in which an image holds NaN from some step on."""
    read = live_views(toy.dataset, toy.dataset.train, clip.preprocess_train, 1)
    reads = []

    def poison(index, epoch):
        reads.append(index)
        spoil = float("nan") if len(reads) == 3 * from_step else 1
        return {name: views * spoil for name, views in read(index, epoch).items()}

    return Feed(poison, [item.label for item in toy.dataset.train], batch_size=3, seed=1, workers=0)


def test_not_finite_image_stops_before_the_update(toy, clip, tmp_path):
    model, path, kept = toy.job().build(clip), tmp_path / "checkpoint.safetensors", []

    def keep(metrics):
        kept.append({name: p.detach().clone() for name, p in model.trainable().items()})

    recipe = Recipe(epochs=2)
    with pytest.raises(TrainingError, match=r"The loss \(total\) of step 5 is not finite, and nothing was changed"):
        train(model, poisoned(toy, clip, 5), recipe, checkpoint=path, checkpoint_every=2, on_step=keep)
    assert len(kept) == 4
    assert all(torch.equal(p, kept[-1][name]) for name, p in model.trainable().items())
    feed = Feed(lambda *_: None, [0] * 9, batch_size=3, seed=1, workers=0)
    feed.batches = lambda first, last: iter(())
    again = toy.job().build(clip)
    assert train(again, feed, recipe, checkpoint=path, resume=True).step == 4
    assert all(torch.equal(p, kept[-1][name]) for name, p in again.trainable().items())


def test_huge_learning_rate_stops_before_it_could_do_harm(toy, clip):
    with pytest.raises(TrainingError, match="lower the learning rate"):
        trained(toy, clip, toy.job(epochs=5, lr=1e30, warmup_epochs=0))


def test_not_finite_gradient_stops_before_the_update(toy, clip):
    job = toy.job()
    model = job.build(clip)
    model.method.text_tokens.register_hook(lambda grad: grad * float("inf"))
    before = {name: p.detach().clone() for name, p in model.trainable().items()}
    feed = Feed(live_views(toy.dataset, job.items, clip.preprocess_train, 1), [0] * 9, batch_size=3, seed=1, workers=0)
    with pytest.raises(TrainingError, match="The gradient of step 1 is not finite"):
        train(model, feed, job.resolved)
    assert all(torch.equal(p, before[name]) for name, p in model.trainable().items())


def test_bad_images_are_skipped_and_counted(toy, clip):
    toy.bad = {"train/0/1", "train/2/0"}
    _, progress = run_job(toy.job(), clip, on_step=(told := []).append)
    assert progress == Progress(step=6, skipped=4)
    assert sorted(p for one in told[:3] for p in one["problems"]) == [
        f"{name} cannot be read: it is damaged." for name in sorted(toy.bad)
    ]
    assert told[-1]["skipped"] == 4


def test_a_batch_of_bad_images_changes_nothing(toy, clip):
    steps = Feed(lambda *_: None, [0] * 9, batch_size=3, seed=1, workers=0)
    toy.bad = {toy.dataset.train[index].id for index in steps.indices(1)}
    kept = []
    model = toy.job().build(clip)
    feed = Feed(live_views(toy.dataset, toy.dataset.train, clip.preprocess_train, 1), [0] * 9, batch_size=3, seed=1)
    train(model, feed, Recipe(epochs=1), on_step=lambda m: kept.append((m, model.method.alpha.tolist())))
    assert kept[0][1] == kept[1][1] != kept[2][1]
    assert "total" not in kept[1][0]
    assert kept[1][0]["skipped"] == 3


def test_nothing_readable_is_an_error_after_one_epoch(toy, clip):
    toy.bad = {item.id for item in toy.dataset.train}
    with pytest.raises(
        DataError, match=r"None of the 9 training images could be .* in epoch 1; the last: train/\d/\d cannot"
    ):
        run_job(toy.job(), clip)
    assert sum(toy.opened.values()) <= 12


def test_zero_shot_trains_in_no_steps(toy, clip, tmp_path):
    model, progress = run_job(toy.job(method="zero_shot"), clip, tmp_path / "run")
    assert progress.step == 0
    assert not toy.opened
    assert dear.load(tmp_path / "run", clip).classes == model.classes


def test_only_the_first_process_tells_and_writes(toy, clip, tmp_path):
    class Second(Ranks):
        def gather(self, text):
            return [text, text]

        def sum_(self, tensor):
            tensor *= 2

    read = live_views(toy.dataset, toy.dataset.train, clip.preprocess_train, 1)
    feed = Feed(read, [0] * 9, batch_size=3, seed=1, workers=0, ranks=Second(1, 2))
    path = tmp_path / "checkpoint.safetensors"
    progress = train(toy.job().build(clip), feed, Recipe(epochs=1), checkpoint=path, on_step=pytest.fail)
    assert progress.step == 3
    assert not path.exists()


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_auto_precision_on_a_gpu_is_what_it_can_do(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision("auto", torch.device("cuda")) == expected
    assert resolve_precision("fp32", torch.device("cuda")) == "fp32"


def test_auto_precision_on_a_cpu_is_fp32():
    assert resolve_precision("auto", torch.device("cpu")) == "fp32"
    assert resolve_precision("bf16", torch.device("cpu")) == "bf16"
    with pytest.raises(ConfigError, match="precision is 'half'"):
        TrainSettings(precision="half")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_alike(toy, clip, precision):
    exact, told = trained(toy, clip)
    mixed, told_too = trained(toy, clip, toy.job(precision=precision))
    assert all(p.dtype == torch.float32 for p in mixed.values())
    assert told_too[-1]["total"] == pytest.approx(told[-1]["total"], rel=0.05)
    assert furthest(exact, mixed) < 0.02
