"""What every adaptation method is to the engine: set classes, see images, give logits and a loss.

A method meets `Method` by having these members; nothing is inherited. Shapes: B images, C classes, K attributes,
E joint embedding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.text import TokenizedPrompts
from dear.errors import BackboneError, ClassListError, ConfigError, InputError

if TYPE_CHECKING:
    from dear.predict import Prediction

Strategy = Literal["fusion", "decoupled"]
DEFAULT_TEMPLATE = "a photo of a {}."
SPECIAL_TOKENS = ("<start_of_text>", "<end_of_text>")


@dataclass(frozen=True)
class Output:
    """What a method says about a batch. A method without attribute tokens has K = 0."""

    logits: Tensor
    """(B, C), by the strategy that was asked for."""
    cls_logits: Tensor
    """(B, C), from the [CLS] feature alone."""
    attr_logits: Tensor
    """(B, K, C), from each attribute's feature."""
    alpha: Tensor
    """(K + 1,), weights of the [CLS] feature and of each attribute."""
    cls_features: Tensor
    """(B, E), of unit length."""
    attr_features: Tensor
    """(B, K, E), of unit length."""
    class_features: Tensor
    """(C, E), of unit length."""
    classes: ClassList | None = field(default=None, repr=False)
    """The classes the logits are about."""
    image_prefix: Tensor | None = field(default=None, repr=False)
    """What the frozen part made of the images, kept while gradients are recorded so that the loss can reuse it."""
    plain_features: Tensor | None = field(default=None, repr=False)
    """(B, E), plain CLIP's features of the images, where they were known beforehand."""


class LossTerms(Protocol):
    """A loss to minimise, `total`, and the terms it is made of, by name."""

    @property
    def total(self) -> Tensor:
        """The scalar to call `backward` on."""
        ...

    def scalars(self) -> dict[str, float]:
        """Every term as a number, for logs."""
        ...


@dataclass(frozen=True)
class ClassList:
    """Class names and the template that turns each into a prompt. Made by `class_list`."""

    names: tuple[str, ...]
    template: str

    @property
    def prompts(self) -> list[str]:
        """One prompt a class."""
        return [self.template.replace("{}", name) for name in self.names]


def class_list(names: Sequence[str], template: str) -> ClassList:
    """Check names and template: what could only give wrong predictions is refused."""
    if isinstance(names, str):
        raise ClassListError(f"The class list is the single word {names!r}: give a list, such as [{names!r}].")
    if isinstance(names, set | frozenset) or not isinstance(names, Iterable):
        raise ClassListError(
            f"The class list is a {type(names).__name__}: give a list, whose order is the labels' order."
        )
    listed = list(names)
    if not listed:
        raise ClassListError("The class list is empty: give at least one class name.")
    if bad := [name for name in listed if not _is_wording(name)]:
        raise ClassListError(f"Class names must be words, but {bad[0]!r} is among them.")
    if twice := sorted(name for name, times in Counter(listed).items() if times > 1):
        raise ClassListError(f"Class names appear twice: {', '.join(twice)}; give each class one name of its own.")
    if not _is_wording(template) or template.count("{}") != 1:
        raise ClassListError(
            f"The template {template!r} must hold '{{}}' exactly once, where the class name goes, "
            f"as in {DEFAULT_TEMPLATE!r}."
        )
    return ClassList(tuple(str(name) for name in listed), template)


def _is_wording(text: object) -> bool:
    """Whether something is text that a tokenizer can read as words."""
    if not isinstance(text, str) or not text.strip() or any(token in text for token in SPECIAL_TOKENS):
        return False
    return all(not 0xD800 <= ord(letter) < 0xE000 for letter in text)


def tokenize_classes(clip: FrozenClip, classes: ClassList) -> TokenizedPrompts:
    """Token ids of the prompts; two classes that the text tower cannot tell apart are refused."""
    tokens = clip.text.tokenize(classes.prompts)
    seen: dict[tuple[int, ...], str] = {}
    for name, ids in zip(classes.names, tokens.ids_CT.tolist(), strict=True):
        other = seen.setdefault(tuple(ids), name)
        if other != name:
            raise ClassListError(
                f"The classes {other!r} and {name!r} are the same to the text tower: give them different names."
            )
    return tokens


class PrefixKind(NamedTuple):
    """What `Method.image_prefix` or `Method.image_view` gives for one image: a name for it and its shape."""

    name: str
    shape: tuple[int, ...]


