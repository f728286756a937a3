"""The frozen image tower, run layer by layer so that a method can edit the input of each layer.

Shapes: B images, N original rows ([CLS] first, then patches), L rows, Q rows that are read, D vision width, E joint
embedding. Layers are counted from 1; `rows@J` is the input of layer J, `rows@0` the embedding before the input norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dear.backbone.layers import Layer, layer_of
from dear.backbone.precision import tower_precision, wide
from dear.backbone.tracing import begin_run
from dear.errors import InputError

Edit = Callable[[int, Tensor], Tensor]
"""Function from a layer's number and its input to a changed input."""
Masks = Callable[[int], Tensor | None]
"""Function from a layer to its mask, broadcastable to (B, H, L, L), True where a query may attend to a key."""


class VisionTower:
    """A view of an OpenCLIP `VisionTransformer` that is read at its [CLS] row. It has no weights of its own."""

    def __init__(self, visual: Any) -> None:
        self._visual = visual

    @property
    def layers(self) -> list[Layer]:
        """All layers, which a method may replace."""
        return [layer_of(block) for block in self._visual.transformer.resblocks]

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules of all layers, for methods that copy them."""
        return list(self._visual.transformer.resblocks)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self._visual.transformer.resblocks)

    @property
    def width(self) -> int:
        """D."""
        return int(self._visual.positional_embedding.shape[1])

    @property
    def rows(self) -> int:
        """N, the number of original rows."""
        return int(self._visual.positional_embedding.shape[0])

    @property
    def projection(self) -> Tensor:
        """The frozen projection W_v, (D, E)."""
        weight: Tensor = self._visual.proj
        return weight

    @property
    def final_norm(self) -> nn.LayerNorm:
        """The final layer norm, ln_post."""
        norm: nn.LayerNorm = self._visual.ln_post
        return norm

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tower's activations."""
        dtype: torch.dtype = self._visual.conv1.weight.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self._visual.conv1.weight.device
        return device

    def embed(self, images: Tensor) -> Tensor:
        """Rows (B, N, D) with their positions, before the input norm: `rows@0`."""
        visual = self._visual
        with tower_precision(self.device):
            x = visual.conv1(images.to(self.dtype))
            x = x.reshape(x.shape[0], x.shape[1], -1).permute(0, 2, 1)
            start = visual.class_embedding.view(1, 1, -1).expand(x.shape[0], -1, -1).to(x.dtype)
            rows: Tensor = torch.cat([start, x], dim=1) + visual.positional_embedding.to(x.dtype)
        return rows

    def norm_in(self, x_BLD: Tensor) -> Tensor:
        """Apply the input norm: from `rows@0` to `rows@1`."""
        with tower_precision(self.device):
            x: Tensor = self._visual.ln_pre(x_BLD.to(self.dtype))
        return x

    def run(
        self,
        x_BLD: Tensor,
        first: int = 1,
        last: int | None = None,
        *,
        edit: Edit | None = None,
        masks: Masks | None = None,
        layers: Sequence[Layer] | None = None,
        read: Sequence[int] | None = None,
        kept: Callable[[int], int | None] | None = None,
    ) -> Tensor:
        """Rows after layers `first`..`last`.

        Args:
            x_BLD: input of layer `first`.
            first: first layer to run.
            last: last layer to run; by default the last one.
            edit: changes the input of a layer.
            masks: complete mask of a layer; it is reduced to the rows that are computed.
            layers: a complete list of layers in place of the tower's own.
            read: the only rows needed after layer `last`; no others are computed there.
            kept: from a layer before `last` to the number of its first rows that are used later; the others are keys
                only.
        """
        layers = self.layers if layers is None else layers
        last = len(layers) if last is None else last
        noted = begin_run(first, x_BLD)
        for number in range(first, last + 1):
            x_BLD = (edit(number, x_BLD) if edit else x_BLD).to(self.dtype)
            mask, queries = masks(number) if masks else None, None
            rows = _wanted(read if number == last else None, kept(number) if kept and number != last else None)
            if rows is not None:
                queries = x_BLD[:, rows]
                mask = mask[..., rows, :] if mask is not None else None
            with tower_precision(self.device):
                if noted is None:
                    x_BLD = layers[number - 1].run(x_BLD, queries=queries, mask=mask)
                else:
                    x_BLD = noted.layer(number, layers[number - 1], x_BLD, rows, mask)
        return x_BLD

    def read(self, x: Tensor, norm: nn.Module | None = None, projection: Tensor | None = None) -> Tensor:
        """Features in fp32 from rows after the last layer: final norm, then projection."""
        with tower_precision(self.device):
            normed: Tensor = (norm or self._visual.ln_post)(x.to(self.dtype))
        return wide(normed) @ wide(self.projection if projection is None else projection)

    def check(self, images: Tensor) -> None:
        """Raise `InputError` for anything but a batch of preprocessed images on the device of the weights."""
        height, width = self._visual.image_size
        if not isinstance(images, Tensor):
            raise InputError(
                f"Images are a {type(images).__name__}: make each with clip.preprocess_eval and stack them."
            )
        fits = images.ndim == 4 and images.shape[0] and tuple(images.shape[1:]) == (3, height, width)
        if not fits or not images.is_floating_point():
            raise InputError(
                f"Images are {images.dtype} of shape {tuple(images.shape)}, but this backbone reads float batches of "
                f"shape (B, 3, {height}, {width}): make each with clip.preprocess_eval and stack them."
            )
        if images.device != self.device:
            raise InputError(
                f"Images are on {images.device}, but the backbone is on {self.device}: move one of them with .to(…)."
            )


def _wanted(read: Sequence[int] | None, count: int | None) -> list[int] | slice | None:
    """Index of the rows to compute; None for all."""
    if read is not None:
        return list(read)
    return None if count is None else slice(count)
