"""The frozen text tower, cut in two, and never longer than its longest prompt.

The tower is causal, so positions past the last end token cannot matter and are dropped; the layers below the first
adapted one run once per class list. Shapes: C prompts, T tokens, D text width, E joint embedding. Layers count from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dear.backbone.blocks import run_block
from dear.errors import ClassListError


@dataclass(frozen=True)
class TokenizedPrompts:
    """Token ids cut after the longest end token, each prompt's end position, and how many tokens all begin with."""

    ids_CT: Tensor
    end_C: Tensor
    shared: int


class TextTower:
    """Split view of an OpenCLIP text transformer; it owns no weights, it only runs them."""

    def __init__(self, text: Any, tokenizer: Callable[..., Tensor], *, pool: str, eos_id: int) -> None:
        self._text = text
        self._tokenizer = tokenizer
        self._pool = pool
        self._eos_id = eos_id

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        return len(self._text.transformer.resblocks)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tower's activations."""
        dtype: torch.dtype = self._text.transformer.get_cast_dtype()
        return dtype

    def blocks(self, first: int) -> list[Any]:
        """Layers `first`..L, counted from 1, to be run by `run_block`."""
        return list(self._text.transformer.resblocks[first - 1 :])

    def tokenize(self, prompts: Sequence[str]) -> TokenizedPrompts:
        """Tokenize and truncate to the longest prompt; a prompt that does not fit the context is refused."""
        context = len(self._text.positional_embedding)
        ids_CT = self._tokenizer(list(prompts), context_length=context)
        end_C = self._end_positions(ids_CT)
        if full := [prompt for prompt, end in zip(prompts, end_C.tolist(), strict=True) if end == context - 1]:
            self._refuse_cut(full, context)
        device = self._text.positional_embedding.device
        same_T = (ids_CT == ids_CT[:1]).all(0).int()
        shared = min(int(same_T.cumprod(0).sum()), int(end_C.min()))
        return TokenizedPrompts(ids_CT[:, : int(end_C.max()) + 1].to(device), end_C.to(device), shared)

    def _refuse_cut(self, prompts: Sequence[str], context: int) -> None:
        """Of prompts that fill the context, refuse those that go on beyond it."""
        ends = self._end_positions(self._tokenizer(list(prompts), context_length=16 * context)).tolist()
        if cut := [prompt for prompt, end in zip(prompts, ends, strict=True) if end >= context]:
            raise ClassListError(
                f"{len(cut)} prompt(s) do not fit the text tower's {context} tokens, the first is "
                f"'{cut[0][:60]}…': shorten the class name or the template."
            )

    def _end_positions(self, ids_CT: Tensor) -> Tensor:
        return ids_CT.argmax(-1) if self._pool == "argmax" else (ids_CT == self._eos_id).int().argmax(-1)

    @torch.no_grad()
    def encode(self, prompts: Sequence[str], *, batch: int = 256) -> Tensor:
        """Plain CLIP's text features (C, E), unnormalised; short prompts do not wait for long ones."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        features: dict[int, Tensor] = {}
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            tokens = self.tokenize([prompts[index] for index in chosen])
            before_last_CTD = self.prefix(tokens.ids_CT, self.layers)
            encoded_CE = self.frozen_features(before_last_CTD, tokens.end_C, self.layers)
            features.update(zip(chosen, encoded_CE, strict=True))
        return torch.stack([features[index] for index in range(len(prompts))])

    @torch.no_grad()
    def prefix(self, ids_CT: Tensor, first: int) -> Tensor:
        """State x_CTD of the words before layer `first`. Exact: nothing learnable acts below it."""
        x_CTD: Tensor = self._text.token_embedding(ids_CT).to(self.dtype)
        x_CTD = x_CTD + self._text.positional_embedding[: ids_CT.shape[1]].to(self.dtype)
        for block in self._text.transformer.resblocks[: first - 1]:
            x_CTD = run_block(block, x_CTD, causal=True)
        return x_CTD

    @torch.no_grad()
    def frozen_features(self, prefix_CTD: Tensor, end_C: Tensor, first: int) -> Tensor:
        """Plain CLIP's text features (C, E), unnormalised, from the prefix: layers `first`..L only."""
        x_CTD = prefix_CTD
        *inner, last = self.blocks(first)
        for block in inner:
            x_CTD = run_block(block, x_CTD, causal=True)
        return self.read_end(last, x_CTD, end_C)

    def read_end(self, last_block: Any, x_CTD: Tensor, end_C: Tensor, past_1SD: Tensor | None = None) -> Tensor:
        """Run the last layer for the end tokens only, and project them: (C, E).

        `past_1SD` are the rows that all prompts begin with, where `x_CTD` holds only what comes after them.
        """
        before = 0 if past_1SD is None else past_1SD.shape[1]
        rows, keys = (torch.arange(n, device=x_CTD.device) for n in (len(x_CTD), before + x_CTD.shape[1]))
        mask_C11L = (keys <= end_C[:, None] + before)[:, None, None]
        queries_C1D = x_CTD[rows, end_C][:, None]
        end_C1D = run_block(last_block, x_CTD, queries_BQD=queries_C1D, past_1SD=past_1SD, mask=mask_C11L)
        out_CD: Tensor = self._text.ln_final(end_C1D[:, 0])
        projection = self._text.text_projection
        if projection is None:
            return out_CD
        projected: Tensor = projection(out_CD) if callable(projection) else out_CD @ projection
        return projected
