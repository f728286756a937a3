"""What prompt methods share: how learned rows start, and how they enter prompts and layers of either tower.

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
"""What most prompts begin with, and the start of many learned rows."""
PLACE = "X"
"""A word that only holds a place."""


def random_rows(generator: torch.Generator, *shape: int, std: float = 0.02) -> nn.Parameter:
    """Learned rows that start from a normal distribution."""
    return nn.Parameter(torch.randn(shape, generator=generator) * std)


def random_linear(generator: torch.Generator, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A linear map with PyTorch's usual start, uniform within ±1/√inputs, drawn from a generator."""
    made = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        for tensor in made.parameters():
            tensor.copy_((torch.rand(tensor.shape, generator=generator) * 2 - 1) * inputs**-0.5)
    return made


@torch.no_grad()
def word_rows(clip: FrozenClip, words: str, count: int) -> Tensor:
    """Embeddings of the first `count` tokens of some words (M, D), in fp32."""
    ids = clip.text.tokenize([words]).ids_CT[:, 1 : 1 + count]
    return clip.text.embed(ids)[0].float()


def placeholders(count: int) -> str:
    """Words that only hold places."""
    return " ".join([PLACE] * count)


def prompt_tokens(clip: FrozenClip, classes: ClassList, template: str) -> TokenizedPrompts:
    """Token ids of prompts that hold places for learned words; too many of these are refused with what fits."""
    try:
        return tokens_of(clip, classes, template)
    except ClassListError:
        held = template.split().count(PLACE)
        fitting = held - clip.text.excess((classes.whole or classes).prompts(template))
        if not 0 < fitting < held:
            raise
        raise ConfigError(
            f"{held} learned words and the class names do not fit the text tower's {clip.text.positions.shape[0]} "
            f"tokens: use at most {fitting}."
        ) from None


def prompt_rows(clip: FrozenClip, classes: ClassList, template: str, slots: int) -> Rows:
    """Rows of prompts before layer 1, of which the first `slots` after the start token will be overwritten."""
    tokens = prompt_tokens(clip, classes, template)
    before = clip.text.tokenize([template.split("{}")[0]]).end_C
    if int(before[0]) - 1 < slots:
        raise ConfigError(
            f"{slots} learned words do not fit before the class name in {template!r}: use at most {int(before[0]) - 1}."
        )
    return clip.text.rows(clip.text.embed(tokens.ids_CT), tokens.end_C, tokens.shared)


def frozen_features(clip: FrozenClip, classes: ClassList, template: str) -> Tensor:
    """Plain CLIP's class features of unit length (C, E), by a template."""
    return unit(clip.text.features(prompt_rows(clip, classes, template, 0)))


def with_words(clip: FrozenClip, rows: Rows, words: Tensor, at: int = 1) -> Rows:
    """Put learned words (M, D), or one set per group or prompt, from place `at` on, with the positions of their places;
    by default after the start token.
    """
    positions = clip.text.positions[at : at + words.shape[-2]]
    return rows.put(at, (words + positions).reshape(-1, *words.shape[-2:]))


def deep_words(layers: Sequence[Tensor], at: int = 1) -> Callable[[int, Rows], Rows]:
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
    """The image feature (B, E), unnormalised, with learned rows `layers[i]` (P, D) at the end of the input of layer
    i + 1, from `rows@1`; those of the first layer pass the input norm. After the last of them they stay and evolve.
    `masks` as in `VisionTower.run`; `tower` are other layers than the image tower's own.
    """
    edit, kept = image_edit(clip, layers, rows_BND.shape[1])
    x_BD = clip.vision.run(rows_BND, edit=edit, masks=masks, layers=tower, read=[0], kept=kept)[:, 0]
    return clip.vision.read(x_BD)


def image_edit(
    clip: FrozenClip, layers: Sequence[Tensor], count: int
) -> tuple[Callable[[int, Tensor], Tensor], Callable[[int], int | None]]:
    """An edit for the image tower that puts learned rows after its `count` own ones, and which rows of a layer's output
    are read before the next ones come in.
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
