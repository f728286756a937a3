"""What every adaptation method is to the engine: set classes, see images, give logits and a loss.

A method meets `Method` by having these members; nothing is inherited. Shapes: B images, C classes, K attributes,
E joint embedding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.errors import ClassListError

Strategy = Literal["fusion", "decoupled"]
DEFAULT_TEMPLATE = "a photo of a {}."


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
    image_prefix: Tensor | None = field(default=None, repr=False)
    """What the frozen part made of the images, kept while gradients are recorded so that the loss can reuse it."""


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
    if not names:
        raise ClassListError("The class list is empty: give at least one class name.")
    if bad := [name for name in names if not isinstance(name, str) or not name.strip()]:
        raise ClassListError(f"Class names must be words, but {bad[0]!r} is among them.")
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise ClassListError(f"Class names appear twice: {', '.join(twice)}; give each class one name of its own.")
    if not isinstance(template, str) or template.count("{}") != 1:
        raise ClassListError(
            f"The template {template!r} must hold '{{}}' exactly once, where the class name goes, "
            f"as in {DEFAULT_TEMPLATE!r}."
        )
    return ClassList(tuple(names), template)


class Method(Protocol):
    """An adaptation of a frozen CLIP that an engine can train, evaluate, save and load without knowing it."""

    name: ClassVar[str]
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

    def from_prefix(self, prefix: Tensor, *, strategy: Strategy = "fusion") -> Output:
        """Classify from `image_prefix`'s result."""
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

    def facts(self) -> dict[str, str]:
        """What a person wants to know of this adapter at a glance, for its card."""
        ...

    @classmethod
    def from_artefact(cls, clip: FrozenClip, settings: Mapping[str, Any], files: Mapping[str, str]) -> Method:
        """Build the method again from what was saved (its tensors are loaded afterwards)."""
        ...


def require_classes(classes: ClassList | None) -> ClassList:
    """The class list, or a sentence where none has been set."""
    if classes is None:
        raise ClassListError('No classes are set: call model.set_classes(["cat", "dog"]) first.')
    return classes


def frozen_output(clip: FrozenClip, image_features_BE: Tensor, class_features_CE: Tensor) -> Output:
    """Plain CLIP's answer: cosine logits and no attributes (K = 0)."""
    logits = clip.temperature * image_features_BE @ class_features_CE.T
    batch, classes, embed = *logits.shape, class_features_CE.shape[1]
    return Output(
        logits=logits,
        cls_logits=logits,
        attr_logits=logits.new_zeros(batch, 0, classes),
        alpha=logits.new_ones(1),
        cls_features=image_features_BE,
        attr_features=logits.new_zeros(batch, 0, embed),
        class_features=class_features_CE,
    )


def unit(features: Tensor) -> Tensor:
    """Features of unit length, in fp32 whatever the backbone's precision."""
    return F.normalize(features.to(torch.float32), dim=-1)
