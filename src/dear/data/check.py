"""Check a data set: compare its counts with the declaration, and report missing files and unreadable images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dear.data.catalog import Declaration, read_declared
from dear.data.dataset import SPLITS, Dataset
from dear.data.images import passed_over_sentence
from dear.errors import DataError, ImageError

MOST_NAMED = 5


@dataclass
class Health:
    """Result of a check; `problems` is empty if the data set is complete."""

    name: str
    classes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_present(one: Declaration, root: Path) -> bool:
    """Whether the image lists of a declared data set can be read; images are not opened."""
    try:
        read_declared(one, root)
    except DataError:
        return False
    return True


def check_dataset(
    name: str,
    open_it: Callable[[], Dataset],
    declared: Declaration | None,
    *,
    decode: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> Health:
    """Compare the counts of a data set with its declaration, and open every image (or only check that it exists)."""
    health = Health(name)
    try:
        data = open_it()
    except DataError as error:
        health.problems.append(str(error))
        return health
    health.classes = len(data.class_names)
    health.counts = {split: len(data.split(split)) for split in SPLITS}
    if declared is not None:
        _compare_counts(health, declared)
    place = Path(data.source)
    if data.source and place.is_dir() and (others := passed_over_sentence(place)):
        health.notes.append(others)
    _try_images(data, health, decode, progress)
    return health


def _compare_counts(health: Health, declared: Declaration) -> None:
    expected = {"train": declared.train, "val": declared.val, "test": declared.test}
    if declared.classes is not None and health.classes != declared.classes:
        health.problems.append(f"{health.classes} classes, but {declared.title} has {declared.classes}.")
    for split, count in expected.items():
        if count is not None and health.counts[split] != count:
            health.notes.append(
                f"{health.counts[split]:,} {split} images, but {declared.title} has {count:,}: this is a subset."
            )


def _try_images(data: Dataset, health: Health, decode: bool, progress: Callable[[int], None]) -> None:
    broken = []
    items = sorted({item.id for split in SPLITS for item in data.split(split)})
    for done, item_id in enumerate(items, start=1):
        if decode:
            try:
                data.open(item_id)
            except ImageError as error:
                broken.append(str(error))
        progress(done)
    health.problems += broken[:MOST_NAMED]
    if len(broken) > MOST_NAMED:
        health.problems.append(f"… and {len(broken) - MOST_NAMED} more images that cannot be read.")
