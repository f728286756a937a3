"""Data sets of the world: declarations that hold what they promise."""

import numpy as np
import pytest

from dear.errors import ConfigError
from dear.world.catalog import DATASETS
from dear.world.datasets import SPLITS, dataset_names, load_world_dataset, matches
from dear.world.samples import scene_has_held_out_pair
from dear.world.vocabulary import NAMES

NAMES_OF_SETS = dataset_names()


def test_every_kind_of_data_set_is_there():
    stands_for = " ".join(one.stands_for for one in DATASETS.values())
    for name in [
        "DTD",
        "Flowers102",
        "Caltech101",
        "EuroSAT",
        "StanfordCars",
        "ImageNet",
        "ImageNetV2",
        "ImageNet-Sketch",
        "ImageNet-A",
    ]:
        assert name in stands_for
    assert "ImageNet-R" in stands_for
    assert len({one.seed for one in DATASETS.values()}) == len(DATASETS)


@pytest.mark.parametrize("name", NAMES_OF_SETS)
def test_declaration(name):
    one = DATASETS[name]
    names = [c.name for c in one.classes]
    assert len(names) >= 16
    assert len(set(names)) == len(names)
    assert names == sorted(names)
    assert len({c.fixed for c in one.classes}) == len(names)
    assert one.template.count("{}") == 1
    assert one.train >= 32
    assert one.test * len(names) >= 2000
    for c in one.classes:
        assert all(value in NAMES[attribute] for attribute, value in c.fixed)
    assert all(look.held_out_places for look in one.looks)


@pytest.mark.parametrize("name", NAMES_OF_SETS)
def test_an_image_shows_its_class_and_no_other(name):
    data = load_world_dataset(name)
    classes = data.declaration.classes
    for label in range(0, len(classes), 3):
        for index in range(6):
            scene = data.item("test", label, index).scene
            assert [i for i, c in enumerate(classes) if matches(scene, dict(c.fixed))] == [label]


@pytest.mark.parametrize("name", NAMES_OF_SETS)
def test_splits_are_disjoint_and_order_does_not_matter(name):
    data = load_world_dataset(name)
    labels = range(len(data.class_names))
    keys = [data.item(split, label, index).key for split in SPLITS for label in labels for index in (0, 7)]
    assert len(set(keys)) == len(keys)
    again = data.item("val", 2, 1)
    assert np.array_equal(again.render(), load_world_dataset(name).item("val", 2, 1).render())
    assert again.name == data.class_names[2]


def test_combination_sets_only_show_held_out_combinations():
    for name in ("world-blooms", "world-scenes"):
        data = load_world_dataset(name)
        for label in range(len(data.class_names)):
            assert scene_has_held_out_pair(data.item("train", label, 0).scene)


def test_shifted_variants_share_the_classes_of_their_source():
    source = DATASETS["world-broad"].classes
    for name in ("v2", "sketch", "a", "r"):
        assert DATASETS[f"world-broad-{name}"].classes == source


def test_count_and_bad_names():
    data = load_world_dataset("world-textures")
    assert sum(1 for _ in data.items("val")) == len(data.class_names) * data.count("val")
    with pytest.raises(ConfigError, match="no split 'dev'"):
        data.count("dev")
    with pytest.raises(ConfigError, match="8 val images per class, not 9"):
        data.item("val", 0, 8)
    with pytest.raises(ConfigError, match="Did you mean 'world-textures'"):
        load_world_dataset("world-texture")
