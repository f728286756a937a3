"""The frozen text tower, run layer by layer so that a method can edit the input of each layer.

In a causal tower, exact savings are possible. Positions after the last end token are dropped. Rows that all prompts
begin with are computed once, and every prompt attends to them. Prompts of different lengths are packed
(`dear.backbone.packed`); edits still see padded rows. In other towers, words attend to the padding after them, so all
positions are computed. Every tower computes its last layer only for the row that it is read at.
Shapes: C prompts, T tokens, D text width, E joint embedding. Layers are counted from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dear.backbone.layer_kinds import layer_of
from dear.backbone.layers import Layer
from dear.backbone.packed import Packing, packing_of
from dear.backbone.packed_rows import LayerRows
from dear.backbone.precision import tower_precision, wide
from dear.backbone.rows import Rows
from dear.errors import BackboneError, ClassListError
from dear.progress.stages import stage

Edit = Callable[[int, Rows], Rows]
"""Function from a layer's number and its input to a changed input."""
TextProjection = Tensor | nn.Linear | None
CACHED_TOKENIZATIONS = 16
PLACES = ("X", "a", "the", "photo")
"""Words that are tried as placeholders."""


class TokenizedPrompts(NamedTuple):
    """Token ids, the position of each prompt's last token, and the number of tokens that all begin with.

    In a causal tower, the ids end with the longest prompt; in others they fill the context, and none are shared.
    """

    ids_CT: Tensor
    end_C: Tensor
    shared: int

    def part(self, at: slice) -> TokenizedPrompts:
        """A part of the prompts; length and number of shared tokens stay those of the whole list."""
        return TokenizedPrompts(self.ids_CT[at], self.end_C[at], self.shared)


