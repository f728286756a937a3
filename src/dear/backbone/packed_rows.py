"""The rows of prompts between two layers of the text tower: padded for edits, packed for the layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dear.backbone.layers import Layer
from dear.backbone.packed import Packing
from dear.backbone.rows import Rows

PackingFor = Callable[[Rows], Packing | None]


class LayerRows:
    """Rows between two layers. They are packed again only if an edit changes more than the shared rows."""

    def __init__(self, rows: Rows, dtype: torch.dtype, packing_for: PackingFor, *, causal: bool = True) -> None:
        """Start with the input of a layer.

        Args:
            rows: the input of a layer.
            dtype: type of the layers' input.
            packing_for: returns how rows are packed, or None if they are not.
            causal: whether a row attends only to itself and the rows before it.
        """
        self._rows, self._dtype, self._packing_for, self._causal = rows, dtype, packing_for, causal
        self._packing = packing_for(rows)
        self._line: Tensor | None = None
        """The prompts' own rows in packed form; None if they have changed since they were packed."""
        self._behind = False
        """Whether the packed rows are newer than those in `_rows`."""

    @property
    def rows(self) -> Rows:
        """All rows in padded form."""
        if self._behind:
            assert self._packing is not None
            assert self._line is not None
            self._rows, self._behind = self._rows._replace(words=self._packing.unpack(self._line)), False
        return self._rows

    def edited(self, rows: Rows) -> None:
        """Replace the rows by edited ones."""
        old, self._rows, self._behind = self.rows, rows, False
        if rows.words is not old.words or rows.end is not old.end:
            self._packing, self._line = self._packing_for(rows), None

    def through(self, layer: Layer) -> None:
        """Apply a layer to the rows."""
        if self._packing is None or not layer.by_row:
            rows = self.rows.to(self._dtype)
            self._rows, self._line = _through(layer, rows, self._causal), None
            return
        past = self._rows.past.to(self._dtype)
        self._line, self._behind = layer.run_packed(self._packed(self._packing), self._packing, past=past), True
        self._rows = self._rows._replace(past=layer.run(past, causal=True) if past.shape[1] else past)

    def end(self, layer: Layer) -> Tensor:
        """A layer's output for the end row of each prompt, (B, D), without computing the other rows."""
        if self._packing is not None and layer.by_row:
            line, past = self._packed(self._packing), self._rows.past.to(self._dtype)
            return self._packing.in_order(layer.run_packed(line, self._packing, past=past, ends=True))
        rows = self.rows.to(self._dtype)
        before, length, device = rows.past.shape[1], rows.words.shape[1], rows.words.device
        mask = None
        if self._causal:
            keys = torch.arange(before + length, device=device)
            mask = (keys <= rows.end[:, None] + before)[:, None, None]
        mask = _only_seen(rows, mask)
        queries = rows.words[torch.arange(rows.words.shape[0], device=device), rows.end][:, None]
        return layer.run(rows.words, queries=queries, past=rows.past, mask=mask)[:, 0]

    def _packed(self, packing: Packing) -> Tensor:
        return (packing.pack(self._rows.words) if self._line is None else self._line).to(self._dtype)


def _through(layer: Layer, rows: Rows, causal: bool) -> Rows:
    """Apply a layer to padded rows; rows that are not causal are never shared."""
    before, length = rows.past.shape[1], rows.words.shape[1]
    if not causal:
        return rows._replace(words=layer.run(rows.words, mask=_only_seen(rows, None)))
    if not before and rows.seen is None:
        return rows._replace(words=layer.run(rows.words, causal=True))
    mask = torch.ones(length, before + length, dtype=torch.bool, device=rows.words.device).tril(before)
    words = layer.run(rows.words, past=rows.past, mask=_only_seen(rows, mask))
    return rows._replace(words=words, past=layer.run(rows.past, causal=True) if before else rows.past)


def _only_seen(rows: Rows, mask: Tensor | None) -> Tensor | None:
    """The mask without the rows that may not be attended to."""
    if rows.seen is None:
        return mask
    seen = F.pad(rows.seen, (rows.past.shape[1], 0), value=True)[:, None, None]
    return seen if mask is None else mask & seen
