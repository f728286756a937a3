"""The world's data sets, each a counterpart of one in the paper.

Image `index` of class `label` in a split is a pure function of (data set, split, label, index). A class fixes some
attributes; the others are sampled so that the scene belongs to no other class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from PIL import Image

from dear.data.dataset import Dataset, Item
from dear.errors import ConfigError, did_you_mean
from dear.world.catalog import DATASETS, WorldClass, WorldDataset
from dear.world.raster import Bytes
from dear.world.render import RENDERER_VERSION, Look, Scene, render, words
from dear.world.vocabulary import ATTRIBUTES, NAMES

CLIP = "world"
"""The CLIP that was pre-trained on the world."""
SPLITS = ("train", "val", "test")
_STREAM = 16  # first stream of data sets; pre-training and held-out images use smaller numbers


@dataclass(frozen=True)
class WorldItem:
    """One image of a data set: its scene, and how to render it."""

    dataset: str
    split: str
    label: int
    index: int
    name: str
    scene: Scene = field(repr=False)
    look: Look = field(repr=False)
    key: tuple[int, ...] = field(repr=False)

    def render(self) -> Bytes:
        """Render the image, 64 × 64 × 3 bytes."""
        return render(self.scene, self.key, self.look)


@dataclass(frozen=True)
class World:
    """A data set of the world."""

    declaration: WorldDataset

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in label order (sorted)."""
        return tuple(one.name for one in self.declaration.classes)

    @property
    def template(self) -> str:
        """The prompt template, with {} for the class name."""
        return self.declaration.template

    def count(self, split: str) -> int:
        """Return the number of images per class in a split."""
        if split not in SPLITS:
            raise ConfigError(f"There is no split {split!r}: choose {', '.join(SPLITS)}.")
        return getattr(self.declaration, split)  # type: ignore[no-any-return]

    def item(self, split: str, label: int, index: int) -> WorldItem:
        """Return one image of one class."""
        if not 0 <= index < self.count(split):
            raise ConfigError(
                f"{self.declaration.name} has {self.count(split)} {split} images per class, not {index + 1}."
            )
        one = self.declaration
        key = (_STREAM + one.seed, SPLITS.index(split), label, index)
        look = one.looks[words((*key, 0), 1)[0] % len(one.looks)]
        return WorldItem(
            one.name, split, label, index, one.classes[label].name, self._scene(label, key), look, (*key, 1)
        )

    def items(self, split: str) -> Iterator[WorldItem]:
        """Iterate over a split, class by class."""
        for label in range(len(self.declaration.classes)):
            for index in range(self.count(split)):
                yield self.item(split, label, index)

    def _scene(self, label: int, key: tuple[int, ...]) -> Scene:
        fixed = dict(self.declaration.classes[label].fixed)
        others = [dict(c.fixed) for i, c in enumerate(self.declaration.classes) if i != label]
        attempt = 0
        while True:
            chance = words((*key, 2, attempt), 5)
            sampled = {a: NAMES[a][chance[i] % len(NAMES[a])] for i, a in enumerate(ATTRIBUTES)}
            scene = Scene(**(sampled | fixed))
            if not any(matches(scene, other) for other in others):
                return scene
            attempt += 1


def matches(scene: Scene, fixed: dict[str, str]) -> bool:
    """Return whether a scene has all the values that a class fixes."""
    return all(getattr(scene, attribute) == value for attribute, value in fixed.items())


def load_world_dataset(name: str) -> World:
    """Return a data set of the world by its name."""
    if name not in DATASETS:
        raise ConfigError(
            f"There is no world data set {name!r}: choose {', '.join(DATASETS)}.{did_you_mean(name, DATASETS)}"
        )
    return World(DATASETS[name])


def dataset_names() -> tuple[str, ...]:
    """Return the names of all data sets of the world."""
    return tuple(DATASETS)


def open_named(name: str) -> Dataset:
    """Open a data set of the world as a `Dataset`; images are rendered when they are opened."""
    world = load_world_dataset(name)

    def items(split: str) -> tuple[Item, ...]:
        labels = range(len(world.class_names))
        return tuple(Item(f"{split}/{label}/{i}", label) for label in labels for i in range(world.count(split)))

    def open_item(item_id: str) -> Image.Image:
        split, label, index = item_id.split("/")
        return Image.fromarray(world.item(split, int(label), int(index)).render())

    def fingerprint(item_id: str) -> str:
        split, label, index = item_id.split("/")
        item = world.item(split, int(label), int(index))
        return f"renderer {RENDERER_VERSION} {item.scene} {item.look} {item.key}"

    return Dataset(
        name,
        world.class_names,
        world.template,
        train=items("train"),
        val=items("val"),
        test=items("test"),
        open=open_item,
        fingerprint=fingerprint,
        source=name,
    )


__all__ = [
    "CLIP",
    "SPLITS",
    "World",
    "WorldClass",
    "WorldDataset",
    "WorldItem",
    "dataset_names",
    "load_world_dataset",
    "matches",
    "open_named",
]
