"""Image towers of open_clip and timm whose layers can be run one by one: their rows, blocks, rotary table and pool.

Shapes: B images, N original rows, D width, E width of a head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from dear.backbone.layer_kinds import layer_of, present
from dear.backbone.layers import Layer, same
from dear.backbone.pool import Kind, Pool


class ImageTower(Protocol):
    """The parts of an image tower, in a common form."""

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules of all layers."""
        ...

    @property
    def layers(self) -> list[Layer]:
        """All layers."""
        ...

    @property
    def pool(self) -> Pool:
        """How the feature is read from the rows after the last layer."""
        ...

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        ...

    @property
    def prefix(self) -> int:
        """Number of rows before the patches: [CLS] and registers."""
        ...

    @property
    def width(self) -> int:
        """D."""
        ...

    def embed(self, images: Tensor) -> Tensor:
        """Rows (B, N, D) with their positions, before the input norm."""
        ...

    def norm_in(self, x_BLD: Tensor) -> Tensor:
        """The input norm."""
        ...


def image_tower(visual: Any) -> ImageTower | None:
    """The parts of an image tower; None if its layers cannot be run one by one."""
    if _kind(visual) == "open_clip.transformer.VisionTransformer":
        supported = visual.attn_pool is None and visual.pool_type in OpenClipImage.POOLS
        return OpenClipImage(visual) if supported and _reachable(visual.transformer.resblocks) else None
    if _kind(visual) != "open_clip.timm_model.TimmModel" or _kind(visual.trunk) not in TimmImage.TRUNKS:
        return None
    tower = TimmImage(visual)
    return tower if tower.is_supported and _reachable(visual.trunk.blocks) else None


def kind_of(visual: Any) -> str:
    """What an image tower is, for messages."""
    tower = type(getattr(visual, "trunk", visual)).__name__
    names = {"ModifiedResNet": "a ResNet", "ConvNeXt": "a ConvNeXt", "FastVit": "a FastViT"}
    return names.get(tower, f"a {tower}")


class OpenClipImage:
    """open_clip's `VisionTransformer`."""

    POOLS: ClassVar[dict[str, Kind]] = {"tok": "token", "avg": "average"}
    prefix = 1

    def __init__(self, visual: Any) -> None:
        self._visual = visual

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules of all layers."""
        return list(self._visual.transformer.resblocks)

    @property
    def layers(self) -> list[Layer]:
        """All layers."""
        return [layer for block in self.blocks if (layer := layer_of(block))]

    @property
    def pool(self) -> Pool:
        """[CLS] or the average of the patches, with `ln_post` and `proj`."""
        visual = self._visual
        kind = self.POOLS[visual.pool_type]
        return Pool(kind, visual.ln_post, visual.proj, first=1, norm_after=visual.final_ln_after_pool)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        down, across = self._visual.grid_size
        return int(down), int(across)

    @property
    def width(self) -> int:
        """D."""
        return int(self._visual.positional_embedding.shape[1])

    def embed(self, images: Tensor) -> Tensor:
        """Rows (B, N, D) with their positions, before the input norm."""
        visual = self._visual
        x = visual.conv1(images)
        x = x.reshape(x.shape[0], x.shape[1], -1).permute(0, 2, 1)
        start = visual.class_embedding.view(1, 1, -1).expand(x.shape[0], -1, -1).to(x.dtype)
        rows: Tensor = torch.cat([start, x], dim=1) + visual.positional_embedding.to(x.dtype)
        return rows

    def norm_in(self, x_BLD: Tensor) -> Tensor:
        """The input norm."""
        x: Tensor = self._visual.ln_pre(x_BLD)
        return x


class TimmImage:
    """timm's `VisionTransformer` and `Eva` inside open_clip's `TimmModel`."""

    TRUNKS = ("timm.models.vision_transformer.VisionTransformer", "timm.models.eva.Eva")
    POOLS: ClassVar[dict[str, Kind]] = {"token": "token", "avg": "average"}

    def __init__(self, visual: Any) -> None:
        self._visual, self._trunk = visual, visual.trunk

    @property
    def is_supported(self) -> bool:
        """Whether positions and pool are of a kind that is known."""
        trunk, head = self._trunk, self._head
        if getattr(trunk, "rope_mixed", False) or getattr(trunk, "dynamic_img_size", False):
            return False
        if len(head) > 1 or not all(isinstance(module, nn.Linear) for module in head):
            return False
        norms = present(trunk.norm), present(trunk.fc_norm)
        pool = trunk.attn_pool
        if pool is None:
            return trunk.global_pool in self.POOLS and same in norms and bool(head)
        known = _kind(pool) == "timm.layers.attention_pool.AttentionPoolLatent" and norms[1] is same
        plain = known and pool.pos_embed is None and pool.latent_len == 1 and pool.mlp is not None
        return bool(plain and pool.kv.bias is not None)

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules of all layers."""
        return list(self._trunk.blocks)

    @property
    def layers(self) -> list[Layer]:
        """All layers; those of a rotary tower turn its patches."""
        turns = None if getattr(self._trunk, "rope", None) is None else self._turns
        return [layer for block in self.blocks if (layer := layer_of(block, turns))]

    @property
    def pool(self) -> Pool:
        """The trunk's pool, then the head of the trunk or of the wrapper."""
        trunk = self._trunk
        every = _kind(trunk).endswith("Eva") if trunk.attn_pool is not None else False
        first = 0 if every or getattr(trunk, "pool_include_prefix", False) else trunk.num_prefix_tokens
        kind: Kind = "map" if trunk.attn_pool is not None else self.POOLS[trunk.global_pool]
        after = present(trunk.fc_norm)
        linear = self._head[0] if self._head else None
        return Pool(
            kind,
            present(trunk.norm) if after is same else after,
            None if linear is None else linear.weight.T,
            None if linear is None else linear.bias,
            first=first,
            norm_after=after is not same,
            attention=trunk.attn_pool,
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        down, across = self._trunk.patch_embed.grid_size
        return int(down), int(across)

    @property
    def prefix(self) -> int:
        """Number of rows before the patches: [CLS] and registers."""
        return int(self._trunk.num_prefix_tokens)

    @property
    def width(self) -> int:
        """D."""
        return int(self._trunk.embed_dim)

    def embed(self, images: Tensor) -> Tensor:
        """Rows (B, N, D) with their positions, before the input norm."""
        placed = self._trunk._pos_embed(self._trunk.patch_embed(images))
        rows: Tensor = placed[0] if isinstance(placed, tuple) else placed
        return rows

    def norm_in(self, x_BLD: Tensor) -> Tensor:
        """The input norm."""
        x: Tensor = self._trunk.norm_pre(x_BLD)
        return x

    @property
    def _head(self) -> list[Any]:
        """The modules after the pool."""
        modules = [self._trunk.head, *self._visual.head.children()]
        return [module for module in modules if present(module) is not same]

    def _turns(self, rows: int) -> Tensor:
        """Sines and cosines of all rows, (rows, 2E): those before and after the patches are not turned."""
        patches = self._trunk.rope.get_embed()
        after = rows - self.prefix - patches.shape[0]
        width = patches.shape[1] // 2
        still = torch.cat([patches.new_zeros(width), patches.new_ones(width)])
        return torch.cat([still.expand(self.prefix, -1), patches, still.expand(after, -1)])


def _reachable(blocks: Iterable[nn.Module]) -> bool:
    return all(layer_of(block) for block in blocks)


def _kind(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
