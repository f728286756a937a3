"""PromptKD: a student with image prompts learns a teacher's predictions on unlabelled photos.

The student's image feature goes through a projector into the teacher's joint space; class features are the teacher's.
Shapes: n learned rows per layer, B images, C classes, E and T joint embeddings of student and teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip, short_name
from dear.data.prompts import ClassList
from dear.errors import ConfigError
from dear.methods.api import (
    About,
    Batch,
    Can,
    Method,
    Needs,
    Output,
    Recipe,
    Resource,
    Settings,
    Special,
    tokens_of,
    unit,
)
from dear.methods.parts.tokens import prompted_image, random_linear, random_rows

TEACHER = "teacher"


class PromptKDConfig(Settings):
    """Config of PromptKD."""

    teacher: Annotated[str | None, Resource()] = None
    """The teacher: the folder of a run, or a CLIP as NAME or NAME@TAG; default: the same CLIP without adapter.
    In a grid, {data}, {seed} and {shots} are replaced by the values of the cell."""
    context: int = Field(default=4, ge=1, le=256)
    """Number of learned image rows per layer."""
    depth: int = Field(default=9, ge=1)
    """Number of image layers, from the first on, that get learned rows of their own."""
    temperature: float = Field(default=1.0, gt=0)
    """Divisor of both sets of logits."""
    weight: float = Field(default=1000.0, ge=0)
    """Weight of the divergence, which is averaged over images and classes."""


class Norm(nn.Module):
    """Batch norm whose running statistics change only in `remember`."""

    eps, momentum = 1e-5, 0.1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x_BT: Tensor, training: bool) -> Tensor:
        """Normalise by the batch's statistics in training, otherwise by the running ones."""
        mean, var = (None if training else self.get_buffer(f"running_{name}") for name in ("mean", "var"))
        return F.batch_norm(x_BT, mean, var, self.weight, self.bias, training=training, eps=self.eps)

    @torch.no_grad()
    def remember(self, mean_T: Tensor, var_T: Tensor) -> None:
        """Move the running statistics towards those of a batch."""
        self.get_buffer("running_mean").lerp_(mean_T, self.momentum)
        self.get_buffer("running_var").lerp_(var_T, self.momentum)


class Projector(nn.Module):
    """Maps the student's joint space to the teacher's."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear1 = random_linear(generator, inputs, outputs)
        self.norm = Norm(outputs)
        self.linear2 = random_linear(generator, outputs, outputs)

    def forward(self, x_BE: Tensor, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Features (B, T), and in training the batch's statistics, which a single image does not have."""
        training = training and x_BE.shape[0] > 1
        bias_T: Tensor = self.linear1.bias
        if training:  # batch statistics cancel the bias: make its gradient exactly zero
            bias_T = bias_T.detach() + 0 * bias_T
        hidden_BT = F.linear(x_BE, self.linear1.weight, bias_T)
        out_BT: Tensor = self.linear2(F.relu(self.norm(hidden_BT, training)))
        seen = hidden_BT.detach()
        return out_BT, {"mean": seen.mean(0), "var": seen.var(0)} if training else {}


class PromptKD(Method[PromptKDConfig]):
    """Image prompts and a projector that learn a teacher's predictions on unlabelled photos."""

    name = "promptkd"
    needs_of_clip = frozenset({Can.IMAGE_LAYERS})
    recipe = Recipe(optimiser="sgd", lr=5e-3, batch_size=8, epochs=20, drop_last=True, crop=(0.08, 1.0))
    special = (
        Special(config={"weight": 200.0}, data=("fgvc_aircraft", "oxford_flowers", "dtd")),
        Special(config={"depth": 3, "weight": 1000.0}, protocols=("cross-dataset", "domain")),
    )
    about = About(
        citation="Li et al., PromptKD: Unsupervised Prompt Distillation for Vision-Language Models, CVPR 2024",
        year=2024,
        touches="image tower, layers 1–9",
        parameters=None,
        needs="a teacher, unlabelled photos",
        code="zhengli97/PromptKD ec244f7",
        licence="Apache-2.0",
        trained="1,013,760 (ViT-L/14 teacher)",
    )
    needs = Needs(
        image=("rows@1",), training=(f"{TEACHER}:image",), whole_batch=True, companions=(TEACHER,), unlabelled=True
    )

    def __init__(self, clip: FrozenClip, config: PromptKDConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.check_teacher(clip)
        self.vision = nn.ParameterList(
            random_rows(self.generator, self.config.context, clip.vision.width)
            for _ in range(min(self.config.depth, clip.vision.depth))
        )
        self.project = Projector(clip.geometry.embed_dim, self.teacher.clip.geometry.embed_dim, self.generator)

    @property
    def teacher(self) -> Any:
        """The teacher model."""
        return self.companions[TEACHER]

    def check_teacher(self, clip: FrozenClip) -> None:
        """Raise a ConfigError if the teacher preprocesses images differently from the student."""
        read, other = (dict(one.model.visual.preprocess_cfg) for one in (clip, self.teacher.clip))
        if differing := [name for name in ("size", "mean", "std") if read.get(name) != other.get(name)]:
            raise ConfigError(
                f"The teacher {self.teacher.clip.name} reads images of another {differing[0]} than {clip.name}: "
                f"choose a teacher whose preprocessing is the same."
            )

    def facts(self) -> dict[str, str]:
        """The teacher."""
        teacher = self.teacher
        return {
            TEACHER: f"{teacher.name} on {short_name(teacher.clip.name)}, weights {teacher.clip.weights_sha256[:12]}"
        }

    def encode_text(self, clip: FrozenClip, texts: Sequence[str]) -> Tensor:
        """Encode texts in the teacher's space, which the image features share."""
        encoded: Tensor = self.teacher.clip.encode_text(texts)
        return encoded

    def classes(self, clip: FrozenClip, classes: ClassList) -> Tensor:
        """The teacher's class features (C, T), of unit length."""
        tokens_of(clip, classes)
        features = self.teacher.for_classes(classes).class_features()
        if tuple(features.shape) != (len(classes.names), self.teacher.clip.geometry.embed_dim):
            raise ConfigError(
                f"{self.teacher.name} cannot be the teacher, as it has no feature per class: choose another one."
            )
        return unit(features)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of projected student features and the teacher's classes; in training also the teacher's logits."""
        own_BE = prompted_image(clip, image["rows@1"], list(self.vision))
        projected_BT, rest = self.project(own_BE, batch is not None)
        feature_BT = unit(projected_BT)
        if batch is not None:
            rest["teacher"] = self.teacher.clip.temperature * unit(image[f"{TEACHER}:image"]) @ text.T
        logits_BC = clip.temperature * feature_BT @ text.T
        return Output({"logits": logits_BC}, {"cls": feature_BT}, classes=text, rest={"own": own_BE, **rest})

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Divergence of the student's predictions from the teacher's; labels are not used."""
        heat, logits_BC = self.config.temperature, out.logits
        ours, theirs = ((one / heat).log_softmax(1) for one in (logits_BC, out.rest["teacher"]))
        divergence = F.kl_div(ours, theirs, reduction="sum", log_target=True)
        return {"kl": self.config.weight * heat**2 * divergence / logits_BC.numel()}

    def after_step(self, out: Output) -> None:
        """Update the running statistics."""
        if "mean" in out.rest:
            self.project.norm.remember(out.rest["mean"], out.rest["var"])
