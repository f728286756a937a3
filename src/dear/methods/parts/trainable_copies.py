"""Trainable copies of a tower's last layers; the tower itself is not changed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dear.backbone.layer_kinds import layer_of
from dear.backbone.layers import Layer, Part
from dear.backbone.precision import wide

M = TypeVar("M", bound=nn.Module)


def own_copy(module: M) -> M:
    """A trainable copy of a module in fp32."""
    made = copy.deepcopy(module)
    for parameter in made.parameters():
        parameter.data = wide(parameter.data)
        parameter.requires_grad_(True)
    return made


def own_tensor(tensor: Tensor) -> nn.Parameter:
    """A trainable copy of a tensor in fp32."""
    return nn.Parameter(wide(tensor.detach().clone()))


def own_blocks(blocks: Sequence[nn.Module], first: int) -> nn.ModuleDict:
    """Copies of the blocks from layer `first` on, by index from 0, as OpenAI names them."""
    return nn.ModuleDict({str(place): own_copy(blocks[place]) for place in range(first - 1, len(blocks))})


def with_blocks(layers: Sequence[Layer], blocks: nn.ModuleDict) -> list[Layer]:
    """A tower's layers, with copied blocks, by index from 0, instead of its own."""
    return [own_layer(blocks[str(place)], one) if str(place) in blocks else one for place, one in enumerate(layers)]


def own_layer(block: Any, like: Layer) -> Layer:
    """A copied block as a layer that computes in the type of its input; `like` is the layer of the original."""
    layer = layer_of(block, like.turns)
    assert layer is not None
    return replace(
        layer, out=_cast(layer.out), mlp=_cast(layer.mlp), post1=_cast(layer.post1), post2=_cast(layer.post2)
    )


def _cast(module: Any) -> Part:
    """A module that computes in the type of its input; norms and scales do so themselves."""
    if not isinstance(module, nn.Module) or isinstance(module, nn.LayerNorm):
        return module
    inside = {one for one, part in module.named_modules() if isinstance(part, nn.LayerNorm)}

    def part(x: Tensor) -> Tensor:
        weights = {name: one for name, one in module.named_parameters() if name.rpartition(".")[0] not in inside}
        made: Tensor
        if all(weight.dtype == x.dtype for weight in weights.values()):
            made = module(x)
        else:
            cast = {name: weight.to(x.dtype) for name, weight in weights.items()}
            made = torch.func.functional_call(module, cast, (x,))
        return made

    return part
