"""The document `auto.json`: what `--method auto` tried, every answer to every held-out photo, and what it chose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dear.errors import DataError
from dear.storage.documents import Document, Record

FILE = "auto.json"
PLAIN = "zero_shot"
MOST_PHOTOS = 1_000_000
State = Literal["tried", "behind", "not tried", "failed"]
"""Of a candidate: all trials were made; stopped after the first, because it was clearly behind; it did not fit into the
budget; or a trial failed."""
_NUMBERS = re.compile(r"\[\n\s*(-?\d+(?:,\n\s*-?\d+)*)\n\s*\]")
"""A list of numbers over several lines; inside a JSON string there is no line break."""


class TrialRecord(Record):
    """One split of the photos: which were held out, and among which classes they were classified."""

    name: str
    kind: Literal["learned", "novel"]
    """Held-out photos of classes that were taught, or photos of classes that were left out."""
    images: list[int]
    """The photos that were classified, by their place in `Choice.images`."""
    classes: list[int]
    """The classes they were classified among, by their place in `Choice.classes`."""


class CandidateRecord(Record):
    """A method: how it was configured, how far it came, and its answers."""

    method: str
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings that are not the method's defaults."""
    state: State
    why: str = ""
    """Why it has no place in the ranking."""
    names_novel: bool = True
    """Whether it can name classes that it was not taught; otherwise plain CLIP answers for it."""
    bytes: int = Field(default=0, ge=0, lt=2**63)
    """Size of what it learned."""
    answers: dict[str, list[int]] = Field(default_factory=dict)
    """By trial: the class of each photo, in the order of `TrialRecord.images`; -1 if a photo cannot be read."""


class Gain(Record):
    """What a method gained over plain CLIP on other data sets, with 16 photos per class, in log-odds."""

    learned: float = Field(ge=-20, le=20)
    novel: float = Field(ge=-20, le=20)


class Expected(Record):
    """What was known about methods before a photo was seen."""

    spread: float = Field(gt=0, le=100)
    """Standard deviation of a method's gain on a data set around its mean gain on others, in combined points."""
    trials: float = Field(default=0.0, ge=0, le=100)
    """How far a gain in trials usually is from the gain in a test, in combined points; 0 in files without it."""
    gains: dict[str, Gain]
    """By method; one that is not listed is expected to gain nothing."""


class Seconds(Record):
    """What was measured with a clock: it differs from run to run, and everything else in the document does not."""

    training: dict[str, float] = Field(default_factory=dict)
    """Seconds of one training and test by method, without encoding photos."""
    estimated: dict[str, float] = Field(default_factory=dict)
    """Seconds that the trials of a method would have taken that was not tried."""
    budget: float = 0.0
    search: float = 0.0
    """Seconds of the whole search, in all processes that worked on it."""


class Choice(Document):
    """A search for the best method, complete enough to compute its ranking again."""

    format = "dear-auto"
    version = 1
    noun = "record of a choice"
    error = DataError

    data: str
    mark: str
    """Changes with everything that decides the answers."""
    seed: int = Field(ge=0, lt=2**128)
    shots: int
    """Training photos per class, at most."""
    fold_shots: int
    """Of these, the photos that were trained on while others were held out."""
    keep_novel: float = Field(ge=0, le=1e6)
    """Weight of left-out classes against learned ones."""
    classes: list[str]
    images: list[str]
    """Every training photo."""
    labels: list[int]
    """The class of each, by its place in `classes`."""
    trials: list[TrialRecord]
    candidates: list[CandidateRecord]
    """In the order of their cost, the cheapest first."""
    expected: Expected | None = None
    """What counts besides the photos; None if they count alone."""
    curve: dict[str, dict[str, list[int]]] = Field(default_factory=dict)
    """Answers of the chosen method after training with fewer photos: by photos per class, then by trial."""
    chosen: str
    interrupted: bool = False
    """Whether the search was stopped by Ctrl-C."""
    seconds: Seconds

    @classmethod
    def encode(cls, entries: Mapping[str, Any]) -> str:
        """JSON text with lists of numbers in one line."""
        return _NUMBERS.sub(lambda found: f"[{' '.join(found.group(1).split())}]", super().encode(entries))

    def candidate(self, method: str) -> CandidateRecord:
        """A candidate by name."""
        return next(one for one in self.candidates if one.method == method)


def read_choice(folder: Path) -> Choice | None:
    """How the method of a run was chosen; None if it was named by a person."""
    path = folder / FILE
    if not path.is_file():
        return None
    choice = Choice.read(path)
    if not _fits_together(choice):
        raise DataError(f"{path} is damaged: its answers do not belong to its photos, so train again.")
    return choice


def _fits_together(choice: Choice) -> bool:
    """Whether photos, trials and answers of a choice belong to each other."""
    photos, classes = len(choice.images), len(choice.classes)
    tried = [one for one in choice.candidates if one.state == "tried"]
    names = [one.method for one in choice.candidates]
    asked = {one.name: len(one.images) for one in choice.trials}
    learned = {one.name for one in choice.trials if one.kind == "learned"}
    return (
        photos == len(choice.labels) <= MOST_PHOTOS
        and all(0 <= one < classes for one in choice.labels)
        and len(set(names)) == len(names)
        and choice.chosen in names
        and len(asked) == len(choice.trials)
        and (bool(learned) and PLAIN in [one.method for one in tried] if asked else True)
        and all(0 <= image < photos for one in choice.trials for image in one.images)
        and all({name: len(found) for name, found in one.answers.items()} == asked for one in tried)
        and all(size.isascii() and size.isdecimal() and len(size) < 9 for size in choice.curve)
        and all(asked.get(name) == len(found) for one in choice.curve.values() for name, found in one.items())
        and all(one.keys() == learned for one in choice.curve.values())
        and min([0.0, *choice.seconds.training.values(), *choice.seconds.estimated.values()]) >= 0
    )
