"""The whole life of a method in the engine, with toy methods whose gradients are known."""

from typing import ClassVar

import pytest
import torch
from torch import nn

import dear
import dear.methods.registry as registry
from dear import Needs, Recipe
from dear.engine import run as runs
from dear.engine.feed import Feed
from dear.engine.loop import check_whole_batch, train
from dear.engine.optim import epoch_weights
from dear.engine.ranks import Ranks
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from dear.errors import ConfigError, TrainingError
from dear.methods.base import NoConfig
from toys import KilledError, Toy, at_step

CONSTANT = {"schedule": "constant", "warmup_epochs": 0}
PLAIN_SGD = Recipe(optimiser="sgd", momentum=0.0, decay=0.0, lr=0.1, epochs=2, **CONSTANT)


class Slopes(dear.Method):
    """Its loss is a sum of its parameters, so every gradient is known: 1 for `a`, 2 for `b`, none for `unused`."""

    name = "slopes"

    def __init__(self, clip, config, **more):
        super().__init__(clip, config, **more)
        self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))
        self.unused = nn.Parameter(torch.ones(2))

    def loss(self, out, batch):
        return {"first": self.a.sum(), "second": 2 * self.b.sum()}


class Bowl(Slopes):
    """A loss whose gradients depend on the images and on where the parameters are."""

    name = "bowl"

    def forward(self, clip, image, text, batch=None):
        out = super().forward(clip, image, text, batch)
        return dear.Output(out.readouts, out.features, rest={"seen": image["feature"].mean()})

    def loss(self, out, batch):
        return {"first": ((self.a - out.rest["seen"]) ** 2).sum(), "second": (self.b**2).sum()}


def model_of(cls, clip):
    return dear.Model(clip, cls(clip, NoConfig())).for_classes(["cat", "dog"])


def feed_of(clip, count=6, batch_size=2, **more):
    size = clip.geometry.embed_dim

    def read(index, epoch):
        return {"feature": torch.full((1, size), index + 0.1 * epoch + 1)}

    return Feed(read, [0] * count, batch_size=batch_size, seed=1, workers=0, **more)


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.method.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.fixture
def register(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    return dear.register


# Recipes ---------------------------------------------------------------------------------------------------------


def test_a_parameter_without_gradient_is_left_alone(clip):
    model = model_of(Slopes, clip)
    train(model, feed_of(clip), Recipe(optimiser="adamw", decay=0.5, lr=0.1, epochs=2, **CONSTANT))
    assert torch.equal(model.method.unused, torch.ones(2))  # not even decayed
    assert (model.method.a < 0.9).all()


def test_groups_learn_at_their_own_rates(clip):
    model = model_of(Slopes, clip)
    train(model, feed_of(clip), PLAIN_SGD.model_copy(update={"groups": {"b": 0.01}}))
    assert torch.allclose(model.method.a, torch.full((3,), 1 - 6 * 0.1))
    assert torch.allclose(model.method.b, torch.full((4,), 1 - 6 * 0.01 * 2))


@pytest.mark.covers("T16")
@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_groups_have_their_own_weight_decay(clip, optimiser):
    how = {"lr": 0.1, "decay": 0.5, "groups": {"b": 0.02}, "decays": {"b*": 0.0}, "epochs": 2, **CONSTANT}
    recipe = Recipe(optimiser=optimiser, **how)
    model, all_decay = model_of(Slopes, clip), model_of(Slopes, clip)
    train(model, feed_of(clip), recipe)
    train(all_decay, feed_of(clip), recipe.model_copy(update={"decays": {}}))

    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))
    a.grad, b.grad = torch.ones(3), torch.full((4,), 2.0)
    groups = [{"params": [a], "lr": 0.1, "weight_decay": 0.5}, {"params": [b], "lr": 0.02, "weight_decay": 0.0}]
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    by_hand = kinds[optimiser](groups, **({"momentum": 0.9} if optimiser == "sgd" else {}))
    for _ in range(6):
        by_hand.step()
    assert torch.allclose(model.method.a, a)
    assert torch.allclose(model.method.b, b)
    assert torch.equal(all_decay.method.a, model.method.a)
    unchanged = torch.allclose(all_decay.method.b, b, atol=1e-4)
    assert unchanged == (optimiser == "adam")  # Adam normalises the decay away if gradients are constant


