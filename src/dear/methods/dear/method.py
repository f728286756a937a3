"""DeAR itself: a frozen CLIP whose last layers carry attribute tokens under a role mask.

Shapes: B images, N original tokens, D vision width, C classes, T words, K attributes, G = K + 1, E joint embedding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.errors import ConfigError, InputError
from dear.methods.base import (
    DEFAULT_TEMPLATE,
    ClassList,
    Output,
    PrefixKind,
    Strategy,
    check_labels,
    check_strategy,
    class_list,
    frozen_output,
    full_precision,
    require_classes,
    require_clip,
    tokenize_classes,
    unit,
)
from dear.methods.dear.config import DearConfig
from dear.methods.dear.fusion import fuse, initial_scalars
from dear.methods.dear.kept import KeptFeatures, KeptMasks, same
from dear.methods.dear.losses import DearLoss, dear_loss
from dear.methods.dear.masks import layer_mask, token_kinds
from dear.methods.dear.roles import ROLE_CHOICES, check_roles, roles_for
from dear.methods.dear.tail import text_tail, vision_tail
from dear.methods.dear.tokens import new_tokens, projection_start
from dear.methods.registry import register
from dear.roles.rolemap import RoleMap

if TYPE_CHECKING:
    from dear.predict import Prediction

LAST_LAYERS = 4


@register
class DeAR(nn.Module):
    """A CLIP adapted by decomposing the roles of its attention heads."""

    name: ClassVar[str] = "dear"
    choice_names: ClassVar[frozenset[str]] = frozenset({*DearConfig.model_fields, *ROLE_CHOICES})
    _text_prefix_CTD: Tensor | None
    _text_end_C: Tensor | None
    _frozen_class_features_CE: Tensor | None

    def __init__(
        self, clip: FrozenClip, roles: RoleMap | str | Path, *, config: DearConfig | None = None, **choices: Any
    ) -> None:
        """Put fresh tokens into a frozen CLIP.

        Args:
            clip: from `dear.load_clip`.
            roles: a `RoleMap`, the path of a roles.json, or the name of a shipped map ("vit-b-16").
            config: choices made elsewhere.
            **choices: any field of `DearConfig`, such as beta=0.9, text_tokens=5, alpha_cls=0.7, lambda_reg=1.0.
        """
        super().__init__()
        config = DearConfig(**{**(config.model_dump() if config else {}), **choices})
        self.clip = require_clip(clip)
        self.config = config
        self.roles = roles if isinstance(roles, RoleMap) else RoleMap.load(roles)
        self.first_layer = _first_layer(config.first_layer, clip.geometry.vision_layers, "first_layer")
        self.text_first_layer = _first_layer(config.text_first_layer, clip.geometry.text_layers, "text_first_layer")
        check_roles(self.roles, clip, self.first_layer)

        sizes, attributes = clip.geometry, len(self.roles.attributes)
        generator = torch.Generator().manual_seed(config.seed)
        self.vision_tokens = new_tokens(
            attributes * config.tokens_per_attribute,
            sizes.vision_width,
            std=config.token_std,
            generator=generator,
        )
        self.text_tokens = new_tokens(config.text_tokens, sizes.text_width, std=config.token_std, generator=generator)
        for name, start in projection_start(config, clip, generator).items():
            self.register_parameter(name, nn.Parameter(start))
        self.fusion_scalars = nn.Parameter(initial_scalars(config.alpha_cls, attributes))
        self.to(clip.device)

        self._classes: ClassList | None = None
        self._class_feature_cache: KeptFeatures | None = None
        self._kept_masks: KeptMasks | None = None
        self._plain_class_features_CE: Tensor | None = None
        self._is_disabled = False
        self._text_shared = 1
        for buffer in ("_text_prefix_CTD", "_text_end_C", "_frozen_class_features_CE"):
            self.register_buffer(buffer, None, persistent=False)

    @property
    def attributes(self) -> tuple[str, ...]:
        """The core attributes, in the order of tokens, features and fusion weights."""
        return self.roles.attributes

    @property
    def classes(self) -> ClassList | None:
        """The classes set last, or None."""
        return self._classes

    @property
    def alpha(self) -> Tensor:
        """(G,) fusion weights of [CLS] and of each attribute."""
        return self.fusion_scalars.float().softmax(0)

    def set_classes(self, names: Sequence[str], template: str = DEFAULT_TEMPLATE) -> None:
        """Choose the classes to tell apart; the frozen part of the text tower runs here, once."""
        classes = class_list(names, template)
        if classes == self._classes:
            return
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(self.clip.device.type, enabled=False):
            prompts = tokenize_classes(self.clip, classes)
            prefix_CTD = self.clip.text.prefix(prompts.ids_CT, self.text_first_layer)
            frozen_CE = unit(self.clip.text.frozen_features(prefix_CTD, prompts.end_C, self.text_first_layer))
        self._classes = classes
        self._text_prefix_CTD, self._text_end_C, self._text_shared = prefix_CTD, prompts.end_C, prompts.shared
        self._frozen_class_features_CE = frozen_CE
        self._class_feature_cache = self._plain_class_features_CE = None

    def forward(self, images: Tensor, *, strategy: Strategy = "fusion") -> Output:
        """Classify preprocessed images (B, 3, H, W)."""
        if self._is_disabled:
            check_strategy(strategy)
            return self._plain_output(self.clip.encode_image(images))
        return self.from_prefix(self.image_prefix(images), strategy=strategy)

    def image_prefix(self, images: Tensor) -> Tensor:
        """State (B, N, D) before the first adapted layer; it depends on nothing that is trained."""
        return self.clip.vision.prefix(images, self.first_layer)

    @property
    def prefix_kind(self) -> PrefixKind:
        """States of the vision tower's original tokens."""
        sizes = self.clip.geometry
        return PrefixKind(f"vision state before layer {self.first_layer}", (sizes.vision_tokens, sizes.vision_width))

    def from_prefix(self, prefix: Tensor, *, strategy: Strategy = "fusion") -> Output:
        """Classify from `image_prefix`'s result, which may have been kept in another precision."""
        check_strategy(strategy)
        self.clip.vision.check_prefix(prefix)
        prefix = prefix.to(self.clip.vision.dtype)
        if self._is_disabled:
            return self._plain_output(self._frozen_image_features(prefix))
        class_features_CE = self.class_features()
        cls_BE, attr_BKE = self._image_features(prefix)
        temperature, alpha_G = self.clip.temperature, self.alpha
        with full_precision(prefix):
            cls_logits_BC = temperature * cls_BE @ class_features_CE.T
            attr_logits_BKC = temperature * attr_BKE @ class_features_CE.T
            fused_BC = fuse(cls_logits_BC, attr_logits_BKC, alpha_G)
        return Output(
            logits=fused_BC if strategy == "fusion" else cls_logits_BC,
            cls_logits=cls_logits_BC,
            attr_logits=attr_logits_BKC,
            alpha=alpha_G,
            cls_features=cls_BE,
            attr_features=attr_BKE,
            class_features=class_features_CE,
            classes=self._classes,
            image_prefix=prefix if torch.is_grad_enabled() else None,
        )

    @property
    def view_kind(self) -> PrefixKind:
        """A prefix and plain CLIP's image features, end to end."""
        name, (tokens, width) = self.prefix_kind
        return PrefixKind(f"{name}, image features", (tokens * width + self.clip.geometry.embed_dim,))

    def image_view(self, images: Tensor) -> Tensor:
        """The prefix, flat, followed by plain CLIP's features, which the loss compares with."""
        prefix = self.image_prefix(images)
        return torch.cat([prefix.flatten(1), self._frozen_image_features(prefix).to(prefix.dtype)], dim=1)

    def from_view(self, views: Tensor) -> Output:
        """Classify from `image_view`'s result."""
        shape = self.prefix_kind.shape
        flat, plain_BE = torch.split(views, [math.prod(shape), self.clip.geometry.embed_dim], dim=1)
        return replace(self.from_prefix(flat.view(len(flat), *shape)), plain_features=unit(plain_BE))

    def class_features(self) -> Tensor:
        """(C, E) features of the classes.

        With gradients they are computed anew, for each backward pass needs a graph of its own; without, they are kept
        until classes, tokens or precision change.
        """
        if self._is_disabled:
            return self._plain_class_features()
        if torch.is_grad_enabled() and self.text_tokens.requires_grad:
            return self._compute_class_features()
        autocast = torch.is_autocast_enabled(self.clip.device.type)
        kept = self._class_feature_cache
        if kept is None or kept.autocast != autocast or not same(kept.tokens_PD, self.text_tokens):
            with torch.inference_mode(False), torch.no_grad():
                kept = KeptFeatures(self.text_tokens.detach().clone(), autocast, self._compute_class_features())
            self._class_feature_cache = kept
        return kept.features_CE

    def loss(self, out: Output, labels: Tensor, *, images: Tensor | None = None) -> DearLoss:
        """The training loss of a batch. `images` are needed only where `out` was made without gradients."""
        check_labels(out, labels)
        if out.classes != require_classes(self._classes):
            raise InputError("The classes were changed after this output was made: call the model again.")
        plain_BE = out.plain_features
        if plain_BE is None:
            prefix = out.image_prefix
            if prefix is None:
                if images is None:
                    raise InputError(
                        "The loss compares with plain CLIP: give the batch's images, loss(out, labels, images=…)."
                    )
                prefix = self.image_prefix(images)
            plain_BE = self._frozen_image_features(prefix)
        assert self._frozen_class_features_CE is not None
        return dear_loss(
            logits_BC=out.logits,
            labels_B=labels,
            cls_features_BE=out.cls_features,
            frozen_cls_features_BE=plain_BE,
            class_features_CE=out.class_features,
            frozen_class_features_CE=self._frozen_class_features_CE,
            alpha_cls=out.alpha[0],
            lambda_reg=self.config.lambda_reg,
            lambda_fusion=self.config.lambda_fusion,
            fusion_form=self.config.fusion_loss,
        )

    def predict(
        self,
        images: Sequence[Any],
        classes: Sequence[str] | None = None,
        *,
        template: str | None = None,
        strategy: Strategy = "fusion",
        top: int = 5,
    ) -> list[Prediction]:
        """Say what images show; see `dear.predict.predict`."""
        from dear.predict import predict

        return predict(self, images, classes, template=template, strategy=strategy, top=top)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Everything that training may change, by name."""
        return dict(self.named_parameters(recurse=False))

    def requires_grad_(self, requires_grad: bool = True) -> DeAR:
        """Switch training of the adapter on or off; CLIP stays frozen."""
        for parameter in self.trainable().values():
            parameter.requires_grad_(requires_grad)
        return self

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Within this context the model is plain CLIP, exactly."""
        before, self._is_disabled = self._is_disabled, True
        try:
            yield
        finally:
            self._is_disabled = before

    def settings(self) -> dict[str, Any]:
        """The choices as plain values."""
        settings: dict[str, Any] = self.config.model_dump(mode="json")
        return settings

    def artefact_files(self) -> dict[str, str]:
        """The role map belongs to the adapter."""
        return {"roles.json": self.roles.to_json()}

    def facts(self) -> dict[str, str]:
        """Fusion weights and head counts."""
        names = ("[CLS]", *self.attributes)
        weights = ", ".join(f"{n} {a:.3f}" for n, a in zip(names, self.alpha.tolist(), strict=True))
        counts = Counter(head.role.value.replace("_", " ") for head in self.roles.heads)
        return {
            "fusion weights": weights,
            "heads by role": ", ".join(f"{count} {role}" for role, count in counts.most_common()),
            "role map": self.roles.provenance.source,
        }

    @classmethod
    def build(cls, clip: FrozenClip, *, seed: int, choices: Mapping[str, Any]) -> DeAR:
        """Make an untrained model from the fields of `DearConfig` and `ROLE_CHOICES`, see `roles_for`."""
        fields = {name: value for name, value in choices.items() if name not in ROLE_CHOICES}
        about_roles = {"roles": None, **{name: value for name, value in choices.items() if name in ROLE_CHOICES}}
        first = _first_layer(choices.get("first_layer"), clip.geometry.vision_layers, "first_layer")
        roles = roles_for(clip, **about_roles, first_layer=first, seed=seed)
        return cls(clip, roles, **{"seed": seed, **fields})

    @classmethod
    def from_artefact(cls, clip: FrozenClip, settings: Mapping[str, Any], files: Mapping[str, str]) -> DeAR:
        """Build the model again from a saved adapter's settings and role map."""
        return cls(clip, RoleMap.from_json(files["roles.json"], where="roles.json"), **settings)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Save what was trained (not CLIP): settings, tensors, role map and a card. See `dear.load`."""
        from dear.artefact import save

        return save(self, folder, overwrite=overwrite)

    def __repr__(self) -> str:
        """One line instead of CLIP's hundreds."""
        trained = sum(p.numel() for p in self.trainable().values())
        total = sum(p.numel() for p in self.parameters())
        return (
            f"DeAR({self.clip.name}, {len(self.attributes)} attributes, {trained:,} of {total:,} parameters trainable)"
        )

    def _image_features(self, prefix_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Unit features of [CLS] (B, E) and of each attribute (B, K, E)."""
        masks = self._masks(prefix_BND)
        read_BQD = vision_tail(
            self.clip.vision,
            prefix_BND,
            self.vision_tokens,
            masks,
            first=self.first_layer,
            beta=self.config.beta,
        )
        with full_precision(read_BQD):
            cls_BE = read_BQD[:, 0].float() @ self.clip.vision.projection.float()
            attr_BAE = read_BQD[:, 1:].float() @ self._projection().float()
        attr_BKE = attr_BAE.view(len(attr_BAE), len(self.attributes), -1, attr_BAE.shape[-1]).mean(2)
        return unit(cls_BE), unit(attr_BKE)

    def _masks(self, prefix_BND: Tensor) -> list[Tensor]:
        """One mask a layer, made from the role map and made again whenever that is another one."""
        kept, originals, device = self._kept_masks, prefix_BND.shape[1], prefix_BND.device
        if kept is None or kept.roles is not self.roles or (kept.originals, kept.device) != (originals, device):
            layers = range(self.first_layer, self.clip.vision.layers + 1)
            with torch.inference_mode(False):
                kinds_L = token_kinds(originals, len(self.attributes), self.config.tokens_per_attribute).to(device)
                masks = [
                    layer_mask(self.roles.layer(layer), self.attributes, kinds_L, strict=self.config.strict_routing)
                    for layer in layers
                ]
            kept = self._kept_masks = KeptMasks(self.roles, originals, device, masks)
        return kept.masks

    def _projection(self) -> Tensor:
        """W_attr (D, E)."""
        if self.config.projection == "low_rank":
            update: Tensor = self.get_parameter("projection_down") @ self.get_parameter("projection_up")
            return self.clip.vision.projection.float() + update
        return self.get_parameter("attribute_projection")

    def _compute_class_features(self) -> Tensor:
        require_classes(self._classes)
        assert self._text_prefix_CTD is not None
        assert self._text_end_C is not None
        return unit(
            text_tail(
                self.clip.text,
                self._text_prefix_CTD,
                self._text_end_C,
                self.text_tokens,
                shared=self._text_shared,
                first=self.text_first_layer,
                beta=self.config.beta,
            )
        )

    def _frozen_image_features(self, prefix_BND: Tensor) -> Tensor:
        return unit(self.clip.vision.frozen_features(prefix_BND, self.first_layer))

    def _plain_output(self, image_features_BE: Tensor) -> Output:
        classes = require_classes(self._classes)
        return frozen_output(self.clip, image_features_BE, self._plain_class_features(), classes)

    def _plain_class_features(self) -> Tensor:
        """OpenCLIP's own class features, for `disabled`."""
        kept = self._plain_class_features_CE
        if kept is None or kept.device != self.clip.device:
            kept = self.clip.encode_text(require_classes(self._classes).prompts)
            self._plain_class_features_CE = kept
        return kept


def _first_layer(chosen: int | None, layers: int, setting: str) -> int:
    if chosen is not None and chosen > layers:
        raise ConfigError(f"{setting} is {chosen}, but the tower has {layers} layers.")
    return chosen or max(1, layers - LAST_LAYERS + 1)
