"""The result of one cell of a grid as strict JSON: the grid writes it, tables and reports read it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dear.data.splits import Half
from dear.errors import ConfigError, DataError
from dear.methods.recipe import Recipe
from dear.options.fields import RecipeName
from dear.roles.rolemap import MapRecord
from dear.storage.documents import Document, Record

Protocol = Literal["base-to-novel", "few-shot", "cross-dataset", "domain"]
Purpose = Literal["default", "novel", "transfer"]
Name = Annotated[str, Field(min_length=1)]
Percent = Annotated[float, Field(ge=0, le=100)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def harmonic_mean(base: float, novel: float) -> float:
    """2bn / (b + n), and 0 if either is 0."""
    return 2 * base * novel / (base + novel) if base and novel else 0.0


def purpose(protocol: Protocol, half: Half, is_source: bool) -> Purpose:
    """The purpose of a test, which decides which of a method's readouts is used."""
    if protocol in ("cross-dataset", "domain"):
        return "default" if is_source else "transfer"
    return "novel" if half == "novel" else "default"


class PerClass(Record):
    """One class of a test list: the number of its images, and the per cent that each readout gets right."""

    images: int = Field(ge=0)
    accuracy: dict[Name, Percent]


class Scores(Record):
    """One evaluation of one method on one list of test images. Unreadable images count as wrong."""

    data: Name
    half: Half
    images: int = Field(ge=1)
    unreadable: int = Field(ge=0)
    accuracy: dict[Name, Percent] = Field(min_length=1)
    """Per cent, top-1, by the name of the readout."""
    per_class: dict[str, PerClass]
    problems: tuple[str, ...] = Field(default=(), strict=False)
    """One message for each unreadable image."""

    def __repr__(self) -> str:
        """One line without the classes."""
        accuracies = ", ".join(f"{name} {value:.1f} %" for name, value in self.accuracy.items())
        return f"Scores({self.data}, {self.half}, {self.images:,} images: {accuracies})"

    @model_validator(mode="after")
    def _unreadable_are_among_images(self) -> Scores:
        if self.unreadable > self.images:
            raise ValueError(f"there are {self.unreadable} unreadable images, but only {self.images} images in all")
        return self

    @model_validator(mode="after")
    def _classes_have_the_same_readouts(self) -> Scores:
        for name, one in self.per_class.items():
            if one.accuracy.keys() != self.accuracy.keys():
                raise ValueError(f"class {name!r} has the readouts {_list(one.accuracy)}, not {_list(self.accuracy)}")
        return self


class Backbone(Record):
    """The frozen CLIP that was adapted."""

    name: Name
    pretrained: str | None
    weights_sha256: Sha256


def _as_recipe(value: Any) -> Any:
    """Plain values as a recipe; its problems become those of the document."""
    try:
        return Recipe(**value) if isinstance(value, dict) else value
    except ConfigError as error:
        raise ValueError(str(error)) from None


RecipeValues = Annotated[Recipe, BeforeValidator(_as_recipe)]


class TrainingRecord(Record):
    """What decided a training besides method, settings and images."""

    recipe: RecipeValues
    """The recipe that was used, with all options applied."""
    changed_from: RecipeValues | None = None
    """The recipe of the cell's name, if options changed it."""
    precision: Name
    """Precision of the activations."""


