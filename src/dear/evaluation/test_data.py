"""Selects the images to test a run on (never images that it was trained on), and opens the data set of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dear.data.dataset import Dataset, Item
from dear.data.names import with_class, with_names
from dear.data.open import opened
from dear.data.splits import Half, labels_of, left_over, restrict, shots_from_json, training_shots
from dear.engine.job import UNLABELLED
from dear.engine.run_folder import RUN, SHOTS, read_run
from dear.errors import ConfigError, DataError, option
from dear.storage import documents

Newness = Literal["unknown", "images", "images of trained classes", "classes"]
"""What is new in a test, as far as it is known: its images, images of a trained half of the classes, or its classes."""


@dataclass(frozen=True)
class TestData:
    """A data set to test on, the items of it that were trained on, and the description of the run, if there is one."""

    __test__ = False  # pytest must not collect this class

    dataset: Dataset
    trained_items: tuple[Item, ...]
    description: dict[str, Any] | None
    trained_hashes: frozenset[str] = frozenset()
    """Hashes of training images, set if the data set is in another place, where they may have other names."""

    def items(self, half: Half = "all") -> tuple[Item, ...]:
        """The images of a half that may be tested."""
        candidates = items_to_test(self.dataset, half, trained_items=self.trained_items)
        if not self.trained_hashes:
            return candidates
        unseen = tuple(item for item in candidates if self.dataset.content_of(item.id) not in self.trained_hashes)
        if not unseen:
            raise DataError(f"{self.dataset.name} has no images left to test on: all of them were trained on.")
        return unseen

    def trained_here(self) -> tuple[Item, ...]:
        """Training items in this data set."""
        present = {item.id for split in (self.dataset.train, self.dataset.val) for item in split}
        return tuple(dict.fromkeys(item for item in self.trained_items if item.id in present))

    def class_names(self, half: Half = "all") -> tuple[str, ...]:
        """The classes of a half."""
        labels = labels_of(self.dataset, half)
        return self.dataset.names_in(labels)

    def newness(self, half: Half = "all") -> Newness:
        """What is new in a test of a half; "unknown" without a run's description."""
        if self.description is None:
            return "unknown"
        if not set(self.description["classes"]) & set(self.class_names(half)):
            return "classes"
        return "images" if half == "all" else "images of trained classes"

    def halves(self) -> tuple[Half, ...]:
        """The halves to test: all classes, or, if one half was trained on, that half and then the other."""
        learned = tuple(self.description["classes"]) if self.description else ()
        if len(self.dataset.class_names) > 1:
            for half, other in (("base", "novel"), ("novel", "base")):
                if self.class_names(half) == learned:  # type: ignore[arg-type]
                    return half, other  # type: ignore[return-value]
        return ("all",)


def items_to_test(
    dataset: Dataset, half: Half, *, trained_items: Iterable[Item], validate: bool = False
) -> tuple[Item, ...]:
    """The test images of a half; in a data set without a test split, the training images that were not sampled.

    `validate` returns the validation split and the unsampled training images instead, for choosing settings.
    """
    unsampled = left_over(dataset.train, trained_items)
    items = restrict((*dataset.val, *unsampled) if validate else dataset.test or unsampled, labels_of(dataset, half))
    if not items:
        raise DataError(
            f"{dataset.name} has no images left to test on, because all were used for training: {_remedy(validate)}."
            if dataset.train
            else f"{dataset.name} has no {'validation' if validate else 'test'} images."
        )
    return items


def _remedy(validate: bool) -> str:
    """What to do if no image is left to test on."""
    if validate:
        return "use fewer shots, or add a val folder"
    return (
        f"train with at least 4 images per class and without {option(test_share=0)}, add a test folder, or test other "
        f"images, as in 'dear eval RUN DATA'"
    )


def _as_trained(dataset: Dataset, source: dict[str, Any]) -> Dataset:
    """The data set with the class names and additional classes that a run was trained with."""
    if renamed := source.get("renamed"):
        dataset = with_names(dataset, renamed)
    for folder in source.get("added") or ():
        dataset = with_class(dataset, folder)
    return dataset


def data_of_run(
    run: Path,
    data: str | Path | Dataset | None = None,
    data_root: Path | str | None = None,
    template: str | None = None,
) -> TestData:
    """Open the data set to test a run on, by default its own, with the items that the run was trained on."""
    if not run.exists():
        raise ConfigError(f"{run} does not exist: give the folder of a run or adapter.")
    if not (run / RUN).is_file():
        if data is None:
            raise ConfigError(f"{run} does not record its data set: name the data set to test on.")
        return TestData(opened(data, data_root, template), (), None)
    content = read_run(run)
    about, source = content["description"], content.get("source") or {}
    try:
        dataset = opened(data or source.get("data") or about["data"], data_root or source.get("root"))
    except DataError as error:
        if data is not None:
            raise
        raise DataError(f"{error} {run} was trained on it: pass its new path, as in 'dear eval {run} DATA'.") from None
    same = dataset.name == about["data"]
    if same and not (dataset.added or dataset.renamed):
        dataset = _as_trained(dataset, source)
    dataset = replace(dataset, template=template or (about["template"] if same else dataset.template))
    sampled = training_shots(dataset, about["shots"], about["seed"], content.get("test_share", 0.0)) if same else ()
    shots: dict[Item, str] = {}
    if (run / SHOTS).is_file():
        shots = shots_from_json(documents.read_text(run / SHOTS, error=DataError), where=str(run / SHOTS))
        listed = content.get("other_shots")
        others = _of_other_classes(sampled, dataset, about["classes"]) if listed is None else map(_unlabelled, listed)
        sampled = (*shots, *others) if same else ()
    if dataset.source and (dataset.source, dataset.root) == (source.get("data"), source.get("root")):
        return TestData(dataset, sampled, about)
    known = sampled if not shots or _same_names(dataset, shots) else ()
    return TestData(dataset, known, about, frozenset(shots.values()))


def _same_names(dataset: Dataset, shots: dict[Item, str]) -> bool:
    """Whether names mean the images that they meant in training, as in a folder that was moved."""
    present = {item.id for split in (dataset.train, dataset.val) for item in split}
    here = [item for item in shots if item.id in present]
    return bool(here) and all(dataset.content_of(item.id) == shots[item] for item in here)


def _unlabelled(item_id: str) -> Item:
    return Item(item_id, UNLABELLED)


def _of_other_classes(sampled: Iterable[Item], dataset: Dataset, learned: Iterable[str]) -> tuple[Item, ...]:
    """The shots of the half that a run did not learn: a grid does not test them either."""
    known = set(learned)
    return tuple(item for item in sampled if dataset.class_names[item.label] not in known)
