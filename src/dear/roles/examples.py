"""Images that a head responds to most and least, along the first phrase that describes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from dear.backbone.clip import FrozenClip
from dear.data.images import ImageList, image_batches
from dear.roles.capture import contributions
from dear.roles.page import Examples
from dear.roles.textspan import Array, Span


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
    """Read the images once more and keep, for every described head, the extremes of its response."""
    described = [(place, span.picks[0]) for place, span in zip(places, spans, strict=True) if span.picks]
    directions_ME = torch.from_numpy(texts_TE[[pick for _, pick in described]]).float()
    layer_rows = torch.tensor([layer - 1 for (layer, _), _ in described])
    head_rows = torch.tensor([head for (_, head), _ in described])
    indices: list[int] = []
    responses = []
    for group in image_batches(images, clip.preprocess_eval, size=32):
        if group.images is not None:
            heads_BLHE = contributions(clip, group.images.to(clip.device)).heads_BLHE.cpu()
            responses.append(torch.einsum("bme,me->bm", heads_BLHE[:, layer_rows, head_rows], directions_ME))
            indices += group.indices
        progress(group.stop)
    order_NM = np.argsort(torch.cat(responses).numpy(), axis=0, kind="stable")
    return {
        place: Examples(
            most=tuple(images.open(indices[row]) for row in order_NM[::-1][:most, column]),
            least=tuple(images.open(indices[row]) for row in order_NM[:most, column]),
        )
        for column, (place, _) in enumerate(described)
    }
