"""The frozen image tower, cut in two: a prefix that no new token reaches, and a tail of the last layers.

Shapes: B images, N original tokens ([CLS] first, then patches), D vision width, E joint embedding.
Layers are counted from 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dear.backbone.blocks import run_block
from dear.errors import InputError


class VisionTower:
    """Split view of an OpenCLIP `VisionTransformer`; it owns no weights, it only runs them."""

    def __init__(self, visual: Any) -> None:
        self._visual = visual

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        return len(self._visual.transformer.resblocks)

    @property
    def projection(self) -> Tensor:
        """The frozen projection W_v, (D, E)."""
        weight: Tensor = self._visual.proj
        return weight

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tower's activations."""
        dtype: torch.dtype = self._visual.conv1.weight.dtype
        return dtype

    def blocks(self, first: int) -> list[Any]:
        """Layers `first`..L, counted from 1, to be run by `run_block`."""
        return list(self._visual.transformer.resblocks[first - 1 :])

    @torch.no_grad()
    def prefix(self, images: Tensor, first: int) -> Tensor:
        """State x_BND of the original tokens before layer `first`. Exact: nothing learnable acts below it."""
        self.check(images)
        x_BND: Tensor = self._visual._embeds(images.to(self.dtype))
        for block in self._visual.transformer.resblocks[: first - 1]:
            x_BND = run_block(block, x_BND)
        return x_BND

    @torch.no_grad()
    def frozen_features(self, prefix_BND: Tensor, first: int) -> Tensor:
        """Plain CLIP's image features (B, E), unnormalised, from the shared prefix: layers `first`..L only."""
        x_BND = prefix_BND
        *inner, last = self.blocks(first)
        for block in inner:
            x_BND = run_block(block, x_BND)
        cls_B1D = run_block(last, x_BND, queries_BQD=x_BND[:, :1])
        return self.read(cls_B1D)[:, 0] @ self.projection

    def check(self, images: Tensor) -> None:
        """Refuse anything but a batch of preprocessed images where the weights are."""
        height, width = self._visual.image_size
        if not isinstance(images, Tensor):
            raise InputError(
                f"Images are a {type(images).__name__}: make each with clip.preprocess_eval and stack them."
            )
        fits = images.ndim == 4 and len(images) and tuple(images.shape[1:]) == (3, height, width)
        if not fits or not images.is_floating_point():
            raise InputError(
                f"Images are {images.dtype} of shape {tuple(images.shape)}, but this backbone reads float batches of "
                f"shape (B, 3, {height}, {width}): make each with clip.preprocess_eval and stack them."
            )
        self._check_device(images, "Images are")

    def check_prefix(self, prefix_BND: Tensor) -> None:
        """Refuse anything but what `prefix` returns."""
        tokens, width = self._visual.positional_embedding.shape
        if not isinstance(prefix_BND, Tensor) or prefix_BND.ndim != 3 or tuple(prefix_BND.shape[1:]) != (tokens, width):
            form = tuple(prefix_BND.shape) if isinstance(prefix_BND, Tensor) else type(prefix_BND).__name__
            raise InputError(f"The prefix is {form}, but has shape (B, {tokens}, {width}): take it from image_prefix.")
        self._check_device(prefix_BND, "The prefix is")

    def _check_device(self, tensor: Tensor, what: str) -> None:
        home = self._visual.conv1.weight.device
        if tensor.device != home:
            raise InputError(f"{what} on {tensor.device}, but the backbone is on {home}: move one of them with .to(…).")

    @property
    def final_norm(self) -> nn.LayerNorm:
        """The final layer norm, ln_post."""
        norm: nn.LayerNorm = self._visual.ln_post
        return norm

    def read(self, x_BQD: Tensor) -> Tensor:
        """Apply the final layer norm."""
        out: Tensor = self._visual.ln_post(x_BQD)
        return out
