"""The shape of a method: parameters, `classes`, `text`, `forward`, `loss`; everything else is `dear.Model`'s.

A method owns what is trained or rewritten; the frozen CLIP is passed in. Its life:
  prepare  once before it is made, with the training images: settings that are found from them
  begin    once before training, with the drawn images: shapes and values that come from them
  classes  once per class list, without gradients: what depends on nothing trained
  text     once per step, or once per list without gradients: class features and whatever else classes give
  forward  per batch of images; `batch` is there only in training
  loss     per batch: the terms to minimise
  combine  how gradients of several terms become one, for methods that need them apart
  before_update  just before an update, with finite gradients: bring parameters into their range
  after_step  after an update: rewrite buffers
  finish   once after training: choose what is chosen on held-out images
Shapes: B images, C classes, E joint embedding, V views, N drawn images.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.text import TokenizedPrompts
from dear.config import Settings, one_line
from dear.data.images import ImageList
from dear.data.prompts import ClassList
from dear.errors import ClassListError
from dear.methods.about import About
from dear.methods.recipe import Recipe, Special

PURPOSES = ("default", "novel", "transfer")
"""What a readout can be for: everything, classes that were not trained on, other data sets."""


@dataclass(frozen=True)
class Needs:
    """What a method asks of those who run it."""

    image: tuple[str, ...] = ("feature",)
    """Frozen image quantities that `forward` reads, by the names of `dear.backbone.frozen`."""
    training: tuple[str, ...] = ()
    """Further ones, only while training."""
    views: int = 1
    """Augmented views of each image per step; rows are view-major."""
    passes: int | None = None
    """Augmented views of each image for `begin` and `finish`, if not as many as per step; with 0 they get "plain:"
    quantities alone."""
    whole_batch: bool = False
    """The loss couples the images of a batch, so it must not be cut into micro-batches or over processes."""
    independent: bool = True
    """The features of a class depend on no other class, so class lists may be cut into parts."""
    drawn_images: bool = True
    """`begin` and `finish` look at the drawn images, not only at classes and seed."""
    held_out: bool = False
    """`finish` chooses on images held out from the shots."""
    novel: bool = True
    """It can be asked about classes that it was not trained on."""
    companions: tuple[str, ...] = ()
    """Names of other models that it is made with, such as a teacher. Each is a field of the config that says which, and
    this is a fact of the class, known before a method is made."""
    unlabelled: bool = False
    """It trains on all training images of all classes, without their labels, which are -1; a fact of the class."""

    def __repr__(self) -> str:
        """What is not at its default, in one line."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        return one_line(f"Needs({', '.join(f'{name}={value!r}' for name, value in told.items())})")


@dataclass(frozen=True)
class Output:
    """What a method says about a batch, by names that it chooses."""

    readouts: Mapping[str, Tensor]
    """(B, C) logits by name, the default first."""
    features: Mapping[str, Tensor] = field(default_factory=dict)
    """(B, E) image features of unit length by name, such as "cls"."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Learned scalars worth watching, by name."""
    classes: Tensor | None = None
    """(C, E) class features, if there is one per class."""
    rest: Mapping[str, Any] = field(default_factory=dict)
    """What only the method's own loss and `after_step` read."""

    def __repr__(self) -> str:
        """Names and shapes instead of numbers."""
        kinds = {"readouts": self.readouts, "features": self.features, "weights": self.weights}
        return one_line(f"Output({', '.join(f'{name}: {_shapes(one)}' for name, one in kinds.items() if one)})")

    @property
    def logits(self) -> Tensor:
        """(B, C) logits of the default readout."""
        return next(iter(self.readouts.values()))


