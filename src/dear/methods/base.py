"""The base class of methods and the values that pass between a method and the rest of the package.

A method owns what is trained or rewritten; the frozen CLIP is passed in. Its functions, in the order of a run:
  prepare        once before it is built, with the training images: config values that depend on them
  begin          once before training, with the training images: shapes and values that depend on them
  classes        once per class list, without gradients: everything that does not depend on training
  text           once per step, or once per list without gradients: class features and other tensors of the classes
  forward        per batch of images; `batch` is passed only in training
  loss           per batch: the terms to minimise
  combine        per step: one gradient from the gradients of several terms
  before_update  per update, with finite gradients: bring parameters into their allowed range
  after_step     per update: rewrite buffers
  finish         once after training: choose values on held-out images
Shapes: B images, C classes, E joint embedding, V views, N training images.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypeVar

from dear.backbone.clip import FrozenClip
from dear.backbone.support import Can
from dear.backbone.text import TokenizedPrompts
from dear.config import Settings, one_line
from dear.data.images import ImageList
from dear.data.prompts import ClassList
from dear.errors import ClassListError
from dear.methods.about import About
from dear.methods.recipe import Recipe, Special

PURPOSES = ("default", "novel", "transfer")
"""What a readout can be used for: everything, new classes, other data sets."""


@dataclass(frozen=True)
class Needs:
    """What a method requires of the code that runs it."""

    image: tuple[str, ...] = ("feature",)
    """Frozen image tensors that `forward` reads, by the names of `dear.backbone.frozen`."""
    training: tuple[str, ...] = ()
    """Further ones that only training reads."""
    views: int = 1
    """Augmented views of each image per step; rows are view-major."""
    passes: int | None = None
    """Augmented views of each image for `begin` and `finish`; None: as many as per step. With 0, only tensors whose
    names begin with "plain:" are passed."""
    whole_batch: bool = False
    """The loss couples the images of a batch, so a batch cannot be split into micro-batches or over processes."""
    independent: bool = True
    """The features of a class do not depend on other classes, so class lists can be processed in chunks."""
    drawn_images: bool = True
    """`begin` and `finish` read the training images, not only classes and seed."""
    held_out: bool = False
    """`finish` needs images that are held out from the shots."""
    novel: bool = True
    """The trained method can classify new classes."""
    companions: tuple[str, ...] = ()
    """Names of other models that it is built with, such as a teacher. Each is a config field that says which one.
    Read from the class, before a method is built."""
    unlabelled: bool = False
    """It trains on all training images of all classes, with labels of -1. Read from the class."""

    def __repr__(self) -> str:
        """Values that differ from the default, in one line."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        return one_line(f"Needs({', '.join(f'{name}={value!r}' for name, value in values.items())})")


@dataclass(frozen=True)
class Output:
    """The result of a forward pass, under names that the method chooses."""

    readouts: Mapping[str, Tensor]
    """(B, C) logits by name; the first one is the default."""
    features: Mapping[str, Tensor] = field(default_factory=dict)
    """(B, E) image features of unit length by name, such as "cls"."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Learned scalars to log, by name."""
    classes: Tensor | None = None
    """(C, E) class features, if there is one per class."""
    rest: Mapping[str, Any] = field(default_factory=dict)
    """Values for the method's own `loss` and `after_step`."""

    def __repr__(self) -> str:
        """Names and shapes instead of numbers."""
        kinds = {"readouts": self.readouts, "features": self.features, "weights": self.weights}
        return one_line(f"Output({', '.join(f'{name}: {_shapes(one)}' for name, one in kinds.items() if one)})")

    @property
    def logits(self) -> Tensor:
        """(B, C) logits of the default readout."""
        return next(iter(self.readouts.values()))

    @property
    def class_features(self) -> Tensor:
        """(C, E) class features of a method that has one per class."""
        assert self.classes is not None, "this method has no class features"
        return self.classes


@dataclass(frozen=True)
class Reading:
    """A feature that contributes to the logits, for explanations: logits = Σ weight · τ · ⟨feature, class⟩."""

    name: str = "cls"
    weight: float = 1.0
    rows: tuple[int, ...] = (0,)
    """Rows after the image tower's last layer; the feature is the normalised mean of their projections. 0 is [CLS]."""
    carry: float = 1.0
    """The share of these rows that each layer passes on to the next."""
    projection: Tensor | None = None
    """(D, E) projection, if it is not CLIP's own."""
    gains: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Factors of single heads' contributions, by (layer, head)."""
    rest: float = 1.0
    """Factor of all other contributions."""


