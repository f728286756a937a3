"""TextRefiner: class features refined by a memory of local image features, on CoOp.

Shapes: B images, C classes, E joint embedding, N image rows ([CLS] first), m slots of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dear.methods.api import About, Batch, Can, FrozenClip, Needs, Output, Recipe, unit
from dear.methods.coop import CoOp, CoOpConfig, FrozenPrompts
from dear.methods.parts.recipes import DASSL
from dear.methods.parts.tokens import random_linear

MOMENTUM = 0.1
"""Momentum of the running statistics."""


class TextRefinerConfig(CoOpConfig):
    """Config of TextRefiner."""

    slots: int = Field(default=25, ge=1, le=4096)
    """Rows of the memory."""
    alpha: float = Field(default=0.2, ge=0)
    """Weight of the memory's contribution to class features."""
    momentum: float = Field(default=0.8, ge=0, le=1)
    """Share of the old value when a step writes to a slot."""
    balance: float = Field(default=50.0, gt=0)
    """Divisor of the local loss."""
    distill: float = Field(default=20.0, ge=0)
    """Weight of the distance between refined and plain class features."""
    patches: int = Field(default=5, ge=1)
    """Patches per image that are classified separately: those with the largest [CLS] attention."""


class Refined(NamedTuple):
    """Class features of a step, before and after refinement."""

    classes: Tensor
    """(C, E) refined features of unit length."""
    plain: Tensor
    """(C, E) class features of unit length, before refinement."""
    refined: Tensor
    """(C, E) refined features, not normalised; their lengths act as a factor per class."""


class Statistics(NamedTuple):
    """Mean and unbiased variance of a batch."""

    mean: Tensor
    variance: Tensor


