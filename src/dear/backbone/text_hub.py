"""A text encoder of transformers inside a CLIP: its features and learned words. Its layers cannot be reached.

Shapes: C prompts, T tokens, D text width, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dear.backbone.layers import Layer
from dear.backbone.precision import tower_precision, wide
from dear.backbone.rows import Rows
from dear.backbone.text import Edit, TextProjection, TextTower, TokenizedPrompts
from dear.errors import BackboneError

HUB_POOL = "hub"
"""In place of the kind of a text tower's pool."""


class HubTextTower(TextTower):
    """A view of open_clip's `HFTextEncoder`, which adds positions itself and does not attend to padding."""

    def __init__(self, text: Any, tokenizer: Callable[..., Tensor]) -> None:
        super().__init__(text, tokenizer, pool=HUB_POOL, eos_id=-1)

    has_layers = False
    causal = False

    @property
    def blocks(self) -> list[nn.Module]:
        """Not reachable."""
        raise BackboneError("The layers of a text tower from transformers cannot be run one by one.")

    @property
    def _words(self) -> nn.Embedding:
        words: nn.Embedding = self._text.transformer.get_input_embeddings()
        return words

    @property
    def width(self) -> int:
        """D."""
        return int(self._words.weight.shape[1])

    @property
    def context(self) -> int:
        """The largest number of tokens."""
        return int(self._tokenizer.context_length)  # type: ignore[attr-defined]

    @property
    def positions(self) -> Tensor:
        """Zeros: the encoder adds positions itself."""
        return self._words.weight.new_zeros(self.context, self.width)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tower's activations."""
        return self._words.weight.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._words.weight.device

    def _tokenize(self, prompts: tuple[str, ...], cut: bool) -> TokenizedPrompts:
        tokens = super()._tokenize(prompts, cut)
        return tokens._replace(ids_CT=tokens.ids_CT[:, : int(tokens.end_C.max()) + 1])

    def embed(self, ids_CT: Tensor) -> Tensor:
        """Token embeddings (C, T, D)."""
        x_CTD: Tensor = self._words(ids_CT)
        return x_CTD

    def rows(self, x_CTD: Tensor, end_C: Tensor, shared: int = 0) -> Rows:
        """The input of the encoder; padding is not attended to."""
        return Rows.of(x_CTD, end_C)._replace(seen=self._seen(end_C, x_CTD.shape[1]))

    def features(
        self,
        rows: Rows,
        first: int = 1,
        *,
        edit: Edit | None = None,
        layers: Sequence[Layer] | None = None,
        norm: nn.Module | None = None,
        projection: TextProjection = None,
    ) -> Tensor:
        """Class features (C, E) in fp32, unnormalised, from embedded prompts."""
        if first != 1 or edit or layers:
            return super().features(rows, first, edit=edit, layers=layers)  # says that there are no layers
        mask_CT = rows.mask.long()
        with tower_precision(self.device):
            out = self._text.transformer(inputs_embeds=rows.words.to(self.dtype), attention_mask=mask_CT)
            return wide(self._text.proj(self._text.pooler(out, mask_CT)))
