"""Learned rows of prompt methods: initial values, and insertion into prompts and layers of both towers.

Shapes: M learned rows per prompt, P per layer of the image tower, C classes, T tokens, D width, B images, N image rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.layers import Layer
from dear.backbone.rows import Rows
from dear.backbone.text import TokenizedPrompts
from dear.data.prompts import ClassList
from dear.errors import ClassListError, ConfigError
from dear.methods.base import tokens_of, unit

WORDS = "a photo of a"
"""First words of most prompts, and initial values of many learned rows."""
PLACE = "X"
"""A placeholder word."""


def random_rows(generator: torch.Generator, *shape: int, std: float = 0.02) -> nn.Parameter:
    """Learned rows with normal initial values."""
    return nn.Parameter(torch.randn(shape, generator=generator) * std)


def random_linear(generator: torch.Generator, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A linear map with PyTorch's default initialisation, uniform within ±1/√inputs, from a generator."""
    made = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        for tensor in made.parameters():
            tensor.copy_((torch.rand(tensor.shape, generator=generator) * 2 - 1) * inputs**-0.5)
    return made


@torch.no_grad()
def word_rows(clip: FrozenClip, words: str, count: int) -> Tensor:
    """Embeddings of the first `count` tokens of some words (M, D), in fp32."""
    first = clip.text.first
    ids = clip.text.tokenize([words]).ids_CT[:, first : first + count]
    return clip.text.embed(ids)[0].float()


def placeholders(count: int) -> str:
    """`count` placeholder words."""
    return " ".join([PLACE] * count)


def prompt_tokens(clip: FrozenClip, classes: ClassList, template: str) -> TokenizedPrompts:
    """Token ids of prompts with placeholders for learned words; the error for too many says how many fit."""
    if clip.text.place != PLACE:
        template = " ".join(clip.text.place if word == PLACE else word for word in template.split(" "))
    try:
        return tokens_of(clip, classes, template)
    except ClassListError:
        learned = template.split().count(clip.text.place)
        fitting = learned - clip.text.excess((classes.whole or classes).prompts(template))
        if not 0 < fitting < learned:
            raise
        raise ConfigError(
            f"{learned} learned words and the class names do not fit the text tower's {clip.text.context} "
            f"tokens: use at most {fitting}."
        ) from None


def prompt_rows(clip: FrozenClip, classes: ClassList, template: str, slots: int) -> Rows:
    """Rows of prompts before layer 1; the first `slots` after the start token will be overwritten."""
    tokens = prompt_tokens(clip, classes, template)
    before = clip.text.count(template.split("{}")[0])
    if before < slots:
        raise ConfigError(
            f"{slots} learned words do not fit before the class name in {template!r}: use at most {before}."
        )
    return clip.text.rows(clip.text.embed(tokens.ids_CT), tokens.end_C, tokens.shared)


def frozen_features(clip: FrozenClip, classes: ClassList, template: str) -> Tensor:
    """Plain CLIP's class features of unit length (C, E), by a template."""
    return unit(clip.text.features(prompt_rows(clip, classes, template, 0)))


def with_words(clip: FrozenClip, rows: Rows, words: Tensor, at: int | None = None) -> Rows:
    """Insert learned words (M, D), or one set per group or prompt, from row `at` on, with positional embeddings.

    By default they come first, after the start token if there is one.
    """
    at = clip.text.first if at is None else at
    positions = clip.text.positions[at : at + words.shape[-2]]
    return rows.put(at, (words + positions).reshape(-1, *words.shape[-2:]))


def deep_words(layers: Sequence[Tensor], at: int) -> Callable[[int, Rows], Rows]:
    """An edit for the text tower: before layer i + 1 the rows from `at` on become `layers[i]`, from layer 2 on."""

    def edit(layer: int, rows: Rows) -> Rows:
        return rows.put(at, layers[layer - 1][None]) if 1 < layer <= len(layers) else rows

    return edit


def prompted_image(
    clip: FrozenClip,
    rows_BND: Tensor,
    layers: Sequence[Tensor],
    masks: Callable[[int], Tensor | None] | None = None,
    tower: Sequence[Layer] | None = None,
) -> Tensor:
    """The unnormalised image feature (B, E), from `rows@1`, with learned rows at the end of the input of each layer.

    Layer i + 1 gets `layers[i]` (P, D); the rows of the first layer pass the input norm. In layers after the last of
    them, the rows are passed on. `masks` as in `VisionTower.run`; `tower` replaces the image tower's layers.
    """
    edit, kept = image_edit(clip, layers, rows_BND.shape[1])
    pooled = clip.vision.pooled
    return clip.vision.feature(clip.vision.run(rows_BND, edit=edit, masks=masks, layers=tower, read=pooled, kept=kept))


def image_edit(
    clip: FrozenClip, layers: Sequence[Tensor], count: int
) -> tuple[Callable[[int, Tensor], Tensor], Callable[[int], int | None]]:
    """An edit for the image tower that appends learned rows to its `count` own rows.

    Also returns a function with the number of output rows of a layer that the next layer uses.
    """

    def edit(layer: int, x_BLD: Tensor) -> Tensor:
        if layer > len(layers):
            return x_BLD
        fresh = clip.vision.norm_in(layers[0]) if layer == 1 else layers[layer - 1]
        each = fresh.to(x_BLD.dtype).expand(x_BLD.shape[0], -1, -1)
        return torch.cat([x_BLD[:, :count], each], dim=1)

    def kept(layer: int) -> int | None:
        return count if layer < len(layers) else None

    return edit, kept
