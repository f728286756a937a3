"""Learned words at the beginning of a prompt: how many there are and which words they start from.

Shapes: M learned words, D text width.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from dear.backbone.clip import FrozenClip
from dear.config import Settings
from dear.methods.parts.tokens import WORDS, placeholders, random_rows, word_rows

MOST_WORDS = 4
"""Longer contexts of MaPLe and its successors start at random, as published."""


class ContextConfig(Settings):
    """Settings of CoOp's context: all words before the class name are learned."""

    words: str = WORDS
    """Words that the context starts from, as many as it has; "" for a random start."""
    context: int = Field(default=16, ge=1, le=64)
    """Number of learned words, if `words` is empty."""

    @property
    def start(self) -> str:
        """The words to start from, or ""."""
        return self.words

    @property
    def length(self) -> int:
        """Number of learned words."""
        return len(self.start.split()) or self.context


def context_start(clip: FrozenClip, config: ContextConfig, generator: torch.Generator) -> nn.Parameter:
    """Initial context (M, D): embeddings of words, or random rows."""
    if config.start:
        return nn.Parameter(word_rows(clip, config.start, config.length))
    return random_rows(generator, config.length, clip.text.width)


def context_template(config: ContextConfig) -> str:
    """The prompt whose first words are overwritten by a context."""
    return f"{config.start or placeholders(config.length)} {{}}."


class SlotConfig(Settings):
    """Settings of MaPLe's prompts: only the first words are learned."""

    words: str = WORDS
    """Words that the prompt begins with, the first of which are learned; "" for a random start."""


def slot_template(words: str, count: int) -> str:
    """The prompt whose first `count` words are learned; further words stay as they are."""
    return f"{words if words and count <= MOST_WORDS else placeholders(count)} {{}}."


def slot_start(clip: FrozenClip, words: str, count: int, generator: torch.Generator) -> nn.Parameter:
    """Initial learned words: embeddings of `words`, or random rows if there are none or too many are learned."""
    if words and count <= MOST_WORDS:
        return nn.Parameter(word_rows(clip, words, count))
    return random_rows(generator, count, clip.text.width)