@pytest.mark.covers("T16")
def test_a_weight_decay_for_no_parameter_is_refused(clip):
    with pytest.raises(ConfigError, match="gives 'temperature' a weight decay, but no parameter is called so"):
        train(model_of(Slopes, clip), feed_of(clip), PLAIN_SGD.model_copy(update={"decays": {"temperature": 0.0}}))
    with pytest.raises(ConfigError, match="greater than or equal to 0"):
        Recipe(decays={"b": -1.0})


def test_the_rates_of_groups_fall_together(clip):
    told = []
    model = model_of(Slopes, clip)
    recipe = Recipe(optimiser="sgd", momentum=0.0, decay=0.0, lr=0.2, groups={"b": 0.02}, epochs=3, warmup_lr=0.001)
    train(model, feed_of(clip), recipe, on_step=told.append)
    rates = [one["lr"] for one in told]
    assert rates == pytest.approx([0.001] * 3 + [0.2] * 3 + [0.15] * 3)
    assert torch.allclose(model.method.a, torch.full((3,), 1 - sum(rates)))
    slower = 3 * 0.001 + 3 * 0.02 + 3 * 0.015
    assert torch.allclose(model.method.b, torch.full((4,), 1 - 2 * slower))


def test_the_whole_gradient_is_clipped(clip):
    model = model_of(Slopes, clip)
    train(model, feed_of(clip), PLAIN_SGD.model_copy(update={"clip_norm": 0.5}))
    norm = (3 * 1 + 4 * 4) ** 0.5
    assert torch.allclose(model.method.a, torch.full((3,), 1 - 6 * 0.1 * 0.5 / norm), atol=1e-5)
    assert torch.allclose(model.method.b, torch.full((4,), 1 - 6 * 0.1 * 2 * 0.5 / norm), atol=1e-5)


@pytest.mark.parametrize(("drop_last", "steps"), [(False, 4), (True, 2)])
def test_a_last_smaller_batch(clip, drop_last, steps):
    progress = train(model_of(Slopes, clip), feed_of(clip, 5, 3, drop_last=drop_last), PLAIN_SGD)
    assert progress.step == steps


def test_steps_per_shot(clip):
    recipe = PLAIN_SGD.model_copy(update={"steps_per_shot": 2})
    assert train(model_of(Slopes, clip), feed_of(clip), recipe, shots=4).step == 8


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("average", [None, "equal", "gaussian"])
def test_killed_and_resumed_to_the_same_bytes(clip, tmp_path, optimiser, average):
    recipe = Recipe(optimiser=optimiser, lr=0.05, epochs=3, average=average, gaussian=(2.0, 1.0))
    whole = model_of(Bowl, clip)
    train(whole, feed_of(clip), recipe)
    for killed_at in (2, 5, 9):
        path = tmp_path / f"{killed_at}.safetensors"
        with pytest.raises(KilledError):
            train(
                model_of(Bowl, clip),
                feed_of(clip),
                recipe,
                checkpoint=path,
                checkpoint_every=1,
                on_step=at_step(killed_at),
            )
        model = model_of(Bowl, clip)
        train(model, feed_of(clip), recipe, checkpoint=path, resume=True)
        assert same(state_of(model), state_of(whole)), killed_at


@pytest.mark.parametrize("average", ["equal", "gaussian"])
def test_averages_are_of_the_states_after_each_epoch(clip, average):
    recipe = Recipe(optimiser="sgd", lr=0.05, epochs=3, average=average, gaussian=(2.0, 0.7))
    last, states = model_of(Bowl, clip), []
    train(
        last,
        feed_of(clip),
        recipe.model_copy(update={"average": None}),
        on_step=lambda told: states.append(state_of(last)) if told["step"] % 3 == 0 else None,
    )
    averaged = model_of(Bowl, clip)
    train(averaged, feed_of(clip), recipe)
    weights = epoch_weights(recipe, 3)
    for name, tensor in state_of(averaged).items():
        direct = sum(weight * state[name] for weight, state in zip(weights, states, strict=True))
        assert torch.allclose(tensor, direct, atol=1e-6), name
    assert not torch.allclose(averaged.method.b, last.method.b, atol=1e-4)


