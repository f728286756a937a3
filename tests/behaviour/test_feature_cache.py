"""Cached features: computed once, shared by seeds, computed again where damaged, and as good as fresh ones."""

import random
from types import SimpleNamespace

import pytest
import torch

import dear
from dear.engine import feature_cache
from dear.engine.feature_cache import cached_views
from dear.engine.feed import live_views
from dear.engine.ranks import Ranks
from dear.engine.run import run_job
from dear.errors import ConfigError, ImageError
from dear.evaluation.evaluate import evaluate_items as evaluate
from toys import Toy, adapter_hash

VIEWS = 3


@pytest.fixture
def toy():
    return Toy()


@pytest.fixture
def computed(clip, monkeypatch):
    """How many images have gone through the frozen layers."""
    counted, embed = SimpleNamespace(images=0), clip.vision.embed

    def counting(images):
        counted.images += len(images)
        return embed(images)

    monkeypatch.setattr(clip.vision, "embed", counting)
    return counted


def flip_a_byte(cache):
    segment = sorted(cache.glob("*/segment-*"))[0]
    data = bytearray(segment.read_bytes())
    data[8 + int.from_bytes(data[:8], "little") + 100] ^= 1
    segment.write_bytes(data)


def test_views_are_computed_once_for_all_seeds(toy, clip, computed, tmp_path):
    cache = tmp_path / "cache"
    run_job(toy.job(cached_views=VIEWS), clip, tmp_path / "first", cache=cache)
    assert computed.images == 9 * VIEWS
    toy.opened.clear()
    run_job(toy.job(cached_views=VIEWS, seed=2), clip, tmp_path / "second", cache=cache, workers=0)
    assert computed.images == 9 * VIEWS
    assert not toy.opened
    run_job(toy.job(cached_views=VIEWS), clip, tmp_path / "again", cache=cache, workers=4)
    run_job(toy.job(cached_views=VIEWS), clip, tmp_path / "anew", cache=tmp_path / "other")
    assert adapter_hash(tmp_path / "first") == adapter_hash(tmp_path / "again") == adapter_hash(tmp_path / "anew")
    assert adapter_hash(tmp_path / "first") != adapter_hash(tmp_path / "second")


def reader(toy, clip, cache, seed, ranks=None):
    model = toy.job().build(clip)
    options = {"cache": cache, "workers": 0, "ranks": ranks or Ranks(), "crop": (0.5, 1.0)}
    return cached_views(model, toy.dataset, toy.dataset.train, views=VIEWS, seed=seed, **options)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_every_seed_sees_the_same_views_in_another_order(toy, clip, tmp_path):
    reads = [reader(toy, clip, tmp_path, seed) for seed in (1, 2)]
    orders = []
    for index in range(9):
        one, two = ([read(index, epoch) for epoch in range(2 * VIEWS)] for read in reads)
        assert all(same(one[epoch], one[epoch + VIEWS]) for epoch in range(VIEWS))
        places = [[same(view, other) for other in two[:VIEWS]].index(True) for view in one[:VIEWS]]
        assert sorted(places) == list(range(VIEWS))
        orders.append(places[0])
    assert len(set(orders)) > 1


def test_a_cached_view_is_what_the_frozen_layers_make_of_a_view(toy, clip, tmp_path):
    view = reader(toy, clip, tmp_path, 1)(0, 0)
    model = toy.job().build(clip)
    drawn = live_views(toy.dataset, toy.dataset.train, clip.preprocess_train, 1)(0, 0)
    live = model.states(drawn["images"], training=True)
    assert {name: one.shape for name, one in view.items()} == {name: one.shape for name, one in live.items()}
    assert all(one.dtype == torch.float32 for one in view.values())
    first = random.Random(f"first view 1 {toy.dataset.train[0].id}").randrange(VIEWS)
    image = toy.open(toy.dataset.train[0].id)
    again = clip.preprocess_train(image, random.Random(f"cached view {first} {toy.dataset.train[0].id}"))
    for name, made in model.states(again[None], training=True).items():
        assert torch.allclose(view[name], made, atol=2e-3, rtol=2e-3), name


def test_a_damaged_view_is_computed_again(toy, clip, computed, tmp_path):
    cache = tmp_path / "cache"
    run_job(toy.job(cached_views=1), clip, tmp_path / "first", cache=cache)
    flip_a_byte(cache)
    computed.images = 0
    run_job(toy.job(cached_views=1), clip, tmp_path / "second", cache=cache)
    assert computed.images == 1
    assert adapter_hash(tmp_path / "first") == adapter_hash(tmp_path / "second")


def test_an_unreadable_image_has_no_views(toy, clip, tmp_path):
    toy.bad = {"train/1/1"}
    _, progress = run_job(toy.job(cached_views=2), clip, cache=tmp_path)
    assert progress.skipped == 2
    with pytest.raises(ImageError, match="train/1/1 cannot be read"):
        reader(toy, clip, tmp_path, 1)(4, 0)


