"""Which images may be tested: never those that were trained on. And what a run was made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dear.data.dataset import Dataset, Item
from dear.data.names import with_class, with_names
from dear.data.open import opened
from dear.data.splits import Half, few_shot, labels_of, left_over, restrict, shots_from_json
from dear.engine.run import RUN, SHOTS, read_run
from dear.errors import ConfigError, DataError
from dear.storage import documents

Newness = Literal["unknown", "images", "images of trained classes", "classes"]
"""What of a test was not trained on, as far as it is known: images of any classes, of one trained half, or classes."""


@dataclass(frozen=True)
class TestData:
    """A data set to test on, what of it was trained on, and the run's description, if there is a run."""

    __test__ = False  # no test of pytest's

    dataset: Dataset
    drawn: tuple[Item, ...]
    description: dict[str, Any] | None
    trained: frozenset[str] = frozenset()
    """Hashes of images that were trained on, if the data set is not the very one: they may lie here by another name."""

    def items(self, half: Half = "all") -> tuple[Item, ...]:
        """The images of a half that may be tested."""
        found = items_to_test(self.dataset, half, drawn=self.drawn)
        if not self.trained:
            return found
        kept = tuple(item for item in found if self.dataset.content_of(item.id) not in self.trained)
        if not kept:
            raise DataError(f"All images of {self.dataset.name} were trained on, so none is left to test.")
        return kept

    def here(self) -> tuple[Item, ...]:
        """What was trained on and is in this data set; nothing if it lies elsewhere: names may mean other images."""
        if self.trained:
            return ()
        present = {item.id for split in (self.dataset.train, self.dataset.val) for item in split}
        return tuple(dict.fromkeys(item for item in self.drawn if item.id in present))

    def class_names(self, half: Half = "all") -> tuple[str, ...]:
        """The classes of a half."""
        labels = labels_of(self.dataset, half)
        return self.dataset.class_names[labels.start : labels.stop]

    def newness(self, half: Half = "all") -> Newness:
        """What is new in a test of a half; nothing is known without the run's description."""
        if self.description is None:
            return "unknown"
        if not set(self.description["classes"]) & set(self.class_names(half)):
            return "classes"
        return "images" if half == "all" else "images of trained classes"

    def halves(self) -> tuple[Half, ...]:
        """What to test of a run: all classes, or, if one half was trained on, that half and then the other."""
        learned = tuple(self.description["classes"]) if self.description else ()
        if len(self.dataset.class_names) > 1:
            for half, other in (("base", "novel"), ("novel", "base")):
                if self.class_names(half) == learned:  # type: ignore[arg-type]
                    return half, other  # type: ignore[return-value]
        return ("all",)


def items_to_test(dataset: Dataset, half: Half, *, drawn: Iterable[Item], validate: bool = False) -> tuple[Item, ...]:
    """The test images of a half; where a data set has no test split, the images that were not drawn for training.

    `validate` leaves the test split alone, for choosing settings: it gives the validation split and what was not drawn.
    """
    undrawn = left_over(dataset.train, drawn)
    found = restrict((*dataset.val, *undrawn) if validate else dataset.test or undrawn, labels_of(dataset, half))
    if not found:
        raise DataError(
            f"{dataset.name} has no images left to test on, as training drew them all: use fewer shots, or give it a "
            f"test folder."
            if dataset.train
            else f"{dataset.name} has no {'validation' if validate else 'test'} images."
        )
    return found


def _as_trained(dataset: Dataset, source: dict[str, Any]) -> Dataset:
    """The data set with the names and further classes that a run gave it."""
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
    """The data set to test a run on, by default what it was made from, and what of it the run was trained on."""
    if not (run / RUN).is_file():
        if data is None:
            raise ConfigError(f"{run} does not say what it was made from: name the data set to test on.")
        return TestData(opened(data, data_root, template), (), None)
    content = read_run(run)
    about, source = content["description"], content.get("source") or {}
    try:
        dataset = opened(data or source.get("data") or about["data"], data_root or source.get("root"))
    except DataError as error:
        if data is not None:
            raise
        raise DataError(
            f"{error} {run} was made from it: name where it is now, as in 'dear eval {run} DATA'."
        ) from None
    same = dataset.name == about["data"]
    if same and not isinstance(data, Dataset):
        dataset = _as_trained(dataset, source)
    dataset = replace(dataset, template=template or (about["template"] if same else dataset.template))
    drawn = list(few_shot(dataset.train, about["shots"], about["seed"])) if same and dataset.train else []
    hashes: frozenset[str] = frozenset()
    if (run / SHOTS).is_file():
        shots, hashes = shots_from_json(documents.read_text(run / SHOTS, error=DataError), where=str(run / SHOTS))
        drawn += shots
    same_place = (dataset.source, dataset.root) == (source.get("data"), source.get("root"))
    return TestData(dataset, tuple(drawn), about, frozenset() if same_place else hashes)
