"""Named image tensors of the frozen CLIP. They do not depend on training, so they are computed once and cached.

These names exist:
  rows@J         (N, D)   input of image layer J; rows@0 comes before the input norm
  feature        (E,)     the image feature, unnormalised
  projected      (M, E)   `VisionTower.local`: the feature, and each patch after the last layer read by itself
  cls_attention  (M,)     `VisionTower.attention`: how much the feature attends to itself and to each patch
  terms:GROUPS   (G+1, E) contribution of each group of heads to the unit feature, then of all other parts together;
                          GROUPS is written LAYER.HEAD, as in "9.0,9.3;10.1"
Two prefixes make further names. plain:NAME is NAME of the image without augmentation. COMPANION:image is the image
feature of a method's companion model. `Model.states` computes both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dear.backbone.head_contributions import group_terms, parse_groups
from dear.backbone.vision import VisionTower
from dear.errors import ConfigError

States = dict[str, Tensor]
PLAIN = "plain:"
TERMS = "terms:"
_ROWS = re.compile(r"rows@(\d+)")


def layer_named(name: str) -> int | None:
    """J of "rows@J", or None for other names."""
    match = _ROWS.fullmatch(name)
    return int(match.group(1)) if match else None


def check_names(vision: VisionTower, names: Sequence[str]) -> None:
    """Raise `ConfigError` for a name that is not in the list above."""
    for name in names:
        layer = layer_named(name)
        known = name in ("feature", "projected", "cls_attention") or name.startswith(TERMS)
        if not known and (layer is None or layer > vision.depth):
            raise ConfigError(f"An image tower of {vision.depth} layers has no tensor {name!r}.")
        if name.startswith(TERMS):
            check_heads(vision, parse_groups(name.removeprefix(TERMS)))


def check_heads(vision: VisionTower, groups: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Raise `ConfigError` for a head (layer, head) that the tower does not have."""
    layers = vision.layers
    for layer, head in (pair for group in groups for pair in group):
        if not (1 <= layer <= len(layers) and 0 <= head < layers[layer - 1].heads):
            raise ConfigError(f"An image tower of {vision.depth} layers has no head {layer}.{head}.")


def shape_of(vision: VisionTower, name: str) -> tuple[int, ...]:
    """Shape of a named tensor for one image."""
    check_names(vision, [name])
    if name == "feature":
        return (vision.embed_dim,)
    if name == "projected":
        return 1 + vision.rows - vision.prefix, vision.embed_dim
    if name == "cls_attention":
        return (1 + vision.rows - vision.prefix,)
    if name.startswith(TERMS):
        return len(parse_groups(name.removeprefix(TERMS))) + 1, vision.embed_dim
    return vision.rows, vision.width


@torch.no_grad()
def frozen(vision: VisionTower, images: Tensor, names: Sequence[str]) -> States:
    """The tensors `names` of preprocessed images, computed in one pass."""
    vision.check(images)
    if not vision.has_layers and set(names) <= {"feature"}:
        return {name: vision.stock(images) for name in names}
    return complete(vision, {"rows@0": vision.embed(images)}, names)


@torch.no_grad()
def complete(vision: VisionTower, known: Mapping[str, Tensor], names: Sequence[str]) -> States:
    """The tensors `names`; missing ones are computed from the nearest known `rows@J`."""
    check_names(vision, names)
    tensors = dict(known)
    for layer in sorted(layer for name in names if (layer := layer_named(name)) is not None and name not in tensors):
        tensors[f"rows@{layer}"] = _rows(vision, tensors, layer)
    if "feature" in names and "feature" not in tensors and not {"projected", "cls_attention"} & set(names):
        start = _nearest(tensors, vision.depth)
        rows = _rows(vision, tensors, max(start, 1))
        tensors["feature"] = vision.feature(vision.run(rows, max(start, 1), read=vision.pooled))
    if any(name not in tensors for name in names if name in ("feature", "projected", "cls_attention")):
        before = _rows(vision, tensors, vision.depth)
        after = vision.run(before, vision.depth)
        projected, weights = vision.local(after), vision.attention(before, after)
        tensors = {"projected": projected, "feature": projected[:, 0], "cls_attention": weights, **tensors}
    for name in (name for name in names if name.startswith(TERMS) and name not in tensors):
        tensors[name] = group_terms(vision, _rows(vision, tensors, 1), parse_groups(name.removeprefix(TERMS)))
    return {name: tensors[name] for name in names}


def _rows(vision: VisionTower, tensors: Mapping[str, Tensor], layer: int) -> Tensor:
    start = _nearest(tensors, layer)
    x = tensors[f"rows@{start}"].to(vision.dtype)
    if start == layer:
        return x
    if start == 0:
        x, start = vision.norm_in(x), 1
    return vision.run(x, start, layer - 1)


def _nearest(tensors: Mapping[str, Tensor], layer: int) -> int:
    known = [n for name in tensors if (n := layer_named(name)) is not None and n <= layer]
    if not known:
        raise ConfigError(
            f"The input of image layer {layer} cannot be computed from {', '.join(tensors) or 'nothing'}."
        )
    return max(known)