@dataclass(frozen=True)
class Batch:
    """Labels and random numbers of a training step. Random numbers are a function of (seed, step, name)."""

    labels: Tensor | None = None
    """One per row of the image tensors (views × images, view-major)."""
    seed: int = 0
    step: int = 0
    rows: Tensor | slice | None = None
    """The rows of the whole batch (or class list) that this part has; None: all of them."""
    size: int = 0
    """Number of rows of the whole batch (or class list)."""
    given: Mapping[str, Tensor] | None = None
    """Precomputed random numbers by name, used instead of generated ones."""

    def __repr__(self) -> str:
        """Shapes instead of numbers."""
        labels = 0 if self.labels is None else self.labels.shape[0]
        return f"Batch({labels} labels, seed {self.seed}, step {self.step})"

    @property
    def required_labels(self) -> Tensor:
        """The labels, for a method that cannot train without them."""
        assert self.labels is not None, "this loss needs labels"
        return self.labels

    def draw(self, name: str, *shape: int) -> Tensor:
        """Uniform random numbers from [0, 1) for these rows, independent of how the batch is split."""
        if self.given is not None and name in self.given:
            whole = self.given[name]
        else:
            key = zlib.crc32(f"{self.seed}/{self.step}/{name}".encode())
            whole = torch.rand(self.size, *shape, generator=torch.Generator().manual_seed(key))
        return whole if self.rows is None else whole[self.rows]


@dataclass(frozen=True)
class Draw:
    """Frozen tensors, labels and classes of the training images, or of the held-out ones."""

    image: Mapping[str, Tensor]
    """(V, N, …) by name; (N, …) for names that begin with "plain:", and for held-out images."""
    labels: Tensor
    classes: ClassList
    seed: int = 0

    def __repr__(self) -> str:
        """Shapes instead of numbers."""
        count = f"{self.labels.shape[0]} images of {len(self.classes.names)} classes"
        return one_line(f"Draw({count}: {_shapes(self.image)})")


class NoConfig(Settings):
    """Config of a method without settings."""


ConfigT = TypeVar("ConfigT", bound=Settings, default=Any)


