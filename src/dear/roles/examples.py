"""Example images of each head: those with the strongest and weakest response along the head's first phrase.

Shapes: N images, B images of a batch, M described heads, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from dear.backbone.clip import FrozenClip
from dear.data.images import ImageList, image_batches
from dear.errors import ImageError
from dear.roles.capture import contributions
from dear.roles.textspan import Array, Span

THUMBNAIL = 72


@dataclass(frozen=True)
class Example:
    """Thumbnail and name of an image."""

    name: str
    thumbnail: Image.Image


@dataclass(frozen=True)
class Examples:
    """Images with the strongest and the weakest response of a head along its first phrase, extremes first."""

    most: tuple[Example, ...]
    least: tuple[Example, ...]


def head_examples(
    clip: FrozenClip,
    images: ImageList,
    places: Sequence[tuple[int, int]],
    spans: Sequence[Span],
    texts_TE: Array,
    *,
    most: int = 4,
    progress: Callable[[int], None] = lambda position: None,
) -> dict[tuple[int, int], Examples]:
    """Read the images again and return the examples of every head that has a phrase."""
    described = [(place, span.picks[0]) for place, span in zip(places, spans, strict=True) if span.picks]
    if not described:
        return {}
    directions_ME = torch.from_numpy(texts_TE[[pick for _, pick in described]]).float()
    layer_rows = torch.tensor([layer - 1 for (layer, _), _ in described])
    head_rows = torch.tensor([head for (_, head), _ in described])
    indices: list[int] = []
    responses = [torch.zeros(0, len(described))]
    for group in image_batches(images, clip.preprocess_eval, size=32, what="finding examples"):
        if group.images is not None:
            heads_BLHE = contributions(clip, group.images.to(clip.device)).heads_BLHE.cpu()
            responses.append(torch.einsum("bme,me->bm", heads_BLHE[:, layer_rows, head_rows], directions_ME))
            indices += group.indices
        progress(group.stop)
    order_NM = np.argsort(torch.cat(responses).numpy(), axis=0, kind="stable")
    shown = min(most, len(indices) // 2)  # no image is in both lists
    thumbnails: dict[int, Example | None] = {}

    def example(row: int) -> Example | None:
        index = indices[row]
        if index not in thumbnails:
            thumbnails[index] = _thumbnail(images, index)
        return thumbnails[index]

    def examples(rows: Iterable[int]) -> tuple[Example, ...]:
        return tuple(one for one in map(example, rows) if one is not None)

    return {
        place: Examples(
            most=examples(order_NM[::-1][:shown, column].tolist()), least=examples(order_NM[:shown, column].tolist())
        )
        for column, (place, _) in enumerate(described)
    }


def _thumbnail(images: ImageList, index: int) -> Example | None:
    """Thumbnail of an image; None if the image can no longer be read."""
    try:
        small = images.open(index)
    except ImageError:
        return None
    small.thumbnail((2 * THUMBNAIL, THUMBNAIL))
    return Example(images.names[index], small)