@dataclass(frozen=True)
class Reading:
    """A feature that an answer is read from, for explanations: logits = Σ weight · τ · ⟨feature, class⟩."""

    name: str = "cls"
    weight: float = 1.0
    rows: tuple[int, ...] = (0,)
    """Rows after the image tower's last layer, whose projections' mean it is, made unit length; 0 is [CLS]."""
    carry: float = 1.0
    """The part of these rows that each layer hands on to the next."""
    projection: Tensor | None = None
    """(D, E), if it is not CLIP's own."""
    gains: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Factors of what single heads, by (layer, head), add to it."""
    rest: float = 1.0
    """Factor of everything else."""


@dataclass(frozen=True)
class Batch:
    """What a step knows besides the images. Everything random is a function of (seed, step, name)."""

    labels: Tensor | None = None
    """One per row of the image quantities (views × images, view-major)."""
    seed: int = 0
    step: int = 0
    rows: Tensor | slice | None = None
    """Which rows of the whole batch (or class list) these are; None: all of them."""
    size: int = 0
    """Rows of the whole batch (or class list)."""
    given: Mapping[str, Tensor] | None = None
    """Draws that were made elsewhere, by name, in the place of own ones."""

    def __repr__(self) -> str:
        """Shapes instead of numbers."""
        labels = 0 if self.labels is None else self.labels.shape[0]
        return f"Batch({labels} labels, seed {self.seed}, step {self.step})"

    def draw(self, name: str, *shape: int) -> Tensor:
        """Uniform numbers from [0, 1) for these rows: the same whatever the batch was cut into."""
        if self.given is not None and name in self.given:
            whole = self.given[name]
        else:
            key = zlib.crc32(f"{self.seed}/{self.step}/{name}".encode())
            whole = torch.rand(self.size, *shape, generator=torch.Generator().manual_seed(key))
        return whole if self.rows is None else whole[self.rows]


@dataclass(frozen=True)
class Draw:
    """Images as quantities: those to train on, or those held out."""

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
    """The config of a method that can be told nothing."""


class Method(nn.Module):
    """An adaptation of a frozen CLIP. Never asks `self.training`: a `batch` means training."""

    name: ClassVar[str] = ""
    Config: ClassVar[type[Settings]] = NoConfig
    recipe: ClassVar[Recipe] = Recipe()
    """How it was published to be trained."""
    special: ClassVar[tuple[Special, ...]] = ()
    """Other published values of recipe and config by protocol, data set and shots; the later ones win."""
    about: ClassVar[About | None] = None
    """Where it comes from and what it costs."""
    readouts: ClassVar[Mapping[str, str]] = {"default": "logits"}
    """From a purpose to the name of a readout in `Output`."""
    log_probabilities: ClassVar[bool] = False
    """Whether readouts are logarithms of probabilities over the class list, so that no class's is its own alone."""
    drawn: ClassVar[tuple[str, ...]] = ()
    """Names of tensors whose shape comes from the draw: empty until `begin`, shaped by the file when loaded."""
    untold: ClassVar[tuple[str, ...]] = ()
    """Config fields that name files, which tables leave out unless several are compared."""
    places: ClassVar[tuple[str, ...]] = ()
    """Config fields that name folders which a saved run needs and does not hold: `dear.load(…, moved=…)`."""
    needs: Needs = Needs()

    def __init__(
        self,
        clip: FrozenClip,
        config: Settings,
        *,
        seed: int = 0,
        files: Mapping[str, str] | None = None,
        companions: Mapping[str, Any] | None = None,
    ) -> None:
        """Make an untrained method; nothing here depends on data.

        Args:
            clip: the frozen CLIP it will be run with; its sizes decide shapes.
            config: an instance of `Config`.
            seed: decides the random start.
            files: texts that were saved with the method, by file name, if it is being loaded.
            companions: the models named in `needs.companions`.
        """
        super().__init__()
        self.config = config
        self.companions: dict[str, Any] = dict(companions or {})
        self.files: dict[str, str] = dict(files or {})
        """Texts that belong to a saved method, by file name."""

    @classmethod
    def prepare(
        cls, clip: FrozenClip, images: ImageList, config: Mapping[str, Any], say: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """The config to make the method with, after looking at the training images; by default the same one.

        Args:
            clip: the frozen CLIP it will be run with.
            images: the images that it will be trained on, and no others.
            config: the settings that were chosen, not yet checked.
            say: call it with each message for the user.
        """
        return config

    def facts(self) -> dict[str, str]:
        """What a person wants to know of it at a glance, for its card."""
        return {}

    def begin(self, clip: FrozenClip, draw: Draw) -> None:
        """Look at the drawn images before training."""

    def encode_text(self, clip: FrozenClip, texts: Sequence[str]) -> Tensor:
        """Any texts in the space of the image features, of unit length, for search: (C, E)."""
        return clip.encode_text(texts)

    def classes(self, clip: FrozenClip, classes: ClassList) -> Any:
        """Plain CLIP's class features, OpenCLIP's own."""
        return clip.encode_text(classes.prompts())

    def text(self, clip: FrozenClip, frozen: Any, batch: Batch | None = None) -> Any:
        """Tensors in a dict, tuple or NamedTuple, classes first unless `needs.independent` is False."""
        return frozen

    def forward(self, clip: FrozenClip, image: Mapping[str, Tensor], text: Any, batch: Batch | None = None) -> Output:
        """Classify images from frozen quantities."""
        feature_BE = unit(image["feature"])
        logits_BC = clip.temperature * feature_BE @ text.T
        return Output({"logits": logits_BC}, features={"cls": feature_BE}, classes=text)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Terms to minimise; "total" only if it is not their plain sum."""
        return {"ce": F.cross_entropy(out.logits, _labels(batch))}

    def readings(self, clip: FrozenClip, readout: str) -> tuple[Reading, ...]:
        """Which rows of the image tower a readout is read from; what this leaves out is told as one rest."""
        return (Reading(),)

    def check_drawn(self) -> None:
        """Raise a ValueError if the tensors named in `drawn`, whose shapes come from a file, do not fit together."""

    def combine(self, grads: Mapping[str, Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """One gradient per parameter from {term: {parameter: gradient}}.

        Gradients are taken per term only if this is overridden, and not of "total", which then is only told; without,
        there is one term, "total".
        """
        return grads["total"]

    def before_update(self) -> None:
        """Change parameters in place just before the optimiser's step, such as a clamp to an allowed range.

        Runs once per update, when all gradients are known and finite. It must not depend on the batch, so that
        micro-batches and several processes stay possible. The optimiser starts from the changed values.
        """

    def after_step(self, out: Output) -> None:
        """Rewrite buffers, after a finite update; overriding it asks for whole batches."""

    def finish(self, clip: FrozenClip, draw: Draw, held: Draw | None) -> None:
        """Choose what is chosen after training; `held` is None if nothing is held out."""

    @classmethod
    def overrides(cls, name: str) -> bool:
        """Whether a method has its own version of one of the functions above."""
        return getattr(cls, name) is not getattr(Method, name)

    def __repr__(self) -> str:
        """One line instead of every module."""
        count = sum(parameter.numel() for parameter in self.parameters())
        return one_line(f"{type(self).__name__}({self.name}, {count:,} parameters, {self.config!r})")

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Everything that training may change, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    @property
    def needs_whole_batch(self) -> bool:
        """Whether a batch may not be cut."""
        return self.needs.whole_batch or self.overrides("after_step")


def total_of(terms: Mapping[str, Tensor]) -> Tensor:
    """The scalar to minimise: "total", or the sum of the terms."""
    if "total" in terms:
        return terms["total"]
    values = list(terms.values())
    return torch.stack(values).sum() if len(values) > 1 else values[0]


def tokens_of(clip: FrozenClip, classes: ClassList, template: str | None = None) -> TokenizedPrompts:
    """Token ids of a list's prompts; two classes that the text tower cannot tell apart are refused.

    Those of a part are cut from the whole list's, so that length and shared rows do not depend on the cutting.
    """
    if classes.whole is not None:
        return tokens_of(clip, classes.whole, template).part(classes.at)
    tokens = clip.text.tokenize(classes.prompts(template))
    seen: dict[tuple[int, ...], str] = {}
    for name, ids in zip(classes.names, tokens.ids_CT.tolist(), strict=True):
        other = seen.setdefault(tuple(ids), name)
        if other != name:
            raise ClassListError(
                f"The classes {other!r} and {name!r} are the same to the text tower: give them different names."
            )
    return tokens


def unit(features: Tensor) -> Tensor:
    """Features of unit length, in fp32 unless they are in fp64."""
    return F.normalize(features if features.dtype == torch.float64 else features.float(), dim=-1)


def _shapes(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())


def _labels(batch: Batch) -> Tensor:
    assert batch.labels is not None, "this loss needs labels"
    return batch.labels
