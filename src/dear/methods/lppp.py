"""LP++: a linear probe blended with the text features, one weight per class, with learning rates from the data.

Shapes: N training images, C classes, M held-out images, B images, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dear.methods.api import About, Batch, ClassList, Draw, FrozenClip, Method, Needs, Output, Recipe, Settings, unit
from dear.methods.parts.caches import KnownClasses
from dear.methods.parts.class_features import text_weights, usual_templates
from dear.methods.parts.class_identity import known_rows, name_bytes, only_trained, places
from dear.progress.stages import stage

START = 250.0
"""Factor of the initial weight of the text."""
MOMENTUM = 0.9


class LPppConfig(Settings):
    """Config of LP++."""

    epochs: int = Field(default=300, ge=1)
    """Steps, each on all training images."""
    alpha_every: int = Field(default=10, ge=1)
    """Steps between two changes of the weights of the text."""


class Probe(NamedTuple):
    """The learned tensors."""

    weight: Tensor
    """(C, E)."""
    bias: Tensor
    """(C,)."""
    alpha: Tensor
    """(1, C) weights of the text."""


class Rates(NamedTuple):
    """Learning rates."""

    weight: float
    alpha: float


class Step(NamedTuple):
    """One step of a training."""

    loss: Tensor
    gradient: Probe
    """Before the step; that of `alpha` is the sum over all steps so far."""
    after: Probe


class Training:
    """Gradient descent on fixed features, all images at once."""

    def __init__(self, features_NE: Tensor, labels_N: Tensor, text_CE: Tensor) -> None:
        self._x, self._y, self._cosines_NC = features_NE, labels_N, features_NE @ text_CE.T
        self._one_hot = F.one_hot(labels_N, text_CE.shape[0]).to(features_NE.dtype)
        count = features_NE.shape[0]
        largest = torch.linalg.eigvalsh(features_NE.T.double() @ features_NE.double())[-1]
        self.rates = Rates(4 * count / float(largest), count / (4 * float(self._cosines_NC.square().sum(0).max())))

    def start(self, bias_C: Tensor) -> Probe:
        """Sums of the features of each class, and the same weight of the text for all classes."""
        images_C = self._one_hot.sum(0)
        own_C = (self._one_hot * self._cosines_NC).sum(0)[images_C > 0] / images_C[images_C > 0]
        alpha_1C = (START * own_C.mean()).expand(1, images_C.shape[0]).clone()
        return Probe(self._one_hot.T @ self._x, bias_C, alpha_1C)

    def logits(self, probe: Probe) -> Tensor:
        """Logits (N, C) of the training images."""
        return F.linear(self._x, probe.weight, probe.bias) + probe.alpha * self._cosines_NC

    def steps(self, probe: Probe, epochs: int, alpha_every: int) -> Iterator[Step]:
        """All steps; as published, the gradient of `alpha` is never cleared."""
        weight, bias, alpha = (one.clone() for one in probe)
        speeds, total_1C = (torch.zeros_like(weight), torch.zeros_like(bias)), torch.zeros_like(alpha)
        for epoch in range(1, epochs + 1):
            logits_NC = self.logits(Probe(weight, bias, alpha))
            away_NC = (logits_NC.softmax(1) - self._one_hot) / self._x.shape[0]
            gradients = away_NC.T @ self._x, away_NC.sum(0)
            total_1C = total_1C + (away_NC * self._cosines_NC).sum(0, keepdim=True)
            for tensor, speed, gradient in zip((weight, bias), speeds, gradients, strict=True):
                speed.mul_(MOMENTUM).add_(gradient)
                tensor.sub_(self.rates.weight * speed)
            if epoch % alpha_every == 0:
                alpha = alpha - self.rates.alpha * total_1C
            yield Step(F.cross_entropy(logits_NC, self._y), Probe(*gradients, total_1C), Probe(weight, bias, alpha))


class LPpp(Method[LPppConfig]):
    """A linear probe blended with the text features; cannot classify new classes."""

    name = "lppp"
    recipe = Recipe(epochs=0, crop=(0.5, 1.0))
    needs = Needs(passes=1, held_out=True, novel=False)
    about = About(
        citation="Huang et al., LP++: A Surprisingly Strong Linear Probe for Few-Shot CLIP, CVPR 2024",
        year=2024,
        touches="a classifier next to the text",
        parameters=None,
        trained="514 per class",
        code="FereshteShakeri/FewShot-CLIP-Strong-Baseline f81054f",
        licence="none stated",
    )
    sized_by_data = ("weight", "bias", "alpha", "trained_data")

    def __init__(self, clip: FrozenClip, config: LPppConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self._width = clip.geometry.embed_dim
        self.weight, self.bias = nn.Parameter(torch.empty(0, self._width)), nn.Parameter(torch.empty(0))
        self.alpha = nn.Parameter(torch.empty(1, 0))
        self.trained_data: Tensor
        self.register_buffer("trained_data", name_bytes(None))

    def check_shapes(self) -> None:
        """Check the width and the number of classes of each tensor."""
        count = self.weight.shape[0]
        if self.weight.shape != (count, self._width) or self.bias.shape != (count,) or self.alpha.shape != (1, count):
            raise ValueError(f"weight, bias and alpha do not fit together, or weight is not of width {self._width}")

    def finish(self, clip: FrozenClip, draw: Draw, held: Draw | None) -> None:
        """Train the probe; the bias starts at random, as in a linear layer of PyTorch."""
        random_C = torch.rand(len(draw.classes.names), generator=torch.Generator().manual_seed(draw.seed))
        self.fit(clip, draw, held, (random_C.to(clip.device) * 2 - 1) * self._width**-0.5)

    @torch.no_grad()
    def fit(self, clip: FrozenClip, draw: Draw, held: Draw | None, bias_C: Tensor) -> None:
        """Train the probe; of equally good epochs on held-out images the last one counts, without any the last one."""
        text_CE, most = self.classes(clip, draw.classes).weights, -1
        training = Training(unit(draw.image["feature"][0]), draw.labels, text_CE)
        found = training.start(bias_C)
        with stage("fitting", self.config.epochs) as advance:
            steps = training.steps(found, self.config.epochs, self.config.alpha_every)
            for done, step in enumerate(steps, start=1):
                right = 0 if held is None else correct(step.after, text_CE, held)
                if right >= most:
                    most, found = right, Probe(*(one.clone() for one in step.after))
                advance(done)
        self.weight.data, self.bias.data, self.alpha.data = found
        self.trained_data.data = name_bytes(draw.classes.dataset).to(clip.device)

    def classes(self, clip: FrozenClip, classes: ClassList) -> KnownClasses:
        """Text features from templates, and which classes were trained."""
        weights_CE = text_weights(clip, classes, usual_templates(classes))
        return KnownClasses(weights_CE, places(classes, clip.device), classes.dataset)

    def text(self, clip: FrozenClip, frozen: KnownClasses, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        """Probe and weighted text as one linear function, (C, E) and (C,); before training it is zero-shot CLIP."""
        if self.weight.shape[0]:
            only_trained(self.name, frozen.seen, frozen.dataset, self.trained_data)
        rows = known_rows(frozen.seen, frozen.dataset, self.trained_data, self.weight.shape[0])
        alpha_C = F.pad(self.alpha[0], (0, 1), value=float(clip.temperature))[rows]
        weight_CE = F.pad(self.weight, (0, 0, 0, 1))[rows] + alpha_C[:, None] * frozen.weights
        return weight_CE, F.pad(self.bias, (0, 1))[rows]

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: tuple[Tensor, Tensor], batch: Batch | None = None
    ) -> Output:
        """The linear function of unit features."""
        feature_BE = unit(image["feature"])
        return Output({"logits": F.linear(feature_BE, *text)}, {"cls": feature_BE})


def correct(probe: Probe, text_CE: Tensor, held: Draw) -> int:
    """Number of held-out images that a probe classifies correctly."""
    logits_MC = F.linear(unit(held.image["feature"]), probe.weight + probe.alpha.T * text_CE, probe.bias)
    return int((logits_MC.argmax(1) == held.labels).sum())
