"""A job: everything that decides the result of a training, as data, and its fingerprint."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.config import Settings, named_first, named_now, whole_number
from dear.data.catalog import declarations
from dear.data.dataset import Dataset, Item
from dear.data.splits import Half, few_shot, held_out, labels_of, left_over, restrict, training_shots
from dear.errors import DataError
from dear.methods.base import Method
from dear.methods.recipe import Case, Recipe, special_config
from dear.methods.registry import get_method, list_methods
from dear.methods.resource import resource_fields
from dear.methods.tuned import recipe_for, takes_steps
from dear.model import artefact
from dear.model.artefact import identity
from dear.model.load import make_method
from dear.model.model import Model
from dear.options.fields import RecipeName
from dear.options.parts import Training
from dear.storage.files import sha256

UNLABELLED = -1
HELD_OUT = 4
"""Images per class that a method chooses on, at most."""


@dataclass(frozen=True)
class Job:
    """What to train: a method with its config, on which items of a data set, by which recipe, from which seed."""

    dataset: Dataset
    items: tuple[Item, ...]
    """Training images; labels are places in `class_names`."""
    class_names: tuple[str, ...]
    shots: int
    seed: int = 1
    method: str = "dear"
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the method's config."""
    protocol: str | None = None
    """Which of the method's own recipes."""
    train: Training = field(default_factory=Training)
    half: Half = "all"
    validate: bool = False
    """Whether validation and undrawn images will be tested on, so that nothing may be chosen on them."""
    test_share: float = 0.0
    """Share of each class that was set aside for the test, if the data set has no test split."""
    listed: tuple[Item, ...] | None = None
    """Training images of all classes as a shots file lists them; None if they were sampled."""

    def __repr__(self) -> str:
        """One line instead of every item."""
        return f"Job({self.method} on {self.dataset!r}, {len(self.items)} images, seed {self.seed})"

    @property
    def recipe(self) -> RecipeName:
        """The method's own recipe, the one shared by all methods, or the tuned one."""
        return self.train.recipe

    @property
    def images_per_class(self) -> tuple[int, int] | None:
        """Smallest and largest number of training images of a class; None if they have no labels."""
        counts = Counter(item.label for item in self.items)
        return None if UNLABELLED in counts else (min(counts.values()), max(counts.values()))

    @property
    def cached_views(self) -> int:
        """The number of cached views per image; 0 for new views in every epoch."""
        return self.train.cached_views or 0

    def build(self, clip: FrozenClip) -> Model:
        """The untrained model with its classes."""
        method = make_method(self.method, clip, self.settings(), seed=self.seed)
        classes = self.dataset.classes(self.class_names)
        return Model(clip, method, classes, trained_on=self.class_names, chunk=self.train.class_chunk)

    def settings(self) -> dict[str, Any]:
        """The published settings of the method for this case, and the chosen ones."""
        return {**special_config(get_method(self.method).special, self.recipe, self.case), **self._placed()}

    def _placed(self) -> dict[str, Any]:
        """The config, with {data}, {seed} and {shots} filled in where it names other models."""
        settings = dict(self.config)
        places = {"{data}": self.dataset.name, "{seed}": str(self.seed), "{shots}": str(self.shots)}
        for name in get_method(self.method).needs.companions:
            for place, value in places.items() if isinstance(settings.get(name), str) else ():
                settings[name] = settings[name].replace(place, value)
        return settings

    @property
    def case(self) -> Case:
        """What decides which published values hold."""
        return Case(self.protocol, self.dataset.name, self.shots, self.config)

    @property
    def named(self) -> Recipe:
        """The method's own recipe for this case, the shared or the tuned one, before options change it."""
        return recipe_for(get_method(self.method), self.recipe, self.case)

    @property
    def resolved(self) -> Recipe:
        """The recipe with everything that was asked for."""
        method = get_method(self.method)
        changes = self.train.changes() if takes_steps(method) else {}
        return recipe_for(method, self.recipe, self.case, changes)

    def held(self) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        """Images to train on, and images to choose on.

        The latter are of the validation split; of a published data set without one, ImageNet, training images that were
        not sampled; else they are held out from the shots, and with one shot there are none. What will be tested is
        never used: the images that were not sampled if there is no test split; with `validate`, these and the
        validation split.
        """
        labels, found = labels_of(self.dataset, self.half), tuple[Item, ...]()
        if not self.validate:
            published = self.dataset.test and self.dataset.name in declarations()
            found = self.dataset.val or (left_over(self.dataset.train, self.items) if published else ())
        if chosen_on := few_shot(restrict(found, labels), min(self.shots, HELD_OUT), self.seed):
            return self.items, chosen_on
        return held_out(self.items, min(self.shots // 4 or self.shots // 2, HELD_OUT), self.seed)

    def split(self, method: Method) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
        """Images to train on, and images to choose on; none of the latter if method and recipe choose nothing."""
        chooses = method.needs.held_out or self.resolved.patience is not None
        return self.held() if chooses else (self.items, ())


def make_job(
    dataset: Dataset,
    *,
    shots: int,
    seed: int,
    half: Half = "all",
    method: str = "dear",
    config: Mapping[str, Any] | None = None,
    train: Training | None = None,
    protocol: str | None = None,
    validate: bool = False,
    test_share: float = 0.0,
    listed: tuple[Item, ...] | None = None,
) -> Job:
    """A job on some shots of all classes of a data set, or of one half of them.

    Shots are sampled for all classes before the half is taken. A method that trains without labels gets all training
    images of both halves; if training images will be tested (`validate`, or no test split), only the shots of them.
    Without a test split, `test_share` of each class is never trained on. `listed` replaces the sampled shots.
    """
    whole_number("shots", shots, least=1)
    whole_number("seed", seed)
    labels = labels_of(dataset, half)
    if not dataset.train:
        raise DataError(f"{dataset.name} has no training images: it can only be tested on.")
    sampled = training_shots(dataset, shots, seed, test_share) if listed is None else listed
    items, names = restrict(sampled, labels), dataset.names_in(labels)
    if get_method(method).needs.unlabelled:
        seen = sampled if validate or not dataset.test else dataset.train
        items = tuple(Item(item.id, UNLABELLED) for item in sorted(seen, key=lambda item: item.id))
        names = dataset.class_names
    return Job(
        dataset=dataset,
        items=items,
        class_names=names,
        shots=shots,
        seed=seed,
        method=method,
        config=config or {},
        protocol=protocol,
        train=train or Training(),
        half=half,
        validate=validate,
        test_share=test_share,
        listed=listed,
    )


def prepared(job: Job, clip: FrozenClip, say: Callable[[str], None] = lambda message: None) -> Job:
    """The job with everything in its config that its method finds from the training images before it is built.

    Only those are looked at: without a test split, the other images of a data set are what is tested.
    """
    before = job.settings()
    after = get_method(job.method).prepare(clip, job.dataset.images(job.items), before, say)
    found = {name: value for name, value in after.items() if name not in before or before[name] is not value}
    return replace(job, config={**job.config, **found}) if found else job


def describe(job: Job, model: Model) -> dict[str, Any]:
    """Everything that decides a job's result, as plain values."""
    clip, method = model.clip, model.method
    sentences = job.dataset.classes(job.class_names).descriptions
    described: dict[str, Any] = (
        {} if sentences is None else {"descriptions_sha256": sha256(json.dumps(sentences, sort_keys=True).encode())}
    )
    if model.companions:
        described["companions"] = {name: identity(one) for name, one in model.companions.items()}
    held = job.split(method)[1]
    chosen_on = sha256("\n".join(job.dataset.content_of(item.id) for item in held).encode())
    return {
        **described,
        "data": job.dataset.name,
        "template": job.dataset.template,
        "classes": list(job.class_names),
        "shots": job.shots,
        "items_sha256": sha256(json.dumps([list(item) for item in job.items]).encode()),
        "images_sha256": sha256("\n".join(job.dataset.content_of(item.id) for item in job.items).encode()),
        **({"held_sha256": chosen_on} if held else {}),
        "seed": job.seed,
        "method": job.method,
        "settings": method.config.model_dump(mode="json", exclude=set(model.companions)),
        "files_sha256": {name: sha256(text.encode()) for name, text in method.files.items()},
        "recipe": job.recipe,
        "train": {**job.resolved.model_dump(mode="json"), **job.train.machine()},
        "cached_views": job.cached_views,
        "backbone": {
            "name": clip.name,
            "pretrained": clip.pretrained,
            "precision": clip.precision,
            "weights_sha256": clip.weights_sha256,
            "config_sha256": config_hash(clip),
        },
    }


def config_hash(clip: FrozenClip) -> str:
    """Hash of what decides a CLIP's answers besides its weights: its preprocessing, sizes and activation."""
    config = [dict(clip.model.visual.preprocess_cfg), clip.geometry.as_dict()]
    return sha256(json.dumps(config, sort_keys=True).encode())


def same_config(recorded: str | None, description: Mapping[str, Any]) -> bool:
    """Whether a recorded hash of a CLIP's configuration is that of a described job; earlier versions recorded none."""
    return recorded in (None, description["backbone"]["config_sha256"])


def fingerprint(description: Mapping[str, Any]) -> str:
    """Hash of a description; a backbone counts by its weights, not by the name it was asked for.

    Its configuration is compared separately (`same_config`), because earlier versions did not record it.

    What is at its default does not count, so that a setting that a newer version adds changes no fingerprint. Neither
    does the location of an external resource (`dear.methods.resource`): its content counts, by the method's `files`.
    """
    backbone = {key: description["backbone"][key] for key in ("precision", "weights_sha256")}
    counted = {name: value for name, value in description.items() if name != "recipe"}
    counted["train"] = _changed(counted["train"], Recipe())
    counted["settings"] = changed_settings(counted)
    if counted["method"] in list_methods():
        counted["settings"] = named_first(get_method(counted["method"]).Config, counted["settings"])
    return sha256(json.dumps({**counted, "backbone": backbone}, sort_keys=True).encode())


def changed_settings(description: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a described job that are not the method's defaults; all of them if it is not known here.

    Locations of folders are left out: a job is the same wherever they are.
    """
    settings: dict[str, Any] = description["settings"]
    if description["method"] not in list_methods():
        return settings
    method = get_method(description["method"])
    changed = _changed(named_now(method.Config, settings), method.Config())
    external = resource_fields(method.Config, external=True)
    return {name: value for name, value in changed.items() if name not in external}


def _changed(values: Mapping[str, Any], usual: Settings) -> dict[str, Any]:
    """The values that are not the usual ones."""
    known = usual.model_dump(mode="json")
    return {name: value for name, value in values.items() if name not in known or value != known[name]}


def versions() -> dict[str, str]:
    """Versions of what computes."""
    return {**artefact.versions(), "python": platform.python_version()}
