"""`Dataset`: class names, a prompt template and items in three splits. Images are opened by their id when needed."""

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
    """One image: the id by which its data set opens it, and its class label."""

    id: str
    label: int


@dataclass(frozen=True)
class Dataset:
    """Labelled images in the splits train, val and test. Missing splits are empty."""

    name: str
    class_names: tuple[str, ...]
    template: str
    train: tuple[Item, ...]
    val: tuple[Item, ...]
    test: tuple[Item, ...]
    open: Callable[[str], Image.Image] = field(repr=False)
    fingerprint: Callable[[str], str] = field(repr=False, default=lambda item_id: "")
    """Text that changes when an image changes, made without opening the image."""
    content: Callable[[str], str] | None = field(repr=False, default=None)
    """Hash of an image's bytes, for results that are invalid once the image changes; by default the fingerprint."""
    source: str = ""
    """Argument for `open_dataset` that opens this data set again: its name, or the full path of its folder or list."""
    root: str | None = None
    """The data folder, for data sets that are found by name below one."""
    descriptions: Mapping[str, tuple[str, ...]] | None = field(repr=False, default=None)
    """Sentences about each class; None if there are none."""

    renamed: Mapping[str, str] | None = field(repr=False, default=None)
    """Class names that replace folder names; None if there are none."""
    added: tuple[str, ...] = field(repr=False, default=())
    """Folders that were added as further classes."""

    def content_of(self, item_id: str) -> str:
        """Hash of an image's content, independent of its name and of file times."""
        return (self.content or self.fingerprint)(item_id)

    def __repr__(self) -> str:
        """Counts instead of all items."""
        counts = ", ".join(f"{len(self.split(split)):,} {split}" for split in SPLITS)
        return f"Dataset({self.name}: {len(self.class_names)} classes, {counts})"

    def split(self, name: str) -> tuple[Item, ...]:
        """The items of a split."""
        if name not in SPLITS:
            raise ConfigError(f"There is no split {name!r}: choose {', '.join(SPLITS)}.")
        items: tuple[Item, ...] = getattr(self, name)
        return items

    def names_in(self, labels: range) -> tuple[str, ...]:
        """Class names of a range of labels, such as those of one half (`dear.data.splits.labels_of`)."""
        return self.class_names[labels.start : labels.stop]

    def classes(self, names: Sequence[str] | None = None) -> ClassList:
        """The class list, or a part of it, with template and descriptions."""
        listed = self.class_names if names is None else names
        return class_list(listed, self.template, dataset=self.name, descriptions=self.descriptions)

    def images(self, items: Sequence[Item]) -> ImageList:
        """The images of items."""
        ids = tuple(item.id for item in items)

        def content(index: int) -> str:
            return self.content_of(ids[index])

        return ImageList(ids, lambda index: self.open(ids[index]), self.source, content)


def in_order(items: Sequence[Item]) -> tuple[Item, ...]:
    """Items sorted by class and id, so that the order does not depend on the file system."""
    return tuple(sorted(items, key=lambda item: (item.label, item.id)))