# Loss and gradients ----------------------------------------------------------------------------------------------


class Apart(Bowl):
    """Takes the gradients of its two terms apart, and subtracts one from the other."""

    name = "apart"
    told: ClassVar[list] = []

    def loss(self, out, batch):
        terms = super().loss(out, batch)
        return {**terms, "both": self.a.sum() * self.b.sum()}

    def combine(self, grads):
        self.told.append({term: set(of_term) for term, of_term in grads.items()})
        return {"a": grads["first"]["a"] - grads["both"]["a"], "b": grads["second"]["b"]}


@pytest.mark.parametrize("micro_batch", [None, 1])
def test_combine_gets_the_gradients_of_every_term(clip, micro_batch):
    Apart.told.clear()
    model = model_of(Apart, clip)
    before = state_of(model)
    recipe = PLAIN_SGD.model_copy(update={"epochs": 1})
    feed = feed_of(clip, 2, 2)
    train(model, feed, recipe, TrainSettings(micro_batch=micro_batch))
    assert Apart.told == [{"first": {"a"}, "second": {"b"}, "both": {"a", "b"}}]
    seen = 1.5  # mean of 1 and 2
    first = 2 * (before["a"] - seen)
    assert torch.allclose(model.method.a, before["a"] - 0.1 * (first - before["b"].sum()))
    assert torch.allclose(model.method.b, before["b"] - 0.1 * 2 * before["b"])


def test_without_combine_there_is_one_term(clip, monkeypatch):
    seen = []
    monkeypatch.setattr(dear.Method, "combine", lambda self, grads: seen.append(list(grads)) or grads["total"])
    train(model_of(Slopes, clip), feed_of(clip), PLAIN_SGD)
    assert seen == [["total"]] * 6


class Counting(Slopes):
    """Rewrites a buffer after every update; its loss, or its gradient, can be made not finite at a step."""

    name = "counting"
    bad_loss_at = bad_gradient_at = 0

    def __init__(self, clip, config, **more):
        super().__init__(clip, config, **more)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.register_buffer("running", torch.zeros(clip.geometry.embed_dim))

    def loss(self, out, batch):
        terms = super().loss(out, batch)
        if batch.step == self.bad_loss_at:
            terms["first"] = terms["first"] * float("nan")
        if batch.step == self.bad_gradient_at:
            terms["first"] = terms["first"] + 0 * (self.a - self.a).abs().sqrt().sum()  # 0, its slope is not finite
        return terms

    def after_step(self, out):
        self.updates += 1
        self.running.mul_(0.5).add_(out.features["cls"].mean(0))


def test_buffers_are_rewritten_after_every_step(clip, tmp_path):
    model = model_of(Counting, clip)
    train(model, feed_of(clip), PLAIN_SGD, checkpoint=tmp_path / "c")
    assert model.method.updates == 6
    assert model.method.running.norm() > 0
    with pytest.raises(KilledError):
        train(
            model_of(Counting, clip),
            feed_of(clip),
            PLAIN_SGD,
            checkpoint=tmp_path / "d",
            checkpoint_every=1,
            on_step=at_step(4),
        )
    again = model_of(Counting, clip)
    train(again, feed_of(clip), PLAIN_SGD, checkpoint=tmp_path / "d", resume=True)
    assert same(state_of(again), state_of(model))
    assert again.method.updates.dtype == torch.int64


@pytest.mark.parametrize(
    ("spoilt", "what"), [("bad_loss_at", r"loss \(total\)|loss \(first\)"), ("bad_gradient_at", "gradient")]
)
def test_a_step_that_is_not_finite_changes_nothing(clip, spoilt, what):
    model, kept = model_of(Counting, clip), []
    setattr(model.method, spoilt, 3)
    with pytest.raises(TrainingError, match=rf"The ({what}) of step 3 is not finite, and nothing was changed by it"):
        train(model, feed_of(clip), PLAIN_SGD, on_step=lambda told: kept.append(state_of(model)))
    assert len(kept) == 2
    assert same(state_of(model), kept[-1])
    assert model.method.updates == 2