class Method(Protocol):
    """An adaptation of a frozen CLIP that an engine can train, evaluate, save and load without knowing it."""

    name: ClassVar[str]
    choice_names: ClassVar[frozenset[str]]
    """What `build` lets a person choose."""
    clip: FrozenClip

    @property
    def classes(self) -> ClassList | None:
        """The classes set last, or None."""
        ...

    def set_classes(self, names: Sequence[str], template: str = DEFAULT_TEMPLATE) -> None:
        """Choose the classes to tell apart."""
        ...

    def __call__(self, images: Tensor, *, strategy: Strategy = "fusion") -> Output:
        """Classify preprocessed images (B, 3, H, W)."""
        ...

    def image_prefix(self, images: Tensor) -> Tensor:
        """What the frozen part makes of images; it never changes, so it may be computed once and kept."""
        ...

    @property
    def prefix_kind(self) -> PrefixKind:
        """What `image_prefix` gives, so that it can be kept under a name that fits."""
        ...

    def from_prefix(self, prefix: Tensor, *, strategy: Strategy = "fusion") -> Output:
        """Classify from `image_prefix`'s result."""
        ...

    def image_view(self, images: Tensor) -> Tensor:
        """All that training needs of images and never changes, one flat row an image, so that it may be kept."""
        ...

    @property
    def view_kind(self) -> PrefixKind:
        """What `image_view` gives."""
        ...

    def from_view(self, views: Tensor) -> Output:
        """Classify from `image_view`'s result."""
        ...

    def predict(
        self,
        images: Sequence[Any],
        classes: Sequence[str] | None = None,
        *,
        template: str | None = None,
        strategy: Strategy = "fusion",
        top: int = 5,
    ) -> list[Prediction]:
        """Say what images show: see `dear.predict.predict`."""
        ...

    def loss(self, out: Output, labels: Tensor, *, images: Tensor | None = None) -> LossTerms:
        """The training loss of a batch."""
        ...

    def trainable(self) -> dict[str, nn.Parameter]:
        """Everything that training may change, by name."""
        ...

    def disabled(self) -> AbstractContextManager[None]:
        """Within this context the method is plain CLIP, exactly."""
        ...

    def settings(self) -> dict[str, Any]:
        """The method's choices as plain JSON values; with `artefact_files` enough to build it again."""
        ...

    def artefact_files(self) -> dict[str, str]:
        """Further text files that belong to a saved adapter, by file name."""
        ...

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Save what was trained."""
        ...

    def facts(self) -> dict[str, str]:
        """What a person wants to know of this adapter at a glance, for its card."""
        ...

    @classmethod
    def build(cls, clip: FrozenClip, *, seed: int, choices: Mapping[str, Any]) -> Method:
        """Make an untrained model from choices that a person may have typed."""
        ...

    @classmethod
    def from_artefact(cls, clip: FrozenClip, settings: Mapping[str, Any], files: Mapping[str, str]) -> Method:
        """Build the method again from what was saved (its tensors are loaded afterwards)."""
        ...


def require_clip(clip: object) -> FrozenClip:
    """The backbone, or a sentence where it is something else."""
    if not isinstance(clip, FrozenClip):
        raise BackboneError(f"A method adapts a backbone from dear.load_clip(…), but got a {type(clip).__name__}.")
    return clip


def require_classes(classes: ClassList | None) -> ClassList:
    """The class list, or a sentence where none has been set."""
    if classes is None:
        raise ClassListError('No classes are set: call model.set_classes(["cat", "dog"]) first.')
    return classes


def check_strategy(strategy: str) -> None:
    """Refuse an inference strategy that does not exist."""
    if strategy not in ("fusion", "decoupled"):
        raise ConfigError(f"strategy is {strategy!r}, but can be 'fusion' or 'decoupled'.")


def check_labels(out: object, labels: object) -> None:
    """Refuse labels that do not belong to the output: whole numbers, one an image, each the number of a class."""
    if not isinstance(out, Output):
        raise InputError(f"The loss takes what the model returned, model(images), but got a {type(out).__name__}.")
    batch, classes = out.logits.shape
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or tuple(labels.shape) != (batch,):
        form = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"Labels must be an int64 tensor of shape ({batch},), but are {form}.")
    if batch and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise InputError(
            f"Labels go from {int(labels.min())} to {int(labels.max())}, but the {classes} classes are numbered from 0."
        )


def frozen_output(clip: FrozenClip, image_features_BE: Tensor, class_features_CE: Tensor, classes: ClassList) -> Output:
    """Plain CLIP's answer: cosine logits and no attributes (K = 0)."""
    with full_precision(image_features_BE):
        logits = clip.temperature * image_features_BE @ class_features_CE.T
    batch, embed = image_features_BE.shape
    return Output(
        logits=logits,
        cls_logits=logits,
        attr_logits=logits.new_zeros(batch, 0, logits.shape[1]),
        alpha=logits.new_ones(1),
        cls_features=image_features_BE,
        attr_features=logits.new_zeros(batch, 0, embed),
        class_features=class_features_CE,
        classes=classes,
    )


def full_precision(like: Tensor) -> torch.autocast:
    """Context without autocast: a cosine times 100 does not survive bf16."""
    return torch.autocast(like.device.type, enabled=False)


def unit(features: Tensor) -> Tensor:
    """Features of unit length, in fp32 whatever the backbone's precision."""
    return F.normalize(features.to(torch.float32), dim=-1)