class Method(nn.Module, Generic[ConfigT]):
    """Base class of all adaptations of a frozen CLIP. `Method[MyConfig]` sets `Config` and the type of `self.config`.

    A method never reads `self.training`: a `batch` means training.
    """

    name: ClassVar[str] = ""
    Config: ClassVar[type[Settings]] = NoConfig
    recipe: ClassVar[Recipe] = Recipe()
    """The published training recipe."""
    special: ClassVar[tuple[Special, ...]] = ()
    """Published values of recipe and config for some protocols, data sets and shots; later ones take precedence."""
    about: ClassVar[About | None] = None
    """Citation, cost and requirements. They belong to the class that states them: a subclass does not inherit them."""
    readouts: ClassVar[Mapping[str, str]] = {"default": "logits"}
    """The readout of `Output` for each purpose."""
    log_probabilities: ClassVar[bool] = False
    """Whether readouts are log-probabilities, so that a class's value depends on the other classes of the list."""
    sized_by_data: ClassVar[tuple[str, ...]] = ()
    """Names of tensors whose shape depends on the training data: empty until `begin`, shaped by the file on loading."""
    needs: Needs = Needs()
    needs_of_clip: ClassVar[frozenset[Can]] = frozenset()
    """What a CLIP must allow besides features."""
    config: ConfigT

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Take `Config` from the base `Method[MyConfig]`; facts of a published parent are not facts of a subclass."""
        super().__init_subclass__(**keywords)
        if "about" not in cls.__dict__:
            cls.about = None
        for base in cls.__dict__.get("__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Settings) and "Config" not in cls.__dict__:
                    cls.Config = argument

    def __init__(
        self,
        clip: FrozenClip,
        config: ConfigT,
        *,
        seed: int = 0,
        files: Mapping[str, str] | None = None,
        companions: Mapping[str, Any] | None = None,
    ) -> None:
        """Build an untrained method; nothing here depends on data.

        Args:
            clip: the frozen CLIP that the method will run with; its sizes decide shapes.
            config: an instance of `Config`.
            seed: seed of `self.generator`, the source of random initial values.
            files: texts that were saved with the method, by file name, if it is being loaded.
            companions: the models named in `needs.companions`.
        """
        super().__init__()
        self.config = config
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        """For random initial values in `__init__`; the numbers of a step come from `Batch.draw`."""
        self.companions: dict[str, Any] = dict(companions or {})
        self.files: dict[str, str] = dict(files or {})
        """Texts that are saved with the method, by file name."""

    @classmethod
    def prepare(
        cls, clip: FrozenClip, images: ImageList, config: Mapping[str, Any], say: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """Return the config to build the method with, possibly completed from the training images.

        Args:
            clip: the frozen CLIP that the method will run with.
            images: the training images, and no others.
            config: the chosen settings, not yet validated.
            say: a function that shows a message to the user.
        """
        return config

    def facts(self) -> dict[str, str]:
        """Short facts about a trained method for its model card."""
        return self.resources()

    def resources(self) -> dict[str, str]:
        """What the method uses besides CLIP and labelled photos, by name, for cards and tables; never a local path."""
        return {}

    def begin(self, clip: FrozenClip, draw: Draw) -> None:
        """Read the training images before the first step."""

    def encode_text(self, clip: FrozenClip, texts: Sequence[str]) -> Tensor:
        """Encode texts for search: (C, E), of unit length, in the space of the image features."""
        return clip.encode_text(texts)

    def classes(self, clip: FrozenClip, classes: ClassList) -> Any:
        """Everything about the classes that training does not change; by default plain CLIP's class features."""
        return clip.encode_text(classes.prompts())

    def text(self, clip: FrozenClip, frozen: Any, batch: Batch | None = None) -> Any:
        """Class features, or several tensors in a dict, tuple or NamedTuple.

        The first dimension of each tensor is the class, unless `needs.independent` is False.
        """
        return frozen

    def forward(self, clip: FrozenClip, image: Mapping[str, Tensor], text: Any, batch: Batch | None = None) -> Output:
        """Classify images, which come as the frozen tensors that `needs.image` names."""
        return cosine_output(clip, unit(image["feature"]), text)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Terms of the loss. Their sum is minimised, or "total" if there is such a term."""
        return {"ce": F.cross_entropy(out.logits, batch.required_labels)}

    def readings(self, clip: FrozenClip, readout: str) -> tuple[Reading, ...]:
        """Rows of the image tower that a readout uses; explanations report the remainder as a single term."""
        return (Reading(),)

    def check_shapes(self) -> None:
        """Raise a ValueError if tensors of `sized_by_data`, whose shapes come from a file, do not fit together."""

    def combine(self, grads: Mapping[str, Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """One gradient per parameter from {term: {parameter: gradient}}.

        Only if this is overridden are gradients computed per term; a term "total" is then only logged. Otherwise there
        is one term, "total".
        """
        return grads["total"]

    def before_update(self) -> None:
        """Change parameters in place just before the optimiser's step, such as a clamp to an allowed range.

        Runs once per update, when all gradients are known and finite. It must not depend on the batch, so that
        micro-batches and several processes stay possible. The optimiser starts from the changed values.
        """

    def after_step(self, out: Output) -> None:
        """Rewrite buffers after a finite update. A method that overrides this is trained on whole batches."""

    def finish(self, clip: FrozenClip, draw: Draw, held: Draw | None) -> None:
        """Choose values after training, on the held-out images `held`, which may be None."""

    @classmethod
    def overrides(cls, name: str) -> bool:
        """Whether the class overrides a function of `Method`."""
        return getattr(cls, name) is not getattr(Method, name)

    def __repr__(self) -> str:
        """Name, number of parameters and config, in one line."""
        count = sum(parameter.numel() for parameter in self.parameters())
        return one_line(f"{type(self).__name__}({self.name}, {count:,} parameters, {self.config!r})")

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters that require a gradient, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    @property
    def needs_whole_batch(self) -> bool:
        """Whether a batch must not be split."""
        return self.needs.whole_batch or self.overrides("after_step")


def cosine_output(
    clip: FrozenClip, feature_BE: Tensor, classes_CE: Tensor, rest: Mapping[str, Any] | None = None
) -> Output:
    """Output of a method that compares unit features: logits are cosines times CLIP's temperature."""
    logits_BC = clip.temperature * feature_BE @ classes_CE.T
    return Output({"logits": logits_BC}, {"cls": feature_BE}, classes=classes_CE, rest=rest or {})


def total_of(terms: Mapping[str, Tensor]) -> Tensor:
    """The scalar to minimise: "total", or the sum of the terms."""
    if "total" in terms:
        return terms["total"]
    values = list(terms.values())
    return torch.stack(values).sum() if len(values) > 1 else values[0]


def tokens_of(clip: FrozenClip, classes: ClassList, template: str | None = None) -> TokenizedPrompts:
    """Token ids of a list's prompts; raises a ClassListError if two classes have the same tokens.

    The ids of a chunk are taken from the whole list's, so that length and shared rows do not depend on chunks.
    """
    if classes.whole is not None:
        return tokens_of(clip, classes.whole, template).part(classes.at)
    prompts = classes.prompts(template)
    tokens = clip.text.tokenize(prompts)
    if (equal := clip.text.equal_prompts(prompts)) is not None:  # found once, not once per chunk
        first, second = (classes.names[place] for place in equal)
        raise ClassListError(
            f"The classes {first!r} and {second!r} are the same to the text tower: give them different names."
        )
    return tokens


def unit(features: Tensor) -> Tensor:
    """Features of unit length, in fp32 unless they are in fp64."""
    return F.normalize(features if features.dtype == torch.float64 else features.float(), dim=-1)


def _shapes(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
