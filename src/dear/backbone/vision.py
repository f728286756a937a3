"""The frozen image tower, run layer by layer so that a method can edit the input of each layer.

Shapes: B images, N original rows ([CLS] and registers if there are any, then patches), L rows, Q rows that are read,
D vision width, E joint embedding. Layers are counted from 1; `rows@J` is the input of layer J, `rows@0` the embedding
before the input norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.image_towers import ImageTower, image_tower, kind_of
from dear.backbone.layers import Layer, Places
from dear.backbone.pool import Pool
from dear.backbone.precision import tower_precision, wide
from dear.backbone.tracing import begin_run
from dear.errors import BackboneError, InputError

Edit = Callable[[int, Tensor], Tensor]
"""Function from a layer's number and its input to a changed input."""
Masks = Callable[[int], Tensor | None]
"""Function from a layer to its mask, broadcastable to (B, H, L, L), True where a query may attend to a key."""


class VisionTower:
    """A view of an image tower. It has no weights of its own.

    `stock`, `check`, `dtype` and `device` work for every tower, the rest if its layers can be run one by one.
    """

    def __init__(self, visual: Any, embed_dim: int | None = None) -> None:
        """Look at a tower.

        Args:
            visual: the image tower of an open_clip model.
            embed_dim: E; by default, what the tower says itself.
        """
        self._visual = visual
        self.embed_dim = int(visual.output_dim if embed_dim is None else embed_dim)
        self._found = image_tower(visual)
        self._first = next(one for one in visual.modules() if isinstance(one, nn.Conv2d | nn.Linear))

    @property
    def has_layers(self) -> bool:
        """Whether the layers can be run one by one."""
        return self._found is not None

    @property
    def _tower(self) -> ImageTower:
        if self._found is None:
            raise BackboneError(f"The layers of this image tower, {self.kind}, cannot be run one by one.")
        return self._found

    @property
    def kind(self) -> str:
        """What the tower is, for messages."""
        return kind_of(self._visual)

    @property
    def layers(self) -> list[Layer]:
        """All layers, which a method may replace."""
        return self._tower.layers

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules of all layers, for methods that copy them."""
        return self._tower.blocks

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self._tower.blocks)

    @property
    def width(self) -> int:
        """D."""
        return self._tower.width

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self._tower.grid

    @property
    def prefix(self) -> int:
        """Number of rows before the patches: [CLS] and registers."""
        return self._tower.prefix

    @property
    def rows(self) -> int:
        """N, the number of original rows."""
        down, across = self.grid
        return self.prefix + down * across

    @property
    def pool(self) -> Pool:
        """How the image feature is read from the original rows."""
        return self._tower.pool

    @property
    def pooled(self) -> list[int]:
        """The rows after the last layer that `feature` needs: [CLS], or all original rows."""
        return [0] if self.pool.kind == "token" else list(range(self.rows))

    @property
    def projection(self) -> Tensor:
        """The frozen matrix of `read`, W_v, (D, E); with attention pooling (D, D), see `Pool.start`."""
        return self.pool.start()

    @property
    def final_norm(self) -> nn.LayerNorm:
        """The final layer norm."""
        norm = self.pool.norm
        assert isinstance(norm, nn.LayerNorm)
        return norm

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tower's activations."""
        dtype: torch.dtype = self._first.weight.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self._first.weight.device
        return device

    def stock(self, images: Tensor) -> Tensor:
        """The image feature (B, E) in fp32, by the tower's own code."""
        with tower_precision(self.device):
            feature: Tensor = self._visual(images.to(self.dtype))
        return wide(feature)

    def embed(self, images: Tensor) -> Tensor:
        """Rows (B, N, D) with their positions, before the input norm: `rows@0`."""
        with tower_precision(self.device):
            return self._tower.embed(images.to(self.dtype))

    def norm_in(self, x_BLD: Tensor) -> Tensor:
        """Apply the input norm: from `rows@0` to `rows@1`."""
        with tower_precision(self.device):
            return self._tower.norm_in(x_BLD.to(self.dtype))

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
            rows = None if rows == list(range(x_BLD.shape[1])) else rows
            if rows is not None:
                queries = x_BLD[:, rows]
                mask = mask[..., rows, :] if mask is not None else None
            with tower_precision(self.device):
                if noted is None:
                    x_BLD = layers[number - 1].run(x_BLD, queries=queries, mask=mask, at=rows)
                else:
                    x_BLD = noted.layer(number, layers[number - 1], x_BLD, rows, mask)
        return x_BLD

    def read(self, x: Tensor, norm: nn.Module | None = None, projection: Tensor | None = None) -> Tensor:
        """Features in fp32 of single rows after the last layer, each read as if it were the only one.

        `norm` and `projection` replace `final_norm` and `projection`.
        """
        pool = self.pool if norm is None else replace(self.pool, norm=norm)
        return pool.read_new(x.to(self.dtype), self.projection if projection is None else projection)

    def feature(self, x_BQD: Tensor, pool: Pool | None = None) -> Tensor:
        """The image feature (B, E) in fp32, from the rows `pooled` after the last layer; others may follow them.

        `pool` replaces the tower's own.
        """
        return (pool or self.pool).read(x_BQD[:, : len(self.pooled)].to(self.dtype))

    def local(self, after_BLD: Tensor) -> Tensor:
        """The image feature, then each patch read as if it were the only row, (B, 1 + patches, E), in fp32."""
        if self.pool.kind == "token" and self.prefix == 1:
            return self.read(after_BLD[:, : self.rows])
        patches_BNE = self.read(after_BLD[:, self.prefix : self.rows])
        return torch.cat([self.feature(after_BLD)[:, None], patches_BNE], dim=1)

    def attention(self, before_BLD: Tensor, after_BLD: Tensor) -> Tensor:
        """How much the image feature attends to itself and to each patch, (B, 1 + patches), in fp32.

        With attention pooling, this is the pool's attention; otherwise that of the pooled rows in the last layer, whose
        input is `before_BLD`. It is the mean over heads and pooled rows.
        """
        pool, patches = self.pool, slice(self.prefix, self.rows)
        if pool.kind == "map":
            of_rows = pool.rows(after_BLD[:, : self.rows].to(self.dtype)).mean(1)
            return F.pad(of_rows[:, patches], (1, 0))
        rows = slice(1) if pool.kind == "token" else slice(pool.first, self.rows)
        weights = self.layers[-1].weights(before_BLD, before_BLD[:, rows], rows).mean(1)
        if pool.kind == "token":
            return torch.cat([weights[:, 0, :1], weights[:, 0, patches]], dim=1)
        return F.pad(weights.mean(1)[:, patches], (1, 0))

    def check(self, images: Tensor) -> None:
        """Raise `InputError` for anything but a batch of preprocessed images on the device of the weights."""
        size = self._visual.image_size
        height, width = (size, size) if isinstance(size, int) else size
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


def _wanted(read: Sequence[int] | None, count: int | None) -> Places | None:
    """Index of the rows to compute; None for all."""
    if read is not None:
        return list(read)
    return None if count is None else slice(count)
