"""The rows of prompts inside the text tower: what prompts share, what each has of its own, where each ends.

Places are absolute, counted from the first row of a prompt; whether a row is shared is the business of `Rows` alone.
Shapes: G groups of prompts, each with a past of its own (nearly always one), C prompts per group, S shared rows, T own
rows, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """A list of prompts as rows."""

    past: Tensor
    """(G, S, D): rows that all prompts of a group begin with."""
    words: Tensor
    """(G * C, T, D): rows of each prompt after those."""
    end: Tensor
    """(G * C,): place of each prompt's end row in `words`."""

    @classmethod
    def of(cls, x_CTD: Tensor, end_C: Tensor) -> Rows:
        """Rows of which none is shared."""
        return cls(x_CTD[:1, :0], x_CTD, end_C)

    def share(self, count: int) -> Rows:
        """The same rows with the first `count`, which must be equal in all prompts, shared; G = 1."""
        more = count - self.past.shape[1]
        if more <= 0:
            return self
        past = torch.cat([self.past, self.words[:1, :more]], dim=1)
        return Rows(past, self.words[:, more:], self.end - more)

    def unshare(self, keep: int) -> Rows:
        """The same rows with only the first `keep` shared."""
        moved = self.past[:, keep:]
        if not moved.shape[1]:
            return self
        each = self._each(moved)
        return Rows(self.past[:, :keep], torch.cat([each, self.words], dim=1), self.end + moved.shape[1])

    def grouped(self, groups: int) -> Rows:
        """The same prompts once for each of `groups` groups, whose pasts may then differ; G = 1."""
        words = self.words[None].expand(groups, -1, -1, -1).flatten(0, 1)
        return Rows(self.past.expand(groups, -1, -1), words, self.end.repeat(groups))

    def put(self, at: int, new: Tensor) -> Rows:
        """Overwrite the rows from place `at` on; `new` has one sequence, one per group, or one per prompt."""
        shared, count = self.past.shape[1], new.shape[1]
        if at + count <= shared and self._fits_past(new):
            return self._replace(past=_replaced(self.past, at, self._past(new), count))
        if at < shared:
            return self.unshare(at).put(at, new)
        return self._replace(words=_replaced(self.words, at - shared, self._each(new), count))

    def insert(self, at: int, new: Tensor) -> Rows:
        """Put rows before place `at`; `new` as for `put`."""
        shared, count = self.past.shape[1], new.shape[1]
        if at <= shared and shared and self._fits_past(new):
            return self._replace(past=_replaced(self.past, at, self._past(new), 0))
        if at < shared:
            return self.unshare(at).insert(at, new)
        end = torch.where(self.end >= at - shared, self.end + count, self.end)  # a prompt that ended before stays
        return self._replace(words=_replaced(self.words, at - shared, self._each(new), 0), end=end)

    def take(self, at: int, count: int) -> Tensor:
        """`count` rows from place `at` on: one sequence (per group) if all are shared, else one per prompt."""
        shared = self.past.shape[1]
        if at + count <= shared:
            return self.past[:, at : at + count]
        rows = self.unshare(min(at, shared))
        return rows.words[:, at - rows.past.shape[1] : at - rows.past.shape[1] + count]

    def chosen(self, kept: Tensor | slice) -> Rows:
        """Some of the prompts; G = 1."""
        return self._replace(words=self.words[kept], end=self.end[kept])

    def to(self, dtype: torch.dtype) -> Rows:
        """The same rows in another type."""
        if self.past.dtype == self.words.dtype == dtype:
            return self
        return self._replace(past=self.past.to(dtype), words=self.words.to(dtype))

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
    """`x` with `new` in the place of `count` rows from `at` on."""
    return torch.cat([x[:, :at], new, x[:, at + count :]], dim=1)
