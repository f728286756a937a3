"""TextRefiner on PromptKD: the teacher's class features are refined by a memory of the student's local features.

Shapes: B images, C classes, E and T joint embeddings of student and teacher, N image rows ([CLS] first).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dear.methods.api import About, Batch, FrozenClip, Output, unit
from dear.methods.parts.tokens import image_edit, random_linear
from dear.methods.promptkd import TEACHER, PromptKD, PromptKDConfig
from dear.methods.textrefiner import Refined, Translation, local_rows, refine, rewritten, start_memory

LOCAL, DISTANCE = 100, 50
"""Divisors of the divergence's weight, for local rows and for the distance of class features."""


class TextRefinerKDConfig(PromptKDConfig):
    """Config of TextRefiner on PromptKD."""

    slots: int = Field(default=25, ge=1, le=4096)
    """Rows of the memory."""
    alpha: float = Field(default=0.2, ge=0)
    """Weight of the memory's contribution to class features."""
    momentum: float = Field(default=0.8, ge=0, le=1)
    """Share of the old value when a step writes to a slot."""
    patches: int = Field(default=5, ge=1)
    """Patches per image that are classified separately: those with the largest [CLS] attention."""


class TextRefinerKD(PromptKD):
    """PromptKD whose class features are refined by a memory of the student's local features."""

    name = "textrefiner_promptkd"
    Config = TextRefinerKDConfig
    about = About(
        citation="Xie et al., TextRefiner: Internal Visual Feature as Efficient Refiner for Vision-Language Models "
        "Prompt Tuning, AAAI 2025",
        year=2025,
        touches="image tower, layers 1–9, class features",
        parameters=None,
        needs="a teacher, unlabelled photos",
        code="xjjxmu/TextRefiner fd1e693",
        licence="MIT",
        trained="3,179,520 (ViT-L/14 teacher)",
    )
    config: TextRefinerKDConfig

    def __init__(self, clip: FrozenClip, config: TextRefinerKDConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        generator = torch.Generator().manual_seed(self.seed + 1)
        own, theirs = clip.geometry.embed_dim, self.teacher.clip.geometry.embed_dim
        del self.project
        self.project: Any = Translation(own, theirs, generator)
        self.trans = Translation(own, theirs, generator)
        self.extractor = random_linear(generator, 2 * theirs, theirs, bias=False)
        self.cache: Tensor
        self.register_buffer("cache", start_memory(self.config.slots, theirs, generator))

    def text(self, clip: FrozenClip, frozen: Tensor, batch: Batch | None = None) -> Refined:
        """The teacher's class features, refined."""
        return refine(frozen, self.cache, self.extractor, self.config.alpha)

    def _rows(self, clip: FrozenClip, rows_BND: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        """Features of the image and, in training, of its patches; and the attention of the image to them."""
        last, count = clip.vision.depth, rows_BND.shape[1]
        edit, kept = image_edit(clip, list(self.vision), count)
        before = edit(last, clip.vision.run(rows_BND, 1, last - 1, edit=edit, kept=kept))
        after = clip.vision.run(before, last, read=range(count) if training else clip.vision.pooled)
        if not training:
            return clip.vision.feature(after)[:, None], before[:, :0, 0]
        with torch.no_grad():
            weights = clip.vision.attention(before, after)
        return clip.vision.local(after), weights

    def forward(self, clip: FrozenClip, image: Mapping[str, Tensor], text: Any, batch: Batch | None = None) -> Output:
        """Products of the student's projected feature with refined classes; in training also of local rows."""
        rows_BNE, attention_BN = self._rows(clip, image["rows@1"], batch is not None)
        projected_BT, of_images = self.project(rows_BNE[:, 0], training=batch is not None)
        feature_BT = unit(projected_BT)
        logits = {"logits": clip.temperature * feature_BT @ text.refined.T}
        if batch is None:
            return Output(logits, {"cls": feature_BT}, classes=text.classes)
        local_BNT, of_rows = self.trans(rows_BNE, training=True)
        local = local_rows(local_BNT, attention_BN, self.config.patches)
        rest = {
            "text": text,
            "rows": local_BNT,
            "local": clip.temperature * local @ text.plain.T,
            "teacher": self.teacher.clip.temperature * unit(image[f"{TEACHER}:image"]) @ text.plain.T,
            "statistics": (of_images, of_rows),
        }
        return Output(logits, {"cls": feature_BT}, classes=text.classes, rest=rest)

    def _away(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """Divergence from the teacher's predictions, averaged over all logits."""
        heat = self.config.temperature
        ours, theirs = ((one / heat).log_softmax(1) for one in (logits, wanted))
        return heat**2 * F.kl_div(ours, theirs, reduction="sum", log_target=True) / logits.numel()

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Divergences of images and local rows, and the distance from the teacher's class features."""
        weight, text, teacher, local = self.config.weight, out.rest["text"], out.rest["teacher"], out.rest["local"]
        each = local.shape[0] // teacher.shape[0]
        return {
            "kd": weight * self._away(out.logits, teacher),
            "local": weight / LOCAL * self._away(local, teacher.repeat_interleave(each, 0)),
            "reg": weight / DISTANCE * (text.classes - text.plain).abs().mean(),
        }

    @torch.no_grad()
    def after_step(self, out: Output) -> None:
        """Update the running statistics, and write the step's local rows into the memory."""
        for module, statistics in zip((self.project, self.trans), out.rest["statistics"], strict=True):
            if statistics is not None:
                module.remember(statistics)
        rows = unit(out.rest["rows"].detach().flatten(0, 1))
        self.cache.copy_(rewritten(self.cache, rows, self.config.momentum))
