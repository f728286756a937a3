"""An image encoder that is independent of the class list, for methods whose logits are products with class features."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from dear.model.export import Baked
from dear.model.model import Model

CLOSE = 1e-5
"""Largest relative difference between logits and products of embeddings and class features."""


class ImageEncoder(NamedTuple):
    """Images to embeddings: `module(images) @ class_features(model).T` are the logits of every class list."""

    module: Baked
    place: int
    """Place of the class features among the tensors of the method's text."""

    def class_features(self, model: Model) -> Tensor:
        """(C, E) class features of a view of the model, for another class list."""
        with torch.no_grad():
            return torch.as_tensor(tree_flatten(model.text())[0][self.place])


@torch.no_grad()
def image_encoder(model: Model, images: Tensor) -> ImageEncoder | None:
    """The image encoder of a model, or None if its logits are not products of embeddings and class features.

    If logits are linear in the class features, the unit vectors as class features give the embedding itself. Whether
    they are is tried on some images, for the model's class list and for its first class alone.
    """
    leaves, spec = tree_flatten(model.text())
    count = len(model.required_classes().names)
    views = (model, model.for_classes(model.required_classes().names[:1]))
    for place, leaf in enumerate(leaves):
        if leaf.ndim != 2 or leaf.shape[0] != count or not leaf.is_floating_point():
            continue
        unit_vectors = [
            torch.eye(one.shape[1], dtype=one.dtype, device=one.device) if one.shape == leaf.shape else one
            for one in leaves
        ]
        module = Baked(model.clip, model.method, tree_unflatten(unit_vectors, spec), model.names()).eval()
        found = ImageEncoder(module, place)
        if _fits(found, views, images):
            return found
    return None


def _fits(encoder: ImageEncoder, views: tuple[Model, ...], images: Tensor) -> bool:
    """Whether the products are the logits of all views."""
    try:
        embedding_BE = encoder.module(images)
        return all(_close(embedding_BE @ encoder.class_features(one).T, one(images).logits) for one in views)
    except (RuntimeError, ValueError, IndexError, TypeError):  # the method needs more of a class than its features
        return False


def _close(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and bool((ours - theirs).abs().max() <= CLOSE * theirs.abs().max().clamp_min(1))