class Translation(nn.Module):
    """Linear, batch norm, ReLU, linear. It does not read its mode, and its statistics change only in `remember`."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.conv1 = random_linear(generator, inputs, outputs)
        self.bn = nn.BatchNorm1d(outputs)
        self.conv2 = random_linear(generator, outputs, outputs)

    def forward(self, x: Tensor, *, training: bool) -> tuple[Tensor, Statistics | None]:
        """Map rows, normalised by their own statistics in training and by the running ones otherwise.

        A single row has no statistics.
        """
        rows = self.conv1(x).flatten(0, -2)
        training = training and rows.shape[0] > 1
        before = (None, None) if training else (self.bn.running_mean, self.bn.running_var)
        normed = F.batch_norm(rows, *before, self.bn.weight, self.bn.bias, training, eps=self.bn.eps)
        y: Tensor = self.conv2(F.relu(normed)).view(*x.shape[:-1], -1)
        found = rows.detach()
        return y, Statistics(found.mean(0), found.var(0)) if training else None

    @torch.no_grad()
    def remember(self, statistics: Statistics) -> None:
        """Move the running statistics towards those of a batch."""
        assert self.bn.running_mean is not None
        assert self.bn.running_var is not None
        assert self.bn.num_batches_tracked is not None
        self.bn.running_mean.lerp_(statistics.mean, MOMENTUM)
        self.bn.running_var.lerp_(statistics.variance, MOMENTUM)
        self.bn.num_batches_tracked += 1


def start_memory(slots: int, width: int, generator: torch.Generator) -> Tensor:
    """Random rows of unit length (m, E)."""
    return unit(torch.rand(slots, width, generator=generator))


def refine(plain_CE: Tensor, memory_mE: Tensor, extractor: nn.Module, alpha: float) -> Refined:
    """Add to each class feature what it reads from the memory."""
    read_CE = (plain_CE @ memory_mE.T).softmax(-1) @ memory_mE
    refined_CE = plain_CE + alpha * extractor(torch.cat([plain_CE, read_CE], dim=-1))
    return Refined(unit(refined_CE), plain_CE, refined_CE)


def local_rows(rows_BNE: Tensor, attention_BN: Tensor, patches: int) -> Tensor:
    """Per image: the [CLS] row, the patches with the largest attention, and the mean of all rows."""
    count = min(patches, rows_BNE.shape[1] - 1)
    best = attention_BN[:, 1:].topk(count).indices + 1
    chosen = rows_BNE.gather(1, best[..., None].expand(-1, -1, rows_BNE.shape[-1]))
    return torch.cat([rows_BNE[:, :1], chosen, rows_BNE.mean(1, keepdim=True)], dim=1).flatten(0, 1)


def rewritten(memory_mE: Tensor, rows_RE: Tensor, momentum: float) -> Tensor:
    """Return the memory after writing rows of unit length.

    Each row goes to its nearest slot; its weight decreases with its distance from the row nearest to that slot.
    """
    similar_Rm = rows_RE @ memory_mE.T
    slot_R = similar_Rm.argmax(1)
    weights_R = (similar_Rm - similar_Rm.max(0).values).exp().gather(1, slot_R[:, None])
    sums_mE = torch.zeros_like(memory_mE).index_add(0, slot_R, weights_R * rows_RE)
    hit_m = torch.bincount(slot_R, minlength=memory_mE.shape[0]) > 0
    written = momentum * memory_mE + (1 - momentum) * sums_mE
    return unit(torch.where(hit_m[:, None], written, memory_mE))


class TextRefiner(CoOp):
    """CoOp whose class features are refined by a memory of local image features."""

    name = "textrefiner"
    needs_of_clip = frozenset({Can.WORDS, Can.IMAGE_LAYERS})
    Config = TextRefinerConfig
    recipe = Recipe(**DASSL, epochs=10)
    special = ()
    about = About(
        citation="Xie et al., TextRefiner: Internal Visual Feature as Efficient Refiner for Vision-Language Models "
        "Prompt Tuning, AAAI 2025",
        year=2025,
        touches="words of the prompt, class features",
        parameters=1_052_672,
        code="xjjxmu/TextRefiner fd1e693",
        licence="MIT",
    )
    config: TextRefinerConfig

    def __init__(self, clip: FrozenClip, config: TextRefinerConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.needs = Needs(training=("projected", "cls_attention"), drawn_images=False)
        generator = torch.Generator().manual_seed(self.seed)  # as if the context had used no numbers
        embed = clip.geometry.embed_dim
        self.trans = Translation(embed, embed, generator)
        self.extractor = random_linear(generator, 2 * embed, embed, bias=False)
        self.cache: Tensor
        self.register_buffer("cache", start_memory(self.config.slots, embed, generator))

    def text(self, clip: FrozenClip, frozen: FrozenPrompts, batch: Batch | None = None) -> Any:
        """Class features before and after refinement."""
        return refine(super().text(clip, frozen, batch), self.cache, self.extractor, self.config.alpha)

    def forward(self, clip: FrozenClip, image: Mapping[str, Tensor], text: Any, batch: Batch | None = None) -> Output:
        """Products with refined features; in training also products of local rows with plain class features."""
        feature_BE = unit(image["feature"])
        logits = {"logits": clip.temperature * feature_BE @ text.refined.T}
        if batch is None:
            return Output(logits, {"cls": feature_BE}, classes=text.classes)
        rows_BNE, statistics = self.trans(image["projected"], training=True)
        local = local_rows(rows_BNE, image["cls_attention"], self.config.patches)
        rest = {
            "text": text,
            "rows": rows_BNE,
            "local": clip.temperature * local @ text.plain.T,
            "statistics": statistics,
        }
        return Output(logits, {"cls": feature_BE}, classes=text.classes, rest=rest)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of images and of local rows, and the distance from plain class features."""
        text, local, labels = out.rest["text"], out.rest["local"], batch.labels
        assert labels is not None
        each = local.shape[0] // labels.shape[0]
        return {
            "ce": F.cross_entropy(out.logits, labels),
            "local": F.cross_entropy(local, labels.repeat_interleave(each)) / self.config.balance,
            "reg": self.config.distill * (text.classes - text.plain).abs().mean(),
        }

    @torch.no_grad()
    def after_step(self, out: Output) -> None:
        """Write the step's local rows into the memory."""
        self.trans.remember(out.rest["statistics"])
        rows_RE = unit(out.rest["rows"].detach().flatten(0, 1))
        self.cache.copy_(rewritten(self.cache, rows_RE, self.config.momentum))
