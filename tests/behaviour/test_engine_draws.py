"""Before and after training, with a toy method: shapes that come from the draw, choices on images held out."""

from collections import Counter
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dear
import dear.methods.registry as registry
from dear import Needs, Recipe
from dear.data.dataset import Item
from dear.data.splits import held_out
from dear.engine import run as runs
from dear.engine.job import make_job
from dear.engine.loop import train
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from toys import KilledError, Toy, adapter_hash, at_step


class Keys(dear.Method):
    """Keeps a key per drawn image and learns them; afterwards chooses a weight, on held-out images if there are any."""

    name = "keys"
    recipe = Recipe(optimiser="adam", lr=0.01, epochs=2)
    sized_by_data = ("keys", "labels")
    needs = Needs(held_out=True)
    life: ClassVar[list] = []

    def __init__(self, clip, config, **more):
        super().__init__(clip, config, **more)
        self.keys = nn.Parameter(torch.empty(0))
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("weight", torch.tensor(1.0))

    def begin(self, clip, draw):
        self.life.append(("begin", draw))
        self.keys.data = torch.nn.functional.normalize(draw.image["feature"][0], dim=-1).clone()
        self.labels.data = draw.labels.clone()

    def forward(self, clip, image, text, batch=None):
        out = super().forward(clip, image, text, batch)
        near = (out.features["cls"] @ self.keys.T).exp()
        votes = near @ nn.functional.one_hot(self.labels, text.shape[0]).float()
        return dear.Output({"logits": out.logits + self.weight * votes}, out.features)

    def finish(self, clip, draw, held):
        self.life.append(("finish", held))
        self.weight.fill_(0.25 if held is None else 2 + float(held.image["feature"].mean()))


class AllKeys(Keys):
    name = "all_keys"
    needs = Needs()


def keys_job(toy, name="keys", shots=3):
    return make_job(toy.dataset, shots=shots, seed=1, method=name, train=TrainSettings(batch_size=3, epochs=2))


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    for cls in (Keys, AllKeys):
        dear.register(cls)
    Keys.life.clear()
    return Keys.life


def test_shapes_come_from_the_draw_and_from_the_file(clip, keys, tmp_path):
    toy = Toy()
    model, progress = run_job(keys_job(toy, "all_keys"), clip, tmp_path / "run", workers=0)
    (begun, draw), (finished, held) = keys
    assert (begun, finished, held) == ("begin", "finish", None)
    embed = clip.geometry.embed_dim
    assert draw.image["feature"].shape == (1, 9, embed)
    assert sorted(draw.labels.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert draw.classes.names == toy.dataset.class_names
    assert model.method.keys.shape == (9, embed)
    assert progress.step == 6
    assert not torch.allclose(model.method.keys, draw.image["feature"][0])
    loaded = dear.load(tmp_path / "run", clip)
    learned = model.method.state_dict()
    assert all(torch.equal(one, learned[name]) for name, one in loaded.method.state_dict().items())
    assert loaded.method.labels.dtype == torch.int64
    assert loaded.method.weight == 0.25
    assert len(keys) == 2


@pytest.mark.parametrize("killed_at", [1, 2, 4])
def test_a_drawn_method_is_resumed_to_the_same_bytes(clip, keys, tmp_path, monkeypatch, killed_at):
    monkeypatch.setattr(runs, "train", lambda *args, **kwargs: train(*args, **kwargs, checkpoint_every=1))
    toy = Toy()
    run_job(keys_job(toy), clip, tmp_path / "whole", workers=0)
    with pytest.raises(KilledError):
        run_job(keys_job(toy), clip, tmp_path / "killed", workers=0, on_step=at_step(killed_at))
    keys.clear()
    run_job(keys_job(toy), clip, tmp_path / "killed", workers=0, if_exists="resume")
    assert adapter_hash(tmp_path / "killed") == adapter_hash(tmp_path / "whole")
    assert [what for what, _ in keys] == (["begin", "finish"] if killed_at == 1 else ["finish"])


def test_finish_chooses_on_images_held_out_from_the_shots(clip, keys):
    toy = Toy()
    model, _ = run_job(keys_job(toy), clip, workers=0)
    (_, draw), (_, held) = keys
    assert draw.image["feature"].shape[:2] == (1, 6)
    assert Counter(held.labels.tolist()) == {0: 1, 1: 1, 2: 1}
    assert held.image["feature"].shape == (3, clip.geometry.embed_dim)
    assert model.method.weight == pytest.approx(2 + float(held.image["feature"].mean()))
    assert {name.split("/")[0] for name in toy.opened} == {"train"}


def test_with_one_shot_nothing_is_held_out(clip, keys):
    run_job(keys_job(Toy(), shots=1), clip, workers=0)
    (_, draw), (_, held) = keys
    assert held is None
    assert draw.image["feature"].shape[:2] == (1, 3)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 5), st.integers(0, 99))
def test_a_class_never_gives_its_last_image(labels, per_class, seed):
    items = [Item(f"{label}/{place}", label) for place, label in enumerate(labels)]
    kept, held = held_out(items, per_class, seed)
    assert sorted([*kept, *held]) == sorted(items)
    counts, left, given_away = (Counter(item.label for item in part) for part in (items, kept, held))
    for label, count in counts.items():
        assert left[label] >= 1
        assert given_away[label] == min(per_class, count - 1)
    assert held_out(list(reversed(items)), per_class, seed)[1] == held


def test_only_shots_are_held_out():
    toy = Toy(per_class=9)
    for shots, expected in ((1, 0), (2, 1), (3, 1), (4, 1), (8, 2), (9, 2)):
        job = make_job(toy.dataset, shots=shots, seed=1, method="zero_shot")
        kept, held = job.held()
        assert Counter(item.label for item in held) == (dict.fromkeys(range(3), expected) if expected else {})
        assert {*kept, *held} == set(job.items)
        assert len(kept) == 3 * (shots - expected)
