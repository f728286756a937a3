"""A data set: class names, a prompt template, and items in three splits, each opened by its id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from PIL import Image

from dear.data.images import ImageList
from dear.data.prompts import ClassList, class_list
from dear.errors import ConfigError

SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")


class Item(NamedTuple):
    """One image: an id that its data set can open, and the number of its class."""

    id: str
    label: int


@dataclass(frozen=True)
class Dataset:
    """Images of named classes. Splits that a data set does not have are empty."""

    name: str
    class_names: tuple[str, ...]
    template: str
    train: tuple[Item, ...]
    val: tuple[Item, ...]
    test: tuple[Item, ...]
    open: Callable[[str], Image.Image] = field(repr=False)
    fingerprint: Callable[[str], str] = field(repr=False, default=lambda item_id: "")
    """Tells whether an image has changed, without opening it."""
    content: Callable[[str], str] | None = field(repr=False, default=None)
    """Hash of an image's bytes, for results that must not outlive it; by default the fingerprint."""
    source: str = ""
    """What `open_dataset` finds it by again: its name, or the full path of its folder or list."""
    root: str | None = None
    """The folder that it lies below, where the name alone does not say it."""
    descriptions: Mapping[str, tuple[str, ...]] | None = field(repr=False, default=None)
    """Sentences about each class, if some were given."""

    renamed: Mapping[str, str] | None = field(repr=False, default=None)
    """Names that were given to folders, if some were."""
    added: tuple[str, ...] = field(repr=False, default=())
    """Folders whose images were added as further classes."""

    def content_of(self, item_id: str) -> str:
        """What an image is, whatever it is called and whenever it was copied."""
        return (self.content or self.fingerprint)(item_id)

    def __repr__(self) -> str:
        """Counts instead of every item."""
        counts = ", ".join(f"{len(self.split(split)):,} {split}" for split in SPLITS)
        return f"Dataset({self.name}: {len(self.class_names)} classes, {counts})"

    def split(self, name: str) -> tuple[Item, ...]:
        """One split by name."""
        if name not in SPLITS:
            raise ConfigError(f"There is no split {name!r}: the splits are {', '.join(SPLITS)}.")
        items: tuple[Item, ...] = getattr(self, name)
        return items

    def classes(self, names: Sequence[str] | None = None) -> ClassList:
        """The classes, or some of them, with everything that is known about them."""
        listed = self.class_names if names is None else names
        return class_list(listed, self.template, dataset=self.name, descriptions=self.descriptions)

    def images(self, items: Sequence[Item]) -> ImageList:
        """Items as a list of images."""
        ids = tuple(item.id for item in items)

        def content(index: int) -> str:
            return self.content_of(ids[index])

        return ImageList(ids, lambda index: self.open(ids[index]), self.source, content)


def in_order(items: Sequence[Item]) -> tuple[Item, ...]:
    """Items by class and id: an order that no directory listing can change."""
    return tuple(sorted(items, key=lambda item: (item.label, item.id)))
