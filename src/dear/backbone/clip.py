"""`FrozenClip`: a CLIP model that is never trained, with its two towers, preprocessing, sizes and weight hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.augment import TrainTransform
from dear.backbone.frozen import States, complete, frozen
from dear.backbone.origin import Origin
from dear.backbone.precision import wide
from dear.backbone.text import TextTower
from dear.backbone.vision import VisionTower


def short_name(backbone: str) -> str:
    """A backbone's name without the local path in front of it."""
    return backbone.rstrip("/").rpartition("/")[2] if backbone.startswith("local-dir:") else backbone


@dataclass(frozen=True)
class Geometry:
    """The sizes of a CLIP; an adapter fits only a CLIP with the same sizes."""

    image_size: int
    patch_size: int
    vision_layers: int
    vision_heads: int
    vision_width: int
    vision_tokens: int
    text_layers: int
    text_heads: int
    text_width: int
    context_length: int
    vocab_size: int
    embed_dim: int
    quick_gelu: bool

    def as_dict(self) -> dict[str, int | bool]:
        """The sizes as a dictionary."""
        return asdict(self)


class FrozenClip(nn.Module):
    """A CLIP with fixed weights, always in evaluation mode. Created by `dear.load_clip`."""

    def __init__(
        self,
        model: Any,
        *,
        name: str,
        pretrained: str | None,
        precision: str,
        seed: int | None,
        geometry: Geometry,
        weights_sha256: str,
        preprocess_train: TrainTransform,
        preprocess_eval: Callable[[Any], Tensor],
        tokenizer: Callable[..., Tensor],
        text_pool: str,
        text_eos_id: int,
        origin: Origin | None = None,
        pickled: bool = False,
    ) -> None:
        super().__init__()
        self.model: Any = model.requires_grad_(False).eval()
        self.name = name
        self.pretrained = pretrained
        self.precision = precision
        self.seed = seed
        """Seed of random weights; None for pretrained weights."""
        self.geometry = geometry
        self.temperature = float(model.logit_scale.detach().exp())
        """τ, the factor that cosine similarities are multiplied by."""
        self.weights_sha256 = weights_sha256
        self.origin = origin
        """The hub repository of the weights; None for weights that are not from the hub."""
        self.pickled = pickled
        """Whether the weights were read from a pickled file, which `allow_pickled` permits."""
        self.preprocess_train = preprocess_train
        self.preprocess_eval = preprocess_eval
        self.tokenizer = tokenizer
        self.vision = VisionTower(model.visual)
        self.text = TextTower(getattr(model, "text", model), tokenizer, pool=text_pool, eos_id=text_eos_id)
        self.eval()

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.model.logit_scale.device
        return device

    @torch.no_grad()
    def stock_feature(self, images: Tensor) -> Tensor:
        """Image features by OpenCLIP's own code, unnormalised, in fp32: (B, embed_dim)."""
        self.vision.check(images)
        feature: Tensor = wide(self.model.encode_image(images.to(self.vision.dtype)))
        return feature

    def encode_image(self, images: Tensor) -> Tensor:
        """Image features by OpenCLIP's own code, normalised, in fp32: (B, embed_dim)."""
        return F.normalize(self.stock_feature(images), dim=-1)

    def frozen(self, images: Tensor, names: Sequence[str]) -> States:
        """Named tensors of preprocessed images; the names are listed in `dear.backbone.frozen`."""
        return frozen(self.vision, images, names)

    def complete(self, known: Mapping[str, Tensor], names: Sequence[str]) -> States:
        """Like `frozen`, but starts from tensors that have been computed already."""
        return complete(self.vision, known, names)

    @torch.no_grad()
    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        """Text features by OpenCLIP's own code, normalised, in fp32: (C, embed_dim)."""
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        self.text.tokenize(prompts)  # raises for prompts that would be truncated
        ids = self.tokenizer(prompts).to(self.device)
        return F.normalize(wide(self.model.encode_text(ids)), dim=-1)

    def requires_grad_(self, requires_grad: bool = True) -> FrozenClip:
        """Do nothing: the weights stay frozen."""
        return super().requires_grad_(False)

    def train(self, mode: bool = True) -> FrozenClip:
        """Do nothing: the model stays in evaluation mode."""
        return super().train(False)

    def __repr__(self) -> str:
        """One line instead of the module tree."""
        return f"FrozenClip({self.name!r}, {self.pretrained!r}, {self.precision}, sha256={self.weights_sha256[:12]}…)"


def content_hash(state: dict[str, Tensor]) -> str:
    """SHA-256 of named tensors: names, shapes and fp32 values, in name order. Independent of file format and device."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