def test_an_update_that_the_scaler_skips_rewrites_no_buffer(clip):
    """In fp16 a gradient that overflows is no error: the scale falls and the step is left out."""
    model, kept = model_of(Counting, clip), []
    model.method.bad_gradient_at = 3
    settings = TrainSettings(precision="fp16")
    train(model, feed_of(clip), PLAIN_SGD, settings, on_step=lambda told: kept.append(state_of(model)))
    assert same(kept[2], kept[1])
    assert not same(kept[3], kept[2])
    assert model.method.updates == 5


class Whole(Slopes):
    name = "whole"
    needs = Needs(whole_batch=True)


class TwoViews(Slopes):
    name = "two_views"
    needs = Needs(views=2, training=("plain:feature",))
    seen: ClassVar[list] = []

    def forward(self, clip, image, text, batch=None):
        if batch is not None:
            self.seen.append((dict(image), batch.labels.clone(), batch.draw("noise", 2)))
        return super().forward(clip, image, text, batch)


@pytest.mark.parametrize("cls", [Counting, Whole])
def test_what_couples_a_batch_refuses_to_be_cut(clip, cls, register, monkeypatch):
    register(cls)
    toy = Toy()
    sentence = rf"^{cls.name} needs the whole batch at once: train it without"
    with pytest.raises(ConfigError, match=rf"{sentence} micro_batch=2\.$"):
        run_job(toy.job(method=cls.name, micro_batch=2), clip)
    monkeypatch.setattr(runs, "join", lambda device: Ranks(0, 2))
    with pytest.raises(ConfigError, match=rf"{sentence} several processes\.$"):
        run_job(toy.job(method=cls.name), clip)
    assert not toy.opened
    check_whole_batch(cls(clip, NoConfig()), None, 1)
    check_whole_batch(Slopes(clip, NoConfig()), 2, 2)


@pytest.mark.parametrize("cached", [0, 4])
def test_views_come_view_major_beside_the_plain_image(clip, register, tmp_path, cached):
    register(TwoViews)
    TwoViews.seen.clear()
    toy = Toy()
    job = toy.job(method="two_views", epochs=1, batch_size=3, cached_views=cached)
    run_job(job, clip, cache=tmp_path if cached else None, workers=0)
    plain = {
        item.id: clip.stock_feature(clip.preprocess_eval(toy.open(item.id))[None])[0] for item in toy.dataset.train
    }
    assert len(TwoViews.seen) == 3
    shown = []
    for image, labels, noise in TwoViews.seen:
        assert image["feature"].shape[0] == 6
        assert image["plain:feature"].shape[0] == 3
        assert labels.tolist() == labels[:3].tolist() * 2
        assert noise.shape == (6, 2)
        first, second = image["feature"].split(3)
        assert (first - second).abs().amax(1).min() > 1e-3
        for label, row in zip(labels[:3].tolist(), image["plain:feature"], strict=True):
            found = [one for one, value in plain.items() if torch.allclose(row, value, atol=5e-3)]
            assert len(found) == 1
            assert int(found[0].split("/")[1]) == label
            shown += found
    assert sorted(shown) == sorted(plain)
    with pytest.raises(ConfigError, match="whole batch at once"):
        run_job(toy.job(method="two_views", micro_batch=2), clip)


def test_draws_do_not_depend_on_how_a_batch_is_cut():
    whole = dear.Batch(seed=1, step=2, size=6).draw("mask", 3)
    for rows in (torch.tensor([4, 1]), slice(2, 5)):
        assert torch.equal(dear.Batch(seed=1, step=2, rows=rows, size=6).draw("mask", 3), whole[rows])
    for other in ({"seed": 2}, {"step": 3}):
        assert not torch.equal(dear.Batch(**{"seed": 1, "step": 2, "size": 6, **other}).draw("mask", 3), whole)
    assert not torch.equal(dear.Batch(seed=1, step=2, size=6).draw("noise", 3), whole)
    given = dear.Batch(size=6, rows=slice(1, 3), given={"mask": torch.arange(6)})
    assert given.draw("mask").tolist() == [1, 2]
