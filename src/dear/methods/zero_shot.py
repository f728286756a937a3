"""Zero-shot CLIP: the frozen model's own features and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.errors import ConfigError
from dear.methods.base import (
    DEFAULT_TEMPLATE,
    ClassList,
    Output,
    PrefixKind,
    Strategy,
    check_labels,
    check_strategy,
    class_list,
    frozen_output,
    require_classes,
    require_clip,
    tokenize_classes,
)
from dear.methods.registry import register

if TYPE_CHECKING:
    from dear.predict import Prediction


@dataclass(frozen=True)
class CrossEntropy:
    """The only term there is; it has no gradient."""

    total: Tensor

    def scalars(self) -> dict[str, float]:
        """The loss as a number."""
        return {"total": self.total.item()}


@register
class ZeroShot(nn.Module):
    """The frozen CLIP behind the interface of every method."""

    name: ClassVar[str] = "zero_shot"
    choice_names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, clip: FrozenClip) -> None:
        super().__init__()
        self.clip = require_clip(clip)
        self._classes: ClassList | None = None
        self._class_features_CE: Tensor | None = None

    @property
    def classes(self) -> ClassList | None:
        """The classes set last, or None."""
        return self._classes

    def set_classes(self, names: Sequence[str], template: str = DEFAULT_TEMPLATE) -> None:
        """Choose the classes to tell apart; their features are computed here, once."""
        classes = class_list(names, template)
        tokenize_classes(self.clip, classes)
        self._class_features_CE = self.clip.encode_text(classes.prompts)
        self._classes = classes

    def image_prefix(self, images: Tensor) -> Tensor:
        """The image features themselves: all of this method is frozen."""
        return self.clip.encode_image(images)

    @property
    def prefix_kind(self) -> PrefixKind:
        """Image features."""
        return PrefixKind("image features", (self.clip.geometry.embed_dim,))

    def from_prefix(self, prefix: Tensor, *, strategy: Strategy = "fusion") -> Output:
        """Cosine logits; both strategies are the same here."""
        check_strategy(strategy)
        classes = require_classes(self._classes)
        assert self._class_features_CE is not None
        return frozen_output(self.clip, prefix, self._class_features_CE.to(prefix.device), classes)

    def image_view(self, images: Tensor) -> Tensor:
        """Image features again."""
        return self.image_prefix(images)

    @property
    def view_kind(self) -> PrefixKind:
        """Image features."""
        return self.prefix_kind

    def from_view(self, views: Tensor) -> Output:
        """Cosine logits."""
        return self.from_prefix(views)

    def forward(self, images: Tensor, *, strategy: Strategy = "fusion") -> Output:
        """Classify preprocessed images (B, 3, H, W)."""
        return self.from_prefix(self.image_prefix(images), strategy=strategy)

    def loss(self, out: Output, labels: Tensor, *, images: Tensor | None = None) -> CrossEntropy:
        """Cross-entropy, for logs."""
        check_labels(out, labels)
        return CrossEntropy(F.cross_entropy(out.logits, labels))

    def predict(
        self,
        images: Sequence[Any],
        classes: Sequence[str] | None = None,
        *,
        template: str | None = None,
        strategy: Strategy = "fusion",
        top: int = 5,
    ) -> list[Prediction]:
        """Say what images show; see `dear.predict.predict`."""
        from dear.predict import predict

        return predict(self, images, classes, template=template, strategy=strategy, top=top)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Nothing."""
        return {}

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Plain CLIP is what this already is."""
        yield

    def settings(self) -> dict[str, Any]:
        """No choices."""
        return {}

    def artefact_files(self) -> dict[str, str]:
        """No further files."""
        return {}

    def facts(self) -> dict[str, str]:
        """Nothing was learned."""
        return {}

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Save which backbone and classes these are. See `dear.load`."""
        from dear.artefact import save

        return save(self, folder, overwrite=overwrite)

    @classmethod
    def build(cls, clip: FrozenClip, *, seed: int, choices: Mapping[str, Any]) -> ZeroShot:
        """There is nothing to choose and nothing random."""
        return cls.from_artefact(clip, choices, {})

    @classmethod
    def from_artefact(cls, clip: FrozenClip, settings: Mapping[str, Any], files: Mapping[str, str]) -> ZeroShot:
        """Build it again."""
        if settings:
            raise ConfigError(f"zero_shot has no settings, but these were given: {', '.join(settings)}.")
        return cls(clip)
