"""Few-shot samples and base/novel halves. All are functions of the items and a seed, not of the order of files."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from dear.data.dataset import Dataset, Item, in_order
from dear.errors import ConfigError, DataError
from dear.options.fields import Half as Half
from dear.storage.documents import FORMAT, SEAL, VERSION, Document
from dear.storage.files import letters, sha256

FEWEST_TESTED, FEWEST_DIVIDED = 2, 4
"""A class has at least this number of test images; a class with fewer than `FEWEST_DIVIDED` images is not divided."""


class Shots(Document):
    """The images that were sampled for training, as stored beside a run."""

    format = "dear-shots"
    version = 2
    noun = "list of shots"
    sealed = True
    error = DataError

    dataset: str
    shots: int
    seed: int
    items: list[Annotated[tuple[str, int, str], Field(strict=False)]]
    """Id, label and hash of every image."""

    @classmethod
    def seal(cls, content: Mapping[str, Any]) -> str:
        """Hash of the entries without format and version, so that it identifies the sample in every format."""
        bare = {name: value for name, value in content.items() if name not in (FORMAT, VERSION, SEAL)}
        return sha256(json.dumps(bare, sort_keys=True).encode())

    @classmethod
    def encode(cls, entries: Mapping[str, Any]) -> str:
        """JSON text in ASCII; names of files need not be UTF-8."""
        content = {FORMAT: cls.format, VERSION: cls.version, **entries, SEAL: cls.seal(entries)}
        return json.dumps(content, indent=1) + "\n"


def few_shot(items: Iterable[Item], shots: int, seed: int, test_share: float = 0.0) -> tuple[Item, ...]:
    """Sample `shots` items per class, or fewer in a class that has not enough of them beside its test images.

    Items are ranked by a hash of the seed, their class and their id, so the sample depends on nothing else. For the
    same seed, a smaller sample is always a part of a larger one.
    """
    if shots < 1:
        raise DataError(f"The number of shots is {shots}, but must be at least 1.")
    by_class: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        by_class[item.label].append(item)
    sampled: list[Item] = []
    for members in by_class.values():
        most = len(members) - set_aside(len(members), test_share)
        sampled += sorted(members, key=partial(_rank, seed))[: min(shots, most)]
    return in_order(sampled)


def set_aside(images: int, test_share: float) -> int:
    """Number of images of a class that must be left for the test: the share of them, at least 2, never all.

    A class with fewer than 4 images is not divided, and with a share of 0 none is.
    """
    if not test_share or images < FEWEST_DIVIDED:
        return 0
    return min(max(FEWEST_TESTED, int(images * test_share)), images - 1)


def training_shots(dataset: Dataset, shots: int, seed: int, test_share: float) -> tuple[Item, ...]:
    """The training images of a data set; if it has no test split, a share of each class is set aside for the test."""
    return few_shot(dataset.train, shots, seed, 0.0 if dataset.test else test_share)


def _rank(seed: int, item: Item) -> tuple[bytes, str]:
    return hashlib.sha256(letters(f"{seed}\n{item.label}\n{item.id}")).digest(), item.id


def span(counts: Iterable[int]) -> str:
    """Counts in words: "9" if they are equal, otherwise "3 to 16"."""
    least, most = min(found := tuple(counts)), max(found)
    return str(least) if least == most else f"{least} to {most}"


def base_and_novel(classes: int) -> tuple[range, range]:
    """Labels of the base half (the first ⌈n/2⌉ classes) and of the novel half (the others)."""
    if classes < 2:
        raise DataError(f"Base and novel halves need at least 2 classes, but there is only {classes}.")
    half = (classes + 1) // 2
    return range(half), range(half, classes)


def restrict(items: Iterable[Item], labels: range) -> tuple[Item, ...]:
    """Items whose label is in a range; their labels are renumbered from 0."""
    return tuple(Item(item.id, item.label - labels.start) for item in items if item.label in labels)


def left_over(items: Iterable[Item], sampled: Iterable[Item]) -> tuple[Item, ...]:
    """Items that are not among the sampled ones."""
    taken = {item.id for item in sampled}
    return tuple(item for item in items if item.id not in taken)


def held_out(items: Sequence[Item], per_class: int, seed: int) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Split items into those for training and `per_class` held-out items per class; one item per class always stays."""
    if per_class < 1:
        return tuple(items), ()
    counts = Counter(item.label for item in items)
    taken: Counter[int] = Counter()
    validation = []
    for item in few_shot(items, per_class, seed ^ 0x5EED):
        if taken[item.label] < min(per_class, counts[item.label] - 1):
            taken[item.label] += 1
            validation.append(item)
    return left_over(items, validation), tuple(validation)


def folds(items: Sequence[Item], count: int, seed: int) -> list[tuple[tuple[Item, ...], tuple[Item, ...]]]:
    """Split items `count` times into those for training and held-out ones, so that each is held out once at most.

    A class of `count` items or more is in every fold; a class with a single item is never held out.
    """
    by_class: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        by_class[item.label].append(item)
    ranked = [sorted(members, key=partial(_rank, seed ^ 0x5EED)) for members in by_class.values() if len(members) > 1]
    found = []
    for fold in range(count):
        taken = in_order([item for members in ranked for item in members[fold::count]])
        found.append((left_over(items, taken), taken))
    return found


def labels_of(dataset: Dataset, half: str) -> range:
    """The range of labels of all classes, or of the base or novel half."""
    count = len(dataset.class_names)
    if half == "all":
        return range(count)
    if half not in ("base", "novel"):
        raise ConfigError(f"half is {half!r}, but can be 'all', 'base' or 'novel'.")
    return base_and_novel(count)[half == "novel"]


def shots_to_json(dataset: Dataset, items: Sequence[Item], *, shots: int, seed: int) -> str:
    """A few-shot sample as JSON, with a hash of its content."""
    rows = [[item.id, item.label, dataset.content_of(item.id)] for item in items]
    return Shots.encode({"dataset": dataset.name, "shots": shots, "seed": seed, "items": rows})


def shots_from_json(text: str, *, where: str = "the file") -> dict[Item, str]:
    """Read a few-shot sample: the hash of each image; an edited file raises `DataError`."""
    return {Item(id, label): content for id, label, content in Shots.from_json(text, where=where).items}
