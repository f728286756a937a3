"""`FrozenClip`: a CLIP model that is never trained, with its two towers, preprocessing, sizes and weight hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.augment import TrainTransform
from dear.backbone.frozen import States, complete, frozen
from dear.backbone.origin import Origin
from dear.backbone.support import NEEDED, Can, missing
from dear.backbone.text import TextTower
from dear.backbone.text_hub import HUB_POOL, HubTextTower
from dear.backbone.vision import VisionTower
from dear.errors import BackboneError, InputError


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
    prefix_rows: int = 1
    """Image rows before the patches: [CLS] and registers."""
    pool: str = "token"
    """How the image feature is read: token, average or map; "" if the tower has no layers that can be reached."""
    rotary: bool = False
    causal: bool = True

    def as_dict(self) -> dict[str, int | bool | str]:
        """The sizes as a dictionary; later additions only if they differ from their default, as in older files."""
        added = {one.name: one.default for one in fields(self) if one.default is not MISSING}
        return {name: value for name, value in asdict(self).items() if added.get(name, MISSING) != value}


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
        self.vision = VisionTower(model.visual, geometry.embed_dim)
        text = getattr(model, "text", model)
        hub = text_pool == HUB_POOL
        self.text = (
            HubTextTower(text, tokenizer) if hub else TextTower(text, tokenizer, pool=text_pool, eos_id=text_eos_id)
        )
        bias = getattr(model, "logit_bias", None)
        self.bias = 0.0 if bias is None else float(bias)
        """b of a model that was trained with a sigmoid loss: sigmoid(τ · cosine + b) is its probability of a pair."""
        self.eval()

    @cached_property
    def can(self) -> frozenset[Can]:
        """What can be done with this CLIP, see `dear.backbone.support`."""
        layers = {Can.TEXT_LAYERS: self.text.has_layers, Can.IMAGE_LAYERS: self.vision.has_layers}
        words = self.text.has_layers or isinstance(self.text, HubTextTower)
        found = {Can.FEATURES: True, Can.WORDS: words, **layers}
        found[Can.CAUSAL_TEXT] = self.text.has_layers and self.text.causal
        return frozenset(one for one, there in found.items() if there)

    def require(self, needed: Iterable[Can], who: str) -> None:
        """Raise `BackboneError` in the name of `who` if something that it needs cannot be done with this CLIP."""
        if lacking := missing(needed, self.can):
            raise BackboneError(f"{who} needs {lacking}, {self.why_not(lacking)}.")

    def why_not(self, lacking: str) -> str:
        """The end of a sentence that says why this CLIP lacks something."""
        name = short_name(self.name)
        if "image" in lacking:
            return f"and those of {name}, {self.vision.kind}, cannot be reached"
        if lacking == NEEDED[Can.CAUSAL_TEXT]:
            return f"and that of {name} is not"
        return f"and the text tower of {name} has none that can be reached"

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.model.logit_scale.device
        return device

    @torch.no_grad()
    def stock_feature(self, images: Tensor) -> Tensor:
        """Image features by OpenCLIP's own code, unnormalised, in fp32: (B, embed_dim)."""
        self.vision.check(images)
        return self.vision.stock(images)

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
        prompts = [prompts] if isinstance(prompts, str) else list(prompts) if isinstance(prompts, Iterable) else []
        if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
            raise InputError("What is encoded must be one or more texts, such as ['a photo of a cat'].")
        self.text.tokenize(prompts)  # raises for prompts that would be truncated
        ids = self.tokenizer(prompts).to(self.device)
        return F.normalize(self.text.stock(ids), dim=-1)

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
