"""Multi-Modal Adapter: a small attention block over the features of all classes and of the image.

Shapes: B images, C classes, E joint embedding, D attention width, H heads, K = D / H, N bottleneck.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dear.methods.api import About, Batch, ClassList, FrozenClip, Method, Needs, Output, Recipe, Settings, Special, unit
from dear.methods.parts.class_features import text_weights
from dear.methods.parts.tokens import random_linear

TINY = 1e-12


class MMAdapterConfig(Settings):
    """Config of Multi-Modal Adapter."""

    variant: Literal["additive", "blocked"] = "additive"
    """Effect of the mask: add 1 to scores between image and classes, or block all other scores. The blocked variant
    has one linear map before and one after the attention."""
    width: int = Field(default=128, ge=1, le=4096)
    """Width of the attention."""
    heads: int = Field(default=4, ge=1, le=4096)
    """Number of attention heads; must divide the width."""
    hidden: int = Field(default=32, ge=1, le=4096)
    """Width of the bottleneck before and after the attention, in the additive variant."""
    image_ratio: float = Field(default=0.2, ge=0, le=1)
    """Share of the adapted image feature."""
    text_ratio: float = Field(default=0.2, ge=0, le=1)
    """Share of the adapted class features."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width is {self.width}, which is not divisible by {self.heads} heads: change one of them")
        return self


class ClassTokens(NamedTuple):
    """Tensors of the attention that do not depend on the image."""

    features: Tensor
    """(C, E) frozen class features."""
    queries: Tensor
    """(C, H, K), scaled."""
    keys: Tensor
    values: Tensor
    most: Tensor
    """(C, H) largest score of each class."""
    weight: Tensor
    """(C, H) sum of e^(score − most) over all classes."""
    mixed: Tensor
    """(C, H, N) weighted sum of the values of all classes in the bottleneck."""