def test_processes_share_the_work(toy, clip, computed, tmp_path, monkeypatch):
    monkeypatch.setattr(Ranks, "wait", lambda self: None)
    for rank, so_far in enumerate((14, 27)):
        reader(toy, clip, tmp_path, 1, Ranks(rank, 2))
        assert computed.images == so_far


def test_views_need_a_place(toy, clip, tmp_path):
    with pytest.raises(ConfigError, match="cache='FOLDER'"):
        run_job(toy.job(cached_views=2), clip, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def model(toy, clip):
    model, _ = run_job(toy.job(epochs=3, lr=1e-2), clip)
    return model


def test_cached_evaluation_is_as_good_as_live(toy, model, computed, tmp_path):
    items = toy.dataset.test
    live = evaluate(model, toy.dataset, items, batch_size=4)
    first = evaluate(model, toy.dataset, items, batch_size=4, cache=tmp_path)
    computed.images = 0
    toy.opened.clear()
    second = evaluate(model, toy.dataset, items, batch_size=5, cache=tmp_path, workers=0)
    assert not toy.opened
    assert computed.images == 0
    assert torch.allclose(first.confidence, second.confidence, atol=1e-6)
    assert torch.allclose(live.confidence, second.confidence, atol=1e-2)
    assert live.picks.tolist() == second.picks.tolist()
    assert live.scores == first.scores == second.scores


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_cached_features_fit_a_backbone_in_half_precision(toy, tiny_folders, tmp_path, precision):
    half = dear.load_clip(f"local-dir:{tiny_folders['plain']}", "random", seed=7, precision=precision)
    model, progress = run_job(toy.job(cached_views=2), half, cache=tmp_path)
    assert progress.step == 6
    cached = evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path)
    live = evaluate(model, toy.dataset, toy.dataset.test)
    assert torch.allclose(cached.confidence, live.confidence, atol=0.02)


def test_another_methods_features_are_stored_apart(toy, clip, model, tmp_path):
    plain, _ = run_job(toy.job(method="zero_shot"), clip)
    evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path)
    found = evaluate(plain, toy.dataset, toy.dataset.test, cache=tmp_path)
    with model.disabled():
        same = evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path)
    assert found.picks.tolist() == same.picks.tolist()
    assert len(list(tmp_path.glob("features-*"))) == 2


def test_a_damaged_row_is_computed_again(toy, model, computed, tmp_path):
    first = evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path)
    flip_a_byte(tmp_path)
    computed.images = 0
    second = evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path)
    assert computed.images == 1
    assert first.scores == second.scores


@pytest.mark.parametrize("cached", [False, True])
def test_unreadable_test_images_count_as_wrong(toy, model, tmp_path, cached):
    toy.bad = {"test/0/0", "test/2/1"}
    found = evaluate(model, toy.dataset, toy.dataset.test, batch_size=2, cache=tmp_path if cached else None)
    assert list(found.problems) == [0, 5]
    assert found.problems[0] == "test/0/0 cannot be read: it is damaged."
    assert found.picks[[0, 5]].tolist() == [-1, -1]
    assert found.scores.unreadable == 2
    assert found.scores.images == 6


def test_a_damaged_row_of_an_image_that_is_gone_counts_as_wrong(toy, model, tmp_path):
    evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path)
    flip_a_byte(tmp_path)
    toy.bad = {item.id for item in toy.dataset.test}
    found = evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path)
    assert list(found.problems) == [0]
    assert found.picks[0] == -1
    assert found.scores.unreadable == 1


def test_test_images_that_another_process_encodes_meanwhile_are_not_encoded_again(toy, clip, monkeypatch, tmp_path):
    monkeypatch.setattr(feature_cache, "BLOCK", 2)
    model, encoded, fill = toy.job().build(clip), list[str](), feature_cache._fill
    model.requires_grad_(False)
    inside = []

    def filling(stores, images, *others, **named):
        if not inside:  # while this process begins its first block, another one does everything
            inside.append(True)
            evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path, workers=0)
            encoded.clear()
        encoded.extend(images.names)
        return fill(stores, images, *others, **named)

    alone = evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path / "alone", workers=0)
    monkeypatch.setattr(feature_cache, "_fill", filling)
    shared = evaluate(model, toy.dataset, toy.dataset.test, cache=tmp_path, workers=0)
    assert len(encoded) == 2  # the block that was begun; the other two were there
    assert shared.scores == alone.scores
    assert torch.equal(shared.confidence, alone.confidence)


def test_processes_share_the_blocks_of_test_images():
    ours, theirs = (feature_cache.own_order(range(1000), process) for process in (7, 8))
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))
    assert [one[0] for one in ours] != [one[0] for one in theirs]
    assert all(one[0] % feature_cache.BATCH == 0 for one in ours)  # batches do not depend on who encodes them
