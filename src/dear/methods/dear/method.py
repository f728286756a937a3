"""DeAR: attribute tokens in the last layers of a frozen CLIP, routed by a mask of head roles.

Shapes: B images, N original rows, A attribute tokens, D width, C classes, K attributes, G = K + 1, E joint embedding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dear.backbone.precision import wide
from dear.data.images import ImageList
from dear.errors import ConfigError
from dear.methods.api import (
    About,
    Batch,
    Can,
    ClassList,
    FrozenClip,
    Method,
    Needs,
    Output,
    Reading,
    Rows,
    tokens_of,
    unit,
)
from dear.methods.dear.config import DearConfig
from dear.methods.dear.fusion import fuse, initial_scalars
from dear.methods.dear.masks import layer_mask, token_kinds
from dear.methods.dear.roles import roles_for, with_auto_roles
from dear.methods.parts.class_text import AdaptedText, FrozenText
from dear.roles.known import check_roles
from dear.roles.rolemap import LAST_LAYERS, ROLES, RoleMap


class DearMethod(Method[DearConfig]):
    """CLIP adapted by decomposing the roles of its attention heads."""

    name = "dear"
    needs_of_clip = frozenset({Can.IMAGE_LAYERS, Can.TEXT_LAYERS})
    readouts: ClassVar[Mapping[str, str]] = {"default": "fusion", "transfer": "decoupled"}
    about = About(
        citation="Ma et al., DeAR: Fine-Grained VLM Adaptation by Decomposing Attention Head Roles, CVPR 2026",
        year=2026,
        touches="both towers, last four layers",
        parameters=399_622,
        needs="a role map",
    )

    @classmethod
    def prepare(
        cls, clip: FrozenClip, images: ImageList, config: Mapping[str, Any], say: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """Find the role map for `roles="auto"`."""
        return with_auto_roles(clip, images, config, say)

    def __init__(self, clip: FrozenClip, config: DearConfig, *, seed: int = 0, **others: Any) -> None:
        if config.seed is None:
            config = config.model_copy(update={"seed": seed})
        super().__init__(clip, config, seed=seed, **others)
        self.first = first_layer(config.first_layer, clip.vision.depth, "first_layer")
        self.text_first = first_layer(config.text_first_layer, clip.text.depth, "text_first_layer")
        self.roles = self._role_map(clip, config, seed)
        check_roles(self.roles, clip, self.first)
        self.files[ROLES] = self.roles.to_json()
        self.needs = Needs(image=(f"rows@{self.first}",), training=("feature",))

        generator = torch.Generator().manual_seed(config.seed or 0)
        attributes = len(self.roles.attributes)
        self.vision_tokens = nn.Parameter(
            torch.randn(attributes * config.tokens_per_attribute, clip.vision.width, generator=generator)
            * config.token_std
        )
        self.text_tokens = nn.Parameter(
            torch.randn(config.text_tokens, clip.text.width, generator=generator) * config.token_std
        )
        for name, start in projection_start(config, clip, generator).items():
            self.register_parameter(name, nn.Parameter(start))
        self.fusion_scalars = nn.Parameter(initial_scalars(config.alpha_cls, attributes))
        for layer in range(self.first, clip.vision.depth + 1):
            self.register_buffer(f"mask_{layer}", self._mask(clip, layer), persistent=False)

    def _role_map(self, clip: FrozenClip, config: DearConfig, seed: int) -> RoleMap:
        if ROLES in self.files:
            return RoleMap.from_json(self.files[ROLES], where=ROLES)
        return roles_for(
            clip,
            config.roles,
            config.mask,
            first_layer=self.first,
            seed=seed,
            threshold=config.threshold,
            attributes=config.attributes,
        )

    def _mask(self, clip: FrozenClip, layer: int) -> Tensor:
        """(1, H, L, L) mask of a layer."""
        config, attributes = self.config, self.roles.attributes
        kinds_L = token_kinds(clip.vision.rows, len(attributes), config.tokens_per_attribute)
        return layer_mask(self.roles.layer(layer), attributes, kinds_L, routing=config.routing)[None]

    def facts(self) -> dict[str, str]:
        """Fusion weights and head counts."""
        names = ("[CLS]", *self.roles.attributes)
        weights = ", ".join(f"{n} {a:.3f}" for n, a in zip(names, self.alpha.tolist(), strict=True))
        counts = Counter(head.role.value.replace("_", " ") for head in self.roles.heads)
        return {
            "fusion weights": weights,
            "heads by role": ", ".join(f"{count} {role}" for role, count in counts.most_common()),
            "role map": self.roles.provenance.source,
        }

    @property
    def alpha(self) -> Tensor:
        """(G,) fusion weights of [CLS] and of each attribute."""
        return wide(self.fusion_scalars).softmax(0)

    def classes(self, clip: FrozenClip, classes: ClassList) -> FrozenText:
        """The frozen part of the text tower, once per class list."""
        tokens = tokens_of(clip, classes)
        rows = clip.text.run(clip.text.rows(clip.text.embed(tokens.ids_CT), tokens.end_C), last=self.text_first - 1)
        plain_CE = unit(clip.text.features(rows, self.text_first))
        return FrozenText(rows.share(tokens.shared), plain_CE)

    def text(self, clip: FrozenClip, frozen: FrozenText, batch: Batch | None = None) -> AdaptedText:
        """Class features with tokens between the start token and the words (Eq. 5, 6)."""
        raw_1PD = self.text_tokens[None]
        count, at = self.text_tokens.shape[0], clip.text.first

        def edit(layer: int, rows: Rows) -> Rows:
            if layer == self.text_first:
                return rows.insert(at, raw_1PD)
            return rows.put(at, self._carry(raw_1PD, rows.take(at, count)))

        adapted_CE = unit(clip.text.features(frozen.rows, self.text_first, edit=edit))
        return AdaptedText(adapted_CE, frozen.plain_CE)

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: AdaptedText, batch: Batch | None = None
    ) -> Output:
        """Attribute tokens routed by role through the last layers, then fusion (Eq. 7-11, 17-19)."""
        cls_BE, attr_BKE = self._image_features(clip, image[f"rows@{self.first}"])
        alpha_G = self.alpha
        cls_logits_BC = clip.temperature * cls_BE @ text.adapted_CE.T
        attr_logits_BKC = clip.temperature * attr_BKE @ text.adapted_CE.T
        names = self.roles.attributes
        return Output(
            {"fusion": fuse(cls_logits_BC, attr_logits_BKC, alpha_G), "decoupled": cls_logits_BC},
            features={"cls": cls_BE, **dict(zip(names, attr_BKE.unbind(1), strict=True))},
            weights=dict(zip(("cls", *names), alpha_G.unbind(), strict=True)),
            classes=text.adapted_CE,
            rest={"plain_classes": text.plain_CE} | ({"plain_image": unit(image["feature"])} if batch else {}),
        )

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy + λ_reg · (drift of image and class features) + λ_fusion · fusion term (Eq. 12-16)."""
        config, alpha_cls = self.config, out.weights["cls"]
        ce = F.cross_entropy(out.logits, batch.required_labels)
        reg_image = drift(out.features["cls"], out.rest["plain_image"])
        reg_text = drift(out.class_features, out.rest["plain_classes"])
        fusion = -alpha_cls.log() if config.fusion_loss == "neg_log" else 1 - alpha_cls
        total = ce + config.lambda_reg * (reg_image + reg_text) + config.lambda_fusion * fusion
        return {"total": total, "ce": ce, "reg_image": reg_image, "reg_text": reg_text, "fusion": fusion}

    def readings(self, clip: FrozenClip, readout: str) -> tuple[Reading, ...]:
        """[CLS] alone, or all features by their fusion weights; tokens are carried from layer to layer by 1 - β."""
        if readout != "fusion":
            return (Reading(),)
        alpha, each, projection = self.alpha.tolist(), self.config.tokens_per_attribute, self._projection(clip)
        places = [clip.vision.rows + number * each for number in range(len(self.roles.attributes))]
        tokens = (
            Reading(name, weight, tuple(range(at, at + each)), 1 - self.config.beta, projection)
            for name, weight, at in zip(self.roles.attributes, alpha[1:], places, strict=True)
        )
        return (Reading(weight=alpha[0]), *tokens)

    def _image_features(self, clip: FrozenClip, prefix_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Unit features of [CLS] (B, E) and of each attribute (B, K, E)."""
        originals, count = prefix_BND.shape[1], self.vision_tokens.shape[0]
        raw_BAD = self.vision_tokens.to(clip.vision.dtype).expand(prefix_BND.shape[0], -1, -1)

        def edit(layer: int, x_BLD: Tensor) -> Tensor:
            tokens = raw_BAD if layer == self.first else self._carry(raw_BAD, x_BLD[:, originals:])
            return torch.cat([x_BLD[:, :originals], tokens], dim=1)

        read = [*clip.vision.pooled, *range(originals, originals + count)]
        x_BQD = clip.vision.run(
            prefix_BND, self.first, edit=edit, masks=lambda layer: self.get_buffer(f"mask_{layer}"), read=read
        )
        cls_BE = clip.vision.feature(x_BQD)
        attr_BAE = clip.vision.read(x_BQD[:, -count:], projection=self._projection(clip))
        attr_BKE = attr_BAE.view(attr_BAE.shape[0], len(self.roles.attributes), -1, attr_BAE.shape[-1]).mean(2)
        return unit(cls_BE), unit(attr_BKE)

    def _projection(self, clip: FrozenClip) -> Tensor:
        """W_attr (D, E)."""
        if self.config.projection == "low_rank":
            update: Tensor = self.get_parameter("projection_down") @ self.get_parameter("projection_up")
            return wide(clip.vision.projection) + update
        return self.get_parameter("attribute_projection")

    def _carry(self, raw: Tensor, previous: Tensor) -> Tensor:
        """Input of the next layer: β · raw token + (1 - β) · the previous layer's output."""
        return self.config.beta * raw + (1 - self.config.beta) * previous


def projection_start(config: DearConfig, clip: FrozenClip, generator: torch.Generator) -> dict[str, Tensor]:
    """Named start values of the projection's parameters, in fp32."""
    width, embed = clip.vision.projection.shape
    if config.projection == "copy":
        return {"attribute_projection": clip.vision.projection.detach().float().contiguous().clone()}
    if config.projection == "random":
        return {"attribute_projection": torch.randn(width, embed, generator=generator) * width**-0.5}
    return {
        "projection_down": torch.randn(width, config.projection_rank, generator=generator) * config.token_std,
        "projection_up": torch.zeros(config.projection_rank, embed),
    }


def drift(features_XE: Tensor, frozen_XE: Tensor) -> Tensor:
    """Mean of 1 - cosine over the rows; both are of unit length."""
    return (1 - (features_XE * frozen_XE).sum(-1)).mean()


def first_layer(chosen: int | None, layers: int, setting: str) -> int:
    """The first adapted layer: the chosen one, or the first of the last four."""
    if chosen is not None and chosen > layers:
        raise ConfigError(f"{setting} is {chosen}, but the tower has {layers} layers.")
    return chosen or max(1, layers - LAST_LAYERS + 1)
