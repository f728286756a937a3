"""Shots and halves: pure functions of the items and a seed, whatever the order in which a disk lists them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from dear.data.dataset import Dataset, Item, in_order
from dear.errors import ConfigError, DataError
from dear.storage import documents
from dear.storage.files import letters, sha256

Half = Literal["all", "base", "novel"]

FORMAT = "dear-shots"
FORMAT_VERSION = 2


_Row = Annotated[tuple[str, int], Field(strict=False)] | Annotated[tuple[str, int, str], Field(strict=False)]


class _Shots(documents.Form):
    """Rows of id, label and, since format 2, the hash of the image."""

    items: list[_Row]


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
    content = {"dataset": dataset.name, "shots": shots, "seed": seed, "items": rows}
    digest = sha256(json.dumps(content, sort_keys=True).encode())
    full = {"format": FORMAT, "format_version": FORMAT_VERSION, **content, "sha256": digest}
    return json.dumps(full, indent=1) + "\n"


def shots_from_json(text: str, *, where: str = "the file") -> tuple[tuple[Item, ...], frozenset[str]]:
    """Read a draw back with the hashes of its images, which format 1 does not know; a changed file is refused."""
    told: dict[str, Any] = {"where": where, "what": "a list of shots", "error": DataError}
    content, _ = documents.check(documents.parse(text, **told), **told, form=FORMAT, newest=FORMAT_VERSION)
    bare = {name: content[name] for name in content if name not in ("format", "format_version", documents.SEAL)}
    if content.get(documents.SEAL) != sha256(json.dumps(bare, sort_keys=True).encode()):
        raise DataError(f"{where} was changed since it was written: draw the shots again.")
    rows = documents.fitting(content, _Shots, **told).items
    hashes = frozenset(row[2] for row in rows if len(row) == 3)
    return tuple(Item(row[0], row[1]) for row in rows), hashes