class CellResult(Document):
    """One cell of a grid: a method, trained on one data set with one seed, and how it scores."""

    format = "dear-cell"
    version = 2
    noun = "cell result"
    error = DataError

    protocol: Protocol
    method: Name
    variant: str
    data: Name
    seed: int = Field(ge=0)
    shots: int = Field(ge=0)
    recipe: RecipeName = "own"
    """Trained with the method's own recipe, or with the recipe that all methods share."""
    tested_on: Literal["test", "validation"] = "test"
    """Test images, or images of the training split that were not trained on and the validation split."""
    epochs: int | None = Field(default=None, ge=1)
    training_images: tuple[int, int] | None = Field(default=None, strict=False)
    """Smallest and largest number of training images of a class; None in cells of earlier versions."""
    shots_file: str = ""
    """Name of the file that lists the training images; "" if they were sampled, and in cells of earlier versions."""
    cached_views: int = Field(default=0, ge=0)
    """Number of cached training views per image; 0: new views in every epoch."""
    training: TrainingRecord | None = None
    """How it was trained; None in cells of earlier versions."""
    readouts: dict[Purpose, Name]
    """The readout to use for a test, by the test's purpose; a purpose without an entry uses "default"."""
    scores: tuple[Scores, ...] = Field(min_length=1, strict=False)
    weights: dict[Name, float]
    """Learned weights of the method's features, by name; empty if it has none."""
    seconds: float = Field(ge=0)
    """Time of the training with its tests."""
    encoding_seconds: float | None = Field(default=None, ge=0)
    """Time to read images and to encode them for the cache that all cells share, which is not part of `seconds`. None
    in cells of earlier versions, whose `seconds` include it."""
    training_seconds: float | None = Field(default=None, ge=0)
    """The part of `seconds` that is the training, wherever it was done. None in cells of earlier versions."""
    shared: bool = False
    """Whether another grid of the same paper has trained the model."""
    steps: int = Field(ge=0)
    skipped: int = Field(ge=0)
    parameters: int | None = Field(default=None, ge=0)
    """Number of trained parameters."""
    peak_memory_mb: float | None = Field(default=None, ge=0)
    artefact_bytes: int | None = Field(default=None, ge=0)
    adapter_sha256: Sha256 | None
    threads: int | None = Field(default=None, ge=1)
    """Number of CPU threads: only the same number of threads gives the same bytes."""
    versions: dict[str, str]
    backbone: Backbone
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the method that are not its defaults."""
    files: dict[str, Sha256] = Field(default_factory=dict)
    """Hashes of files that are part of the method, such as its role map."""
    resources: dict[Name, str] = Field(default_factory=dict)
    """What the method used besides CLIP and labelled photos, such as the name of a language model."""
    role_map: MapRecord | None = None
    """The role map that it was trained with, and where that comes from; None for methods without one."""
    config_sha256: Sha256 | None = None
    """Hash of CLIP's preprocessing, sizes and activation; None in cells of earlier versions."""
    fingerprint: Name

    @model_validator(mode="after")
    def _scores_fit_the_protocol(self) -> CellResult:
        tests = [(one.data, one.half) for one in self.scores]
        if len(set(tests)) < len(tests):
            raise ValueError("two scores have the same data set and half")
        if self.protocol == "base-to-novel":
            if sorted(tests) != [(self.data, "base"), (self.data, "novel")]:
                raise ValueError(f"a base-to-novel cell needs scores for base and for novel on {self.data}")
        elif tests[0] != (self.data, "all") or any(half != "all" for _, half in tests):
            raise ValueError(f"a {self.protocol} cell needs scores of half 'all', first those on {self.data}")
        elif self.protocol == "few-shot" and len(tests) > 1:
            raise ValueError(f"a few-shot cell must have scores on {self.data} only")
        return self

    @model_validator(mode="after")
    def _readouts_are_there(self) -> CellResult:
        if "default" not in self.readouts:
            raise ValueError("readouts have no entry 'default'")
        known = self.scores[0].accuracy
        for one in self.scores:
            if one.accuracy.keys() != known.keys():
                where = f"{one.data}, {one.half}"
                raise ValueError(f"the scores of {where} have the readouts {_list(one.accuracy)}, not {_list(known)}")
        for what, name in self.readouts.items():
            if name not in known:
                raise ValueError(f"the {what} readout {name!r} is not among those of the scores: {_list(known)}")
        return self

    def score(self, half: Half) -> Scores:
        """The scores of a half: base or novel, or "all" for the scores on the training data set."""
        for one in self.scores:
            if one.half == half:
                return one
        raise DataError(f"The {self.protocol} cell of {self.method} on {self.data} has no half {half!r}.")

    def readout(self, scores: Scores) -> str:
        """The name of the readout that the protocol uses for these scores of the cell."""
        wanted = purpose(self.protocol, scores.half, scores.data == self.data)
        return self.readouts.get(wanted, self.readouts["default"])

    def reading(self, scores: Scores, readout: str | None = None) -> float:
        """Top-1 accuracy in per cent of these scores, for the protocol's readout or for the named one."""
        return scores.accuracy[self.readout(scores) if readout is None else readout]

    def harmonic_mean(self, readout: str | None = None) -> float:
        """Harmonic mean of base and novel accuracy, for the protocol's readouts or for the named one."""
        base, novel = self.score("base"), self.score("novel")
        return harmonic_mean(self.reading(base, readout), self.reading(novel, readout))

    @property
    def has_few_images(self) -> bool:
        """Whether a class was trained on fewer images than shots, because it has too few."""
        return self.training_images is not None and self.training_images[0] < self.shots

    @property
    def readout_names(self) -> tuple[str, ...]:
        """All readouts that have scores."""
        return tuple(self.scores[0].accuracy)

    @property
    def source(self) -> Scores:
        """Scores on the training data set, for protocols that also test other data sets."""
        return self.score("all")

    @property
    def targets(self) -> tuple[Scores, ...]:
        """Scores on the other data sets."""
        return tuple(one for one in self.scores if one.data != self.data)

    @property
    def images(self) -> int:
        """Number of test images."""
        return sum(one.images for one in self.scores)

    @property
    def unreadable(self) -> int:
        """Number of test images that could not be read."""
        return sum(one.unreadable for one in self.scores)


def _list(names: dict[str, float]) -> str:
    return ", ".join(names)
