"""Trials of `--method auto`: splits of the training photos, and what a method answers after training on the rest."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from dear.backbone.clip import FrozenClip
from dear.data.dataset import Dataset, Item
from dear.data.splits import few_shot, folds, labels_of, restrict
from dear.engine.feature_cache import BATCH, encoding_clock, evaluation_states
from dear.engine.job import Job, describe, fingerprint, prepared
from dear.engine.loop import Metrics
from dear.engine.run import Reading, train_model
from dear.errors import DataError
from dear.evaluation.choice import TrialRecord
from dear.model.model import Model
from dear.storage.documents import Document
from dear.storage.files import letters, sha256

FOLDS = 4
"""Parts of the shots that are held out in turn, at most."""
FEWEST_CLASSES = 4
"""With fewer classes none is left out: one class is no question."""
Labels = tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """One split: photos and classes to learn, and photos to classify among some classes. Labels are the job's."""

    name: str
    kind: Literal["learned", "novel"]
    taught: tuple[Item, ...]
    tested: tuple[Item, ...]
    taught_classes: Labels
    tested_classes: Labels
    shots: int | None = None
    """Photos per class that are taught, if they are fewer than the split would allow."""

    def record(self, items: Sequence[Item]) -> TrialRecord:
        """The trial as it is stored; photos by their places in `items`."""
        place = {item.id: index for index, item in enumerate(items)}
        return TrialRecord(
            name=self.name,
            kind=self.kind,
            images=[place[item.id] for item in self.tested],
            classes=list(self.tested_classes),
        )


class StoredAnswers(Document):
    """One candidate's answers in one trial, as stored while a search runs."""

    format = "dear-auto-answers"
    version = 1
    noun = "list of answers"
    error = DataError

    mark: str
    """The mark of the trial's job."""
    answers: list[int]
    """A class per tested photo, -1 for an unreadable one."""
    bytes: int
    """Size of what the method learned."""
    seconds: float
    """Seconds of the training and the test, without encoding photos."""


def make_trials(job: Job) -> list[Trial]:
    """The trials for a job's photos, a fold and a half of the classes in turn; [] if no class has two photos."""
    counts = Counter(item.label for item in job.items)
    everything = tuple(range(len(job.class_names)))
    learned = [
        Trial(f"fold {number}", "learned", rest, held, everything, everything)
        for number, (rest, held) in enumerate(folds(job.items, min(FOLDS, max(counts.values())), job.seed), 1)
        if held
    ]
    novel = _left_out(job) if learned and len(everything) >= FEWEST_CLASSES else []
    pairs = [one for pair in zip(learned, novel, strict=False) for one in pair]
    return [*pairs, *learned[len(novel) :], *novel[len(learned) :]]


def _left_out(job: Job) -> list[Trial]:
    """Learn one half of the classes and classify photos of the other half, then the reverse."""
    order = sorted(range(len(job.class_names)), key=lambda label: _class_rank(job.seed, job.class_names[label]))
    half = tuple(sorted(order[: (len(order) + 1) // 2])), tuple(sorted(order[(len(order) + 1) // 2 :]))
    return [
        Trial(f"left out {number}", "novel", _of(job.items, taught), _of(job.items, tested), taught, tested)
        for number, (taught, tested) in enumerate([half, half[::-1]], 1)
    ]


def _class_rank(seed: int, name: str) -> tuple[bytes, str]:
    return hashlib.sha256(letters(f"halves\n{seed}\n{name}")).digest(), name


def _of(items: Sequence[Item], labels: Labels) -> tuple[Item, ...]:
    chosen = set(labels)
    return tuple(item for item in items if item.label in chosen)


def smaller(trial: Trial, shots: int, seed: int) -> Trial:
    """The same test after learning at most `shots` photos of each class."""
    return replace(trial, taught=few_shot(trial.taught, shots, seed), shots=shots)


def fold_shots(trials: Sequence[Trial]) -> int:
    """Photos of a class that are taught in a fold: of the largest class, in the smallest fold."""
    return min(max(Counter(item.label for item in one.taught).values()) for one in trials if one.kind == "learned")


class TrialJob(NamedTuple):
    """The training of a trial, its untrained model, and a mark that changes with whatever decides its answers."""

    job: Job
    model: Model
    mark: str


def trial_job(job: Job, trial: Trial, clip: FrozenClip) -> TrialJob:
    """What a candidate's job becomes in a trial."""
    data = _among(job, trial.taught_classes, trial.taught)
    part = replace(
        job,
        dataset=data,
        items=data.train,
        class_names=data.class_names,
        shots=trial.shots or job.shots,
        half="all",
        listed=None,
    )
    part = prepared(part, clip)
    model = part.build(clip)
    tested = [[item.id, item.label, job.dataset.content_of(item.id)] for item in trial.tested]
    names = [job.class_names[label] for label in trial.tested_classes]
    mark = sha256(json.dumps([fingerprint(describe(part, model)), trial.kind, names, tested]).encode())
    return TrialJob(part, model, mark)


OnStep = Callable[[Metrics, float], None]
"""Called after a step of a training, with the seconds so far, without those that photos were encoded in."""


def answer(job: Job, trial: Trial, ready: TrialJob, reading: Reading, on_step: OnStep) -> StoredAnswers:
    """Train on a part of the photos and classify the others."""
    began = time.monotonic()
    with encoding_clock() as encoding:

        def took() -> float:
            return time.monotonic() - began - encoding()

        train_model(ready.job, ready.model, None, reading=reading, on_step=lambda metrics: on_step(metrics, took()))
        tensors = ready.model.method.state_dict().values()
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        answers = _answers(job, trial, ready.model, reading)
        return StoredAnswers(mark=ready.mark, answers=answers, bytes=size, seconds=round(took(), 3))


@torch.inference_mode()
def _answers(job: Job, trial: Trial, model: Model, reading: Reading) -> list[int]:
    """The class of each tested photo by the readout that the method has for this purpose."""
    data = _among(job, trial.tested_classes, trial.tested)
    view = model.for_classes(data.classes())
    readout = view.readout("novel" if trial.kind == "novel" else "default")
    found = [-1] * len(data.train)
    batches = evaluation_states(
        view, data, data.train, cache=reading.cache, batch_size=BATCH, workers=reading.workers, problems={}
    )
    for one in batches:
        picks = view(given=one.states).readouts[readout].argmax(dim=1).tolist()
        for index, pick in zip(one.indices, picks, strict=True):
            found[index] = trial.tested_classes[pick]
    return found


def _among(job: Job, labels: Labels, items: Sequence[Item]) -> Dataset:
    """A data set of some classes, whose training photos are the given ones and which has no others but validation.

    No other training photo can be reached through it, so none that is held out is ever chosen on.
    """
    place = {label: index for index, label in enumerate(labels)}
    validation = restrict(job.dataset.val, labels_of(job.dataset, job.half))
    return replace(
        job.dataset,
        class_names=tuple(job.class_names[label] for label in labels),
        train=tuple(Item(item.id, place[item.label]) for item in items),
        val=tuple(Item(item.id, place[item.label]) for item in validation if item.label in place),
        test=(),
    )
