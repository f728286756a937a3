"""`Rows`: prompts inside the text tower, stored as rows that all prompts share and rows of each prompt.

Positions are counted from the first row of a prompt. Callers need not know which rows are shared.
Shapes: G groups of prompts with different shared rows (nearly always one), C prompts per group, S shared rows, T own
rows per prompt, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """A list of prompts, as embeddings or as hidden states."""

    past: Tensor
    """(G, S, D): rows that all prompts of a group begin with."""
    words: Tensor
    """(G * C, T, D): the remaining rows of each prompt."""
    end: Tensor
    """(G * C,): index of the row in `words` that each prompt is read at, usually its end token."""
    seen: Tensor | None = None
    """(G * C, T): which rows of `words` may be attended to; None: all."""

    @classmethod
    def of(cls, x_CTD: Tensor, end_C: Tensor) -> Rows:
        """Rows without shared ones."""
        return cls(x_CTD[:1, :0], x_CTD, end_C)

    def share(self, count: int) -> Rows:
        """The same rows, the first `count` of them shared; they must be equal in all prompts, and G = 1."""
        more = count - self.past.shape[1]
        if more <= 0:
            return self
        past = torch.cat([self.past, self.words[:1, :more]], dim=1)
        seen = None if self.seen is None else self.seen[:, more:]
        return Rows(past, self.words[:, more:], self.end - more, seen)

    def unshare(self, keep: int) -> Rows:
        """The same rows, only the first `keep` of them shared."""
        moved = self.past[:, keep:]
        if not moved.shape[1]:
            return self
        each, count = self._each(moved), moved.shape[1]
        words = torch.cat([each, self.words], dim=1)
        return Rows(self.past[:, :keep], words, self.end + count, self._more_seen(0, count))

    def grouped(self, groups: int) -> Rows:
        """The prompts repeated for `groups` groups, whose shared rows may then differ; G = 1."""
        words = self.words[None].expand(groups, -1, -1, -1).flatten(0, 1)
        seen = None if self.seen is None else self.seen.repeat(groups, 1)
        return Rows(self.past.expand(groups, -1, -1), words, self.end.repeat(groups), seen)

    def put(self, at: int, new: Tensor) -> Rows:
        """Overwrite the rows from position `at` on; `new` has one sequence, one per group, or one per prompt."""
        shared, count = self.past.shape[1], new.shape[1]
        if at + count <= shared and self._fits_past(new):
            return self._replace(past=_replaced(self.past, at, self._past(new), count))
        if at < shared:
            return self.unshare(at).put(at, new)
        return self._replace(words=_replaced(self.words, at - shared, self._each(new), count))

    def insert(self, at: int, new: Tensor) -> Rows:
        """Insert rows before position `at`; `new` is as in `put`."""
        shared, count = self.past.shape[1], new.shape[1]
        if at <= shared and shared and self._fits_past(new):
            return self._replace(past=_replaced(self.past, at, self._past(new), 0))
        if at < shared:
            return self.unshare(at).insert(at, new)
        end = torch.where(self.end >= at - shared, self.end + count, self.end)  # ends before `at` do not move
        words = _replaced(self.words, at - shared, self._each(new), 0)
        return self._replace(words=words, end=end, seen=self._more_seen(at - shared, count))

    def take(self, at: int, count: int) -> Tensor:
        """`count` rows from position `at` on: one sequence (per group) if all are shared, else one per prompt."""
        shared = self.past.shape[1]
        if at + count <= shared:
            return self.past[:, at : at + count]
        rows = self.unshare(min(at, shared))
        return rows.words[:, at - rows.past.shape[1] : at - rows.past.shape[1] + count]

    def chosen(self, prompts: Tensor | slice) -> Rows:
        """A selection of the prompts; G = 1."""
        seen = None if self.seen is None else self.seen[prompts]
        return self._replace(words=self.words[prompts], end=self.end[prompts], seen=seen)

    @property
    def mask(self) -> Tensor:
        """`seen` as a tensor in any case: (G * C, 0) if it is None."""
        return self.words.new_ones(self.words.shape[0], 0, dtype=torch.bool) if self.seen is None else self.seen

    def masked(self, mask: Tensor) -> Rows:
        """The same rows with `seen` from the `mask` of others."""
        return self._replace(seen=mask if mask.shape[1] else None)

    def to(self, dtype: torch.dtype) -> Rows:
        """The same rows in another type."""
        if self.past.dtype == self.words.dtype == dtype:
            return self
        return self._replace(past=self.past.to(dtype), words=self.words.to(dtype))

    def _more_seen(self, at: int, count: int) -> Tensor | None:
        """`seen` with `count` more rows before position `at`, which may be attended to."""
        if self.seen is None:
            return None
        return torch.cat([self.seen[:, :at], self.seen.new_ones(len(self.seen), count), self.seen[:, at:]], dim=1)

    def _fits_past(self, new: Tensor) -> bool:
        return new.shape[0] in (1, self.past.shape[0])

    def _past(self, new: Tensor) -> Tensor:
        return new.to(self.past.dtype).expand(self.past.shape[0], -1, -1)

    def _each(self, new: Tensor) -> Tensor:
        """One sequence per prompt."""
        new, prompts = new.to(self.words.dtype), self.words.shape[0]
        if new.shape[0] in (1, prompts):
            return new.expand(prompts, -1, -1)
        return new.repeat_interleave(prompts // new.shape[0], dim=0)


def _replaced(x: Tensor, at: int, new: Tensor, count: int) -> Tensor:
    """`x` with `count` rows from `at` on replaced by `new`."""
    return torch.cat([x[:, :at], new, x[:, at + count :]], dim=1)