class MMAdapter(Method[MMAdapterConfig]):
    """A small attention block over the features of all classes and of the image; both are adapted."""

    name = "mm_adapter"
    recipe = Recipe(
        optimiser="adam",
        lr=5e-3,
        decay=1e-4,
        batch_size=256,
        epochs=200,
        patience=20,
        warmup_epochs=0,
        schedule="constant",
        augment=False,
    )
    special = (Special(config={"width": 256}),)
    about = About(
        citation="Seputis et al., Multi-Modal Adapter for Vision-Language Models, arXiv 2409.02958, 2024",
        year=2024,
        touches="image and class features",
        parameters=107_712,
        code="dqmis/clip-mma 1287cb5",
        licence="none stated",
    )
    needs = Needs(independent=False)

    def __init__(self, clip: FrozenClip, config: MMAdapterConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        outer, width, hidden = clip.geometry.embed_dim, self.config.width, self.config.hidden
        self.downsampler: nn.Module
        self.upsampler: nn.Module
        if self.config.variant == "blocked":
            self.downsampler = random_linear(self.generator, outer, width)
            self.upsampler = random_linear(self.generator, width, outer)
        else:
            self.downsampler = nn.Sequential(
                random_linear(self.generator, outer, hidden), random_linear(self.generator, hidden, width)
            )
            self.upsampler = nn.Sequential(
                random_linear(self.generator, width, hidden), nn.GELU(), random_linear(self.generator, hidden, outer)
            )
        self.mha = nn.MultiheadAttention(width, self.config.heads)
        with torch.no_grad():
            bound = (6 / (4 * width)) ** 0.5  # Xavier initialisation of the three maps as one
            self.mha.in_proj_weight.copy_((torch.rand(3 * width, width, generator=self.generator) * 2 - 1) * bound)
            self.mha.out_proj.weight.copy_((torch.rand(width, width, generator=self.generator) * 2 - 1) * width**-0.5)
            self.mha.in_proj_bias.zero_()
            self.mha.out_proj.bias.zero_()

    def classes(self, clip: FrozenClip, classes: ClassList) -> Tensor:
        """Text features (C, E) of the list's template."""
        return text_weights(clip, classes)

    def projected(self, features: Tensor) -> list[Tensor]:
        """Queries, keys and values (…, H, K) of features (…, E)."""
        heads = self.config.heads, self.config.width // self.config.heads
        whole = nn.functional.linear(self.downsampler(features), self.mha.in_proj_weight, self.mha.in_proj_bias)
        queries, keys, values = (one.reshape(*one.shape[:-1], *heads) for one in whole.chunk(3, -1))
        return [queries * heads[1] ** -0.5, keys, values]

    def adapted(self, mixed: Tensor) -> Tensor:
        """Unit features (…, E) from the attention's mixtures of values (…, H, K)."""
        return unit(self.upsampler(self.mha.out_proj(mixed.flatten(-2))))

    def text(self, clip: FrozenClip, frozen: Tensor, batch: Batch | None = None) -> ClassTokens:
        """Attention between classes, computed once for all images: O(C²)."""
        queries, keys, values = self.projected(frozen)
        if self.config.variant == "blocked":
            none = queries.new_zeros(queries.shape[:2])
            return ClassTokens(frozen, queries, keys, values, none, none, torch.zeros_like(values))
        scores_HCC = torch.einsum("ihk,jhk->hij", queries, keys)
        most_HC = scores_HCC.detach().amax(2)
        weights_HCC = torch.exp(scores_HCC - most_HC[..., None])
        mixed_CHN = torch.einsum("hij,jhn->ihn", weights_HCC, self._into_bottleneck(values))
        return ClassTokens(frozen, queries, keys, values, most_HC.T, weights_HCC.sum(2).T, mixed_CHN)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: ClassTokens, batch: Batch | None = None
    ) -> Output:
        """Cosines of adapted image and class features."""
        feature_BE = unit(image["feature"])
        queries, keys, values = self.projected(feature_BE)
        to_classes_BHC = torch.einsum("bhk,chk->bhc", queries, text.keys)
        blocked, ratio = self.config.variant == "blocked", self.config.image_ratio
        if blocked:
            mixed_BHK = torch.einsum("bhc,chk->bhk", to_classes_BHC.softmax(2), text.values)
        else:
            own_BH1 = (queries * keys).sum(2, keepdim=True)
            shares = torch.cat([to_classes_BHC + 1, own_BH1], 2).softmax(2)
            mixed_BHK = torch.einsum("bhc,chk->bhk", shares[..., :-1], text.values) + shares[..., -1:] * values
        image_BE = unit(ratio * self.adapted(mixed_BHK) + (1 - ratio) * feature_BE)
        cosines = self._blocked if blocked else self._additive
        cosines_BC = cosines(image_BE, keys, values, text)
        return Output({"logits": clip.temperature * cosines_BC}, {"cls": image_BE})

    def _additive(self, image_BE: Tensor, keys: Tensor, values: Tensor, text: ClassTokens) -> Tensor:
        """Cosines of the additive variant in O(B·C·N), without computing class features per image."""
        score_BCH = torch.einsum("chk,bhk->bch", text.queries, keys) + 1
        most_BCH = torch.maximum(score_BCH, text.most).detach()
        before, extra = torch.exp(text.most - most_BCH), torch.exp(score_BCH - most_BCH)
        total = text.weight * before + extra
        inner_BCN = torch.einsum("bch,chn->bcn", before / total, text.mixed)
        inner_BCN = inner_BCN + torch.einsum("bch,bhn->bcn", extra / total, self._into_bottleneck(values))
        last, inner_BCN = self._up(2), nn.functional.gelu(inner_BCN)
        products_BCN = nn.functional.linear(inner_BCN, last.weight.T @ last.weight, 2 * last.bias @ last.weight)
        length_BC = ((products_BCN * inner_BCN).sum(2) + last.bias @ last.bias).clamp_min(TINY).sqrt()
        along_image_BC = torch.einsum("bcn,bn->bc", inner_BCN, image_BE @ last.weight) + image_BE @ last.bias[:, None]
        along_class_BC = torch.einsum("bcn,cn->bc", inner_BCN, text.features @ last.weight) + text.features @ last.bias
        return self._blended(along_image_BC / length_BC, along_class_BC / length_BC, image_BE, text)

    def _into_bottleneck(self, values: Tensor) -> Tensor:
        """Each head's values (…, H, K) mapped into the bottleneck after the attention (…, H, N), with bias.

        A head's attention weights sum to one, so the bias can be added before the values are mixed.
        """
        first, out = self._up(0), self.mha.out_proj
        maps_NHK = (first.weight @ out.weight).reshape(-1, *values.shape[-2:])
        bias_N: Tensor = first(out.bias) / self.config.heads
        return torch.einsum("...hk,nhk->...hn", values, maps_NHK) + bias_N

    def _up(self, index: int) -> nn.Linear:
        """A linear map after the attention of the additive variant."""
        return cast(nn.Linear, cast(nn.Sequential, self.upsampler)[index])

    def _blocked(self, image_BE: Tensor, keys: Tensor, values: Tensor, text: ClassTokens) -> Tensor:
        """Cosines of the blocked variant: every class attends only to the image and moves towards one feature."""
        towards_BE = self.adapted(values)
        along_image_B1 = (image_BE * towards_BE).sum(1, keepdim=True)
        return self._blended(along_image_B1, towards_BE @ text.features.T, image_BE, text)

    def _blended(self, along_image: Tensor, along_class: Tensor, image_BE: Tensor, text: ClassTokens) -> Tensor:
        """Cosines (B, C) of image features and blended class features, from the projections of adapted features."""
        ratio = self.config.text_ratio
        square_BC = ratio**2 + (1 - ratio) ** 2 + 2 * ratio * (1 - ratio) * along_class
        along_BC = ratio * along_image + (1 - ratio) * image_BE @ text.features.T
        return along_BC / square_BC.clamp_min(TINY).sqrt()
