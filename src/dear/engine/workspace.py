"""What is open now: CLIPs and data sets that trainings share, and the way from options to an untrained model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dear.backbone import load
from dear.backbone.clip import FrozenClip
from dear.data.dataset import Dataset, Item
from dear.data.descriptions import with_descriptions
from dear.data.images import passed_over_sentence
from dear.data.names import unspoken_sentence
from dear.data.open import open_dataset, own_clip
from dear.data.shots_file import filled_path, listed_shots
from dear.data.splits import Half, labels_of, restrict, span
from dear.engine.job import Job, make_job, prepared
from dear.engine.ranks import local_device
from dear.errors import ConfigError, option
from dear.methods.registry import get_method
from dear.model.load import check_named
from dear.model.model import Model
from dear.options.parts import Fit, Training

T = TypeVar("T")
Say = Callable[[str], None]


def silent(message: str) -> None:
    """Discard a message."""


def log(message: str) -> None:
    """Write a message to the log of dear, which shows it if logging is configured."""
    logging.getLogger("dear").info(message)


class Prepared(NamedTuple):
    """A job with everything that its method found from the training images, and its untrained model."""

    job: Job
    model: Model


class Workspace:
    """Opens CLIPs and data sets once. A new workspace looks at the files again."""

    def __init__(self) -> None:
        self._open: dict[Any, Any] = {}

    def remember(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What `make` returned when it was first called with this key."""
        if key not in self._open:
            self._open[key] = make()
        found: T = self._open[key]
        return found

    def clip(self, name: str, pretrained: str | None, device: str | None) -> FrozenClip:
        """A backbone, loaded once."""
        where = local_device(device)
        return self.remember(("clip", name, pretrained, where), lambda: load.load_clip(name, pretrained, where))

    def dataset(self, source: str, root: Path | None, descriptions: Path | None = None) -> Dataset:
        """A data set by name or place; of the descriptions, those that its classes have."""
        found = self.remember(("data", source, root), lambda: open_dataset(source, root))
        if descriptions is None:
            return found
        key = ("described", source, root, descriptions)
        return self.remember(key, lambda: with_descriptions(found, descriptions, required=False))

    def prepare(
        self,
        options: Fit,
        *,
        data: Dataset | None = None,
        clip: FrozenClip | None = None,
        protocol: str | None = None,
        validate: bool = False,
        say: Say = silent,
    ) -> Prepared:
        """From options to an untrained model: open the data, sample the shots, load the CLIP, build the method.

        Args:
            options: what to train.
            data: the data set, if it is open already.
            clip: the backbone, if it is loaded already.
            protocol: which of the method's own recipes.
            validate: whether validation and unsampled training images will be tested on.
            say: called with each message about the data and the method.
        """
        job = self.job(options, data=data, protocol=protocol, validate=validate)
        name, tag = ("", None) if clip else clip_for(job.dataset, options.clip, options.pretrained)
        if sentence := unspoken_sentence(job.dataset.class_names):
            say(f"note: {sentence}")
        if clip is None:
            check_named([get_method(options.method)], name)
        clip = clip or self.clip(name, tag, options.device)
        for note in notes(job):
            say(f"note: {note}")
        job = prepared(job, clip, say)
        return Prepared(job, job.build(clip))

    def job(
        self, options: Fit, *, data: Dataset | None = None, protocol: str | None = None, validate: bool = False
    ) -> Job:
        """What to train, as data."""
        dataset = with_descriptions(data or self._training_data(options), options.descriptions)
        return make_job(
            dataset,
            shots=options.shots,
            seed=options.seed,
            half=options.half,
            method=options.method,
            config={**({"roles": options.roles} if options.roles else {}), **options.set},
            train=options.part(Training),
            protocol=protocol,
            validate=validate,
            test_share=options.test_share,
            listed=self.listed(dataset, options.shots_file, options.shots, options.seed, options.half),
        )

    def listed(self, dataset: Dataset, file: Path | None, shots: int, seed: int, half: Half) -> tuple[Item, ...] | None:
        """The training images that a shots file lists; None without a file."""
        if file is None:
            return None
        place = filled_path(file, dataset, shots, seed)
        key = ("listed", place, dataset.source, dataset.root, dataset.added, shots, half)
        return self.remember(key, lambda: listed_shots(dataset, place, shots=shots, half=half))

    def _training_data(self, options: Fit) -> Dataset:
        if options.template is None and options.names is None and options.add_class is None:
            return self.dataset(options.data, options.data_root)
        return open_dataset(
            options.data,
            options.data_root,
            template=options.template,
            names=options.names,
            add_class=options.add_class or (),
        )


def notes(job: Job) -> list[str]:
    """What a person should know about the data and the options before the training begins."""
    found = _division(job)
    own = get_method(job.method).recipe
    changes = {name: value for name, value in job.train.changes().items() if value is not None}
    if changes and not own.epochs and not own.steps_per_shot:
        found.append(f"{job.method} is fitted without training steps: {option(**changes)} changes nothing.")
    folder = Path(job.dataset.source) if job.dataset.source else None
    if folder is not None and folder.is_dir() and (others := passed_over_sentence(folder)):
        found.append(others)
    return found


def _division(job: Job) -> list[str]:
    """How images are divided into training and test images, if a class has fewer training images than shots."""
    labels, sampled = labels_of(job.dataset, job.half), {item.id for item in job.items}
    items, names = restrict(job.dataset.train, labels), job.dataset.names_in(labels)
    present = Counter(item.label for item in items)
    used = Counter(item.label for item in items if item.id in sampled)
    left = {label: present[label] - used[label] for label in sorted(present)}
    few = [names[label] for label in left if used[label] < job.shots]
    if job.dataset.test:
        count = f"{len(few)} class(es) have fewer than {job.shots} images"
        return [f"{count}, such as {few[0]!r}: all of them are used."] if few else []
    sentences = []
    if few and any(left.values()):
        others = f"; {option(test_share=0)} trains on all of them" if job.test_share and job.listed is None else ""
        sentences.append(
            f"{span(present.values())} images per class: {span(used.values())} for training, {span(left.values())} set "
            f"aside for the test{others}."
        )
    if untested := [label for label in left if not left[label]]:
        first = untested[0]
        more = "add images (of 4 or more, some are set aside)" if job.test_share else "use fewer shots"
        sentences.append(
            f"{len(untested)} class(es) have no image left for the test, such as {names[first]!r} with "
            f"{present[first]}: {more}, add a test folder, or test other images after training, as in 'dear eval RUN "
            f"DATA'."
        )
    return sentences


def clip_for(data: str | Path | Dataset, clip: str | None, pretrained: str | None) -> tuple[str, str | None]:
    """The backbone to adapt: the one named, or the one that the data set was made for."""
    if clip is not None:
        return clip, pretrained
    if pretrained is not None:
        raise ConfigError(f"The weights {pretrained!r} need a backbone: name it with {option(clip='NAME')}.")
    if (own := own_clip(data)) is not None:
        return own, None
    name = data.name if isinstance(data, Dataset) else Path(data).name
    raise ConfigError(
        f"{name} needs a CLIP that knows photographs: add {option(clip='ViT-B-16-quickgelu', pretrained='openai')}."
    )
