"""The two towers without any saving: each prompt has the whole context, nothing is shared between prompts, every row of
every layer is computed. Methods run on them unchanged: an oracle of the savings, and the plain way of benchmarks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.layers import Layer
from dear.backbone.precision import wide
from dear.backbone.rows import Rows
from dear.backbone.text import TextTower, TokenizedPrompts
from dear.backbone.vision import Edit, Masks, VisionTower


class PlainText(TextTower):
    """A text tower that runs all positions of all prompts."""

    def _tokenize(self, prompts: tuple[str, ...], cut: bool) -> TokenizedPrompts:
        ids_CT = self._tokenizer(list(prompts), context_length=self.context)
        return TokenizedPrompts(ids_CT, self._end_positions(ids_CT), 0)

    def rows(self, x_CTD: Tensor, end_C: Tensor, shared: int = 0) -> Rows:
        return super().rows(x_CTD, end_C, 0)

    def _packing(self, rows: Rows) -> None:
        return None

    def features(
        self,
        rows: Rows,
        first: int = 1,
        *,
        edit: Callable[[int, Rows], Rows] | None = None,
        layers: Sequence[Layer] | None = None,
        norm: nn.Module | None = None,
        projection: Tensor | None = None,
    ) -> Tensor:
        rows = self.run(rows.unshare(0), first, edit=edit, layers=layers)
        x_CTD = (norm or self._text.ln_final)(rows.words)
        return self._project(wide(x_CTD[torch.arange(x_CTD.shape[0]), rows.end]), projection)


class PlainVision(VisionTower):
    """An image tower that computes every row of every layer."""

    def run(
        self,
        x_BLD: Tensor,
        first: int = 1,
        last: int | None = None,
        *,
        edit: Edit | None = None,
        masks: Masks | None = None,
        layers: Sequence[Layer] | None = None,
        read: Sequence[int] | None = None,
        kept: Any = None,
    ) -> Tensor:
        x_BLD = super().run(x_BLD, first, last, edit=edit, masks=masks, layers=layers)
        return x_BLD if read is None else x_BLD[:, list(read)]


def plain_clip(clip: FrozenClip) -> FrozenClip:
    """The same CLIP with plain towers."""
    made, text = copy.copy(clip), clip.text
    made.__dict__["text"] = PlainText(text._text, text._tokenizer, pool=text._pool, eos_id=text._eos_id)
    made.__dict__["vision"] = PlainVision(clip.vision._visual, clip.geometry.embed_dim)
    return made