class TextTower:
    """A view of an OpenCLIP text transformer. It has no weights of its own.

    It is read at the end token, the first or the last row (`pool`), or at a class row after the prompt.
    """

    def __init__(self, text: Any, tokenizer: Callable[..., Tensor], *, pool: str, eos_id: int) -> None:
        self._text = text
        self._tokenizer = tokenizer
        self._pool = pool
        self._eos_id = eos_id
        self._class_row = getattr(text, "cls_emb", None) is not None
        self._tokens = lru_cache(maxsize=CACHED_TOKENIZATIONS)(self._tokenize)
        self._equal = lru_cache(maxsize=CACHED_TOKENIZATIONS)(self._find_equal)

    @property
    def has_layers(self) -> bool:
        """Whether the layers can be run one by one."""
        return all(layer_of(block) for block in self.blocks)

    @property
    def causal(self) -> bool:
        """Whether a row attends only to itself and the rows before it."""
        return self._text.attn_mask is not None

    @property
    def context(self) -> int:
        """The largest number of tokens."""
        return int(self.positions.shape[0]) - self._class_row

    @cached_property
    def place(self) -> str:
        """A word that is one token, as a placeholder."""
        for word in PLACES:
            tried = [word, f"{word} {word}", f"{word} {word} {word}"]
            one, two, three = self._ends(self._tokenizer(tried, context_length=self.context)).tolist()
            if two - one == three - two == 1:
                return word
        raise BackboneError("The tokenizer divides every word into several tokens, so that no words can be learned.")

    @cached_property
    def first(self) -> int:
        """The position of the first word: 1 after a start token, else 0."""
        nothing, word = self._tokenizer(["", self.place], context_length=self.context)
        return int((nothing != word).int().argmax())

    def count(self, words: str) -> int:
        """The number of tokens of some words."""
        end, one = self._ends(self._tokenizer([words, self.place], context_length=self.context)).tolist()
        return max(0, int(end - one + 1))

    @property
    def layers(self) -> list[Layer]:
        """All layers, which a method may replace."""
        return [layer for block in self.blocks if (layer := layer_of(block))]

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules of all layers, for methods that copy them."""
        return list(self._text.transformer.resblocks)

    @property
    def final_norm(self) -> nn.Module:
        """The final layer norm, ln_final."""
        norm: nn.Module = self._text.ln_final
        return norm

    @property
    def projection(self) -> TextProjection:
        """The frozen projection, (D, E), or a module; None if there is none."""
        projection: TextProjection = self._text.text_projection
        return projection

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self._text.transformer.resblocks)

    @property
    def width(self) -> int:
        """D."""
        return int(self._text.positional_embedding.shape[1])

    @property
    def positions(self) -> Tensor:
        """Position embeddings, one per position of the context."""
        positions: Tensor = self._text.positional_embedding
        return positions

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tower's activations."""
        dtype: torch.dtype = self._text.transformer.get_cast_dtype()
        return dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.positions.device

    def tokenize(self, prompts: Sequence[str], *, cut: bool = False) -> TokenizedPrompts:
        """Tokenize prompts, padded to the longest; one that exceeds the context is an error, or truncated (`cut`)."""
        ids_CT, end_C, shared = self._tokens(tuple(prompts), cut)
        return TokenizedPrompts(ids_CT.to(self.device), end_C.to(self.device), shared)

    def _tokenize(self, prompts: tuple[str, ...], cut: bool) -> TokenizedPrompts:
        context = self.context
        ids_CT = self._tokenizer(list(prompts), context_length=context)
        end_C = self._end_positions(ids_CT)
        full = [prompt for prompt, end in zip(prompts, end_C.tolist(), strict=True) if end >= context - 2]
        if full and not cut:
            self._refuse_cut(full, context)
        if not self.causal:
            return TokenizedPrompts(ids_CT, end_C, 0)
        same_T = (ids_CT == ids_CT[:1]).all(0).int()
        shared = min(int(same_T.cumprod(0).sum()), int(end_C.min()))
        return TokenizedPrompts(ids_CT if self._class_row else ids_CT[:, : int(end_C.max()) + 1], end_C, shared)

    def equal_prompts(self, prompts: Sequence[str]) -> tuple[int, int] | None:
        """The places of the first two prompts that have the same tokens; None if all differ."""
        return self._equal(tuple(prompts))

    def _find_equal(self, prompts: tuple[str, ...]) -> tuple[int, int] | None:
        seen: dict[tuple[int, ...], int] = {}
        for place, ids in enumerate(self._tokens(prompts, False).ids_CT.tolist()):
            if (first := seen.setdefault(tuple(ids), place)) != place:
                return first, place
        return None

    def excess(self, prompts: Sequence[str]) -> int:
        """By how many tokens the longest prompt exceeds the context; zero or negative if all fit."""
        return max(self._whole_ends(prompts)) + 1 + self._reserved - self.context

    def _whole_ends(self, prompts: Sequence[str]) -> list[int]:
        """End positions of untruncated prompts, which may be longer than the context."""
        ends: list[int] = self._end_positions(self._tokenizer(list(prompts), context_length=16 * self.context)).tolist()
        return ends

    def _refuse_cut(self, prompts: Sequence[str], context: int) -> None:
        """Raise `ClassListError` if prompts that fill the context are in fact longer than it."""
        ends = self._whole_ends(prompts)
        if cut := [prompt for prompt, end in zip(prompts, ends, strict=True) if end >= context - self._reserved]:
            raise ClassListError(
                f"{len(cut)} prompt(s) do not fit the text tower's {context} tokens, the first is "
                f"'{cut[0][:60]}…': shorten the class name or the template."
            )

    def _end_positions(self, ids_CT: Tensor) -> Tensor:
        return self._ends(ids_CT).clamp(min=0)

    def _ends(self, ids_CT: Tensor) -> Tensor:
        """The position of each prompt's last token, -1 if there is none: its end token, or the last before padding."""
        if self._pool in ("argmax", "eos"):
            return ids_CT.argmax(-1) if self._pool == "argmax" else (ids_CT == self._eos_id).int().argmax(-1)
        differs_CT = ids_CT != self._tokenizer([""], context_length=ids_CT.shape[1])
        places_T = torch.arange(1, ids_CT.shape[1] + 1)
        return (differs_CT * places_T).amax(-1) - 1

    @property
    def _reserved(self) -> int:
        """Number of tokens after the padding: 1 if the tokenizer puts a class token in the last position."""
        if self._pool in ("argmax", "eos"):
            return 0
        nothing = self._tokenizer([""], context_length=self.context)[0]
        return int(nothing[-1] != nothing[-2])

    def embed(self, ids_CT: Tensor) -> Tensor:
        """Token embeddings (C, T, D), without positions."""
        x_CTD: Tensor = self._text.token_embedding(ids_CT).to(self.dtype)
        return x_CTD

    def rows(self, x_CTD: Tensor, end_C: Tensor, shared: int = 0) -> Rows:
        """The input of layer 1: embeddings with positions, the first `shared` rows the same in all prompts."""
        length = x_CTD.shape[1]
        x_CTD = x_CTD.to(self.dtype) + self.positions[:length].to(self.dtype)
        if self._class_row:
            last_D = self._text.cls_emb.to(self.dtype) + self.positions[-1].to(self.dtype)
            x_CTD = torch.cat([x_CTD, last_D.expand(x_CTD.shape[0], 1, -1)], dim=1)
            end_C, seen = torch.full_like(end_C, length), self._seen(end_C, length + 1)
            return Rows.of(x_CTD, end_C)._replace(seen=seen).share(shared)
        at_C = {"first": torch.zeros_like(end_C), "last": torch.full_like(end_C, length - 1)}.get(self._pool, end_C)
        rows = Rows.of(x_CTD, at_C)
        if getattr(self._text, "use_pad_mask", False):
            rows = rows._replace(seen=self._seen(end_C, length))
        return rows.share(self.shared(shared))

    def shared(self, count: int) -> int:
        """How many of `count` equal first rows can be computed once for all prompts: in a causal tower all, else 0."""
        return count if self.causal else 0

    def _seen(self, end_C: Tensor, length: int) -> Tensor:
        """(C, length): which rows may be attended to, if padding is masked.

        CoCa's published weights were trained with a mask that is one row off: the class row attends to one row of
        padding, and not to itself.
        """
        seen_CT = torch.arange(length, device=end_C.device) <= end_C[:, None] + self._off
        if self._class_row and not self._off:
            seen_CT[:, -1] = True
        return seen_CT

    @property
    def _off(self) -> int:
        return int(self._class_row and not self._text.correct_cls_mask)

    def run(
        self,
        rows: Rows,
        first: int = 1,
        last: int | None = None,
        *,
        edit: Edit | None = None,
        layers: Sequence[Layer] | None = None,
    ) -> Rows:
        """Rows after layers `first`..`last` (by default all); `edit` changes the input of each layer."""
        layers = self.layers if layers is None else layers
        return self._through_layers(rows, layers[: len(layers) if last is None else last], first, edit).rows

    def _through_layers(self, rows: Rows, layers: Sequence[Layer], first: int, edit: Edit | None) -> LayerRows:
        """Run all layers from `first` on."""
        between = LayerRows(rows, self.dtype, self._packing, causal=self.causal)
        for number in range(first, len(layers) + 1):
            if edit:
                between.edited(edit(number, between.rows).to(self.dtype))
            with tower_precision(self.device):
                between.through(layers[number - 1])
        return between

    def _packing(self, rows: Rows) -> Packing | None:
        """How to pack rows; None if packing saves too little or would lose rows that are attended to."""
        if not self.causal or rows.seen is not None:
            return None
        return packing_of(rows.end, rows.words.shape[1])

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
        """Class features (C, E) in fp32, unnormalised, from the input of layer `first`.

        The last layer is computed for the end rows only.
        """
        layers = self.layers if layers is None else layers
        between = self._through_layers(rows, layers[:-1], first, edit)
        if edit:
            between.edited(edit(len(layers), between.rows).to(self.dtype))
        with tower_precision(self.device):
            end = (norm or self._text.ln_final)(between.end(layers[-1]).to(self.dtype))
        return self._project(wide(end), projection)

    def _project(self, end_CD: Tensor, projection: TextProjection) -> Tensor:
        frozen = self._text.text_projection if projection is None else projection
        if frozen is None:
            return end_CD
        if isinstance(frozen, nn.Linear):
            bias = None if frozen.bias is None else wide(frozen.bias)
            return nn.functional.linear(end_CD, wide(frozen.weight), bias)
        return end_CD @ wide(frozen)

    def stock(self, ids_CT: Tensor) -> Tensor:
        """Class features (C, E) in fp32, unnormalised, by the tower's own code; ids fill the context."""
        stock = self._text.encode_text if hasattr(self._text, "encode_text") else self._text
        return wide(stock(ids_CT))

    @torch.no_grad()
    def encode(self, prompts: Sequence[str], *, batch: int = 256, cut: bool = False) -> Tensor:
        """Plain CLIP's text features (C, E), unnormalised; prompts are batched by length to save padding."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        features: dict[int, Tensor] = {}
        with stage("encoding texts", len(order)) as advance:
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                tokens = self.tokenize([prompts[index] for index in chosen], cut=cut)
                encoded_CE = self._encoded(tokens)
                features.update(zip(chosen, encoded_CE, strict=True))
                advance(len(features))
        return torch.stack([features[index] for index in range(len(prompts))])

    def _encoded(self, tokens: TokenizedPrompts) -> Tensor:
        return self.features(self.rows(self.embed(tokens.ids_CT), tokens.end_C, tokens.shared))
