"""Shots and halves: pure functions of the items and a seed, whatever the order in which a disk lists them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from dear.data.dataset import Dataset, Item, in_order
from dear.errors import ConfigError, DataError
from dear.storage.documents import FORMAT, SEAL, VERSION, Document
from dear.storage.files import letters, sha256

Half = Literal["all", "base", "novel"]


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
        """The hash of the entries alone: it names the draw, whatever the format is."""
        bare = {name: value for name, value in content.items() if name not in (FORMAT, VERSION, SEAL)}
        return sha256(json.dumps(bare, sort_keys=True).encode())

    @classmethod
    def encode(cls, entries: Mapping[str, Any]) -> str:
        """JSON text in ASCII; names of files need not be UTF-8."""
        content = {FORMAT: cls.format, VERSION: cls.version, **entries, SEAL: cls.seal(entries)}
        return json.dumps(content, indent=1) + "\n"


def few_shot(items: Iterable[Item], shots: int, seed: int) -> tuple[Item, ...]:
    """`shots` items of every class, or all of a class that has fewer.

    An item's place in the draw is a hash of the seed, its class and its id, so the draw depends on nothing else, and
    fewer shots of the same seed are always among more shots.
    """
    if shots < 1:
        raise DataError(f"The number of shots is {shots}, but must be at least 1.")
    by_class: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        by_class[item.label].append(item)
    drawn = [item for members in by_class.values() for item in sorted(members, key=partial(_ticket, seed))[:shots]]
    return in_order(drawn)


def _ticket(seed: int, item: Item) -> tuple[bytes, str]:
    return hashlib.sha256(letters(f"{seed}\n{item.label}\n{item.id}")).digest(), item.id


def base_and_novel(classes: int) -> tuple[range, range]:
    """The first ⌈n/2⌉ labels, and the others."""
    if classes < 2:
        raise DataError(f"Base and novel halves need at least 2 classes, but there is {classes}.")
    half = (classes + 1) // 2
    return range(half), range(half, classes)


def restrict(items: Iterable[Item], labels: range) -> tuple[Item, ...]:
    """The items of some classes, renumbered from 0."""
    return tuple(Item(item.id, item.label - labels.start) for item in items if item.label in labels)


def left_over(items: Iterable[Item], drawn: Iterable[Item]) -> tuple[Item, ...]:
    """The items that were not drawn."""
    taken = {item.id for item in drawn}
    return tuple(item for item in items if item.id not in taken)


def held_out(items: Sequence[Item], per_class: int, seed: int) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """The items without `per_class` of every class, and those; a class never gives its last item."""
    if per_class < 1:
        return tuple(items), ()
    counts = Counter(item.label for item in items)
    drawn = few_shot(items, per_class, seed ^ 0x5EED)
    given: Counter[int] = Counter()
    held = []
    for item in drawn:
        if given[item.label] < min(per_class, counts[item.label] - 1):
            given[item.label] += 1
            held.append(item)
    return left_over(items, held), tuple(held)


def labels_of(dataset: Dataset, half: str) -> range:
    """The labels of all classes, or of one half of them."""
    count = len(dataset.class_names)
    if half == "all":
        return range(count)
    if half not in ("base", "novel"):
        raise ConfigError(f"half is {half!r}, but can be 'all', 'base' or 'novel'.")
    return base_and_novel(count)[half == "novel"]


def shots_to_json(dataset: Dataset, items: Sequence[Item], *, shots: int, seed: int) -> str:
    """A draw as JSON, with a hash of its content."""
    rows = [[item.id, item.label, dataset.content_of(item.id)] for item in items]
    return Shots.encode({"dataset": dataset.name, "shots": shots, "seed": seed, "items": rows})


def shots_from_json(text: str, *, where: str = "the file") -> tuple[tuple[Item, ...], frozenset[str]]:
    """Read a draw back with the hashes of its images; a changed file is refused."""
    rows = Shots.from_json(text, where=where).items
    return tuple(Item(id, label) for id, label, _ in rows), frozenset(content for *_, content in rows)
