"""TAC: prompts in both towers, and tokens that represent clusters of the trained classes.

Shapes: m clusters, n learned rows per layer, N original image rows, B image rows (views × images), C classes, D width,
E joint embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.data.catalog import declarations
from dear.data.prompts import DEFAULT_TEMPLATE, ClassList
from dear.errors import ConfigError
from dear.methods.api import About, Batch, Can, Draw, Method, Needs, Output, Recipe, Settings, Special, tokens_of, unit
from dear.methods.parts.tokens import WORDS, deep_words, prompted_image, random_linear, random_rows

MOST_WORDS = 20
"""Longer contexts start at random, as published."""
STILL = 1e-4
"""k-means stops if the square of the summed moves of all centres is below this."""
MOST_ROUNDS = 300


class TACConfig(Settings):
    """Config of TAC."""

    clusters: int = Field(default=5, ge=1, le=64)
    """Number of clusters of classes, each with a token."""
    text_context: int = Field(default=5, ge=1, le=64)
    """Number of learned text rows per layer."""
    vision_context: int = Field(default=5, ge=1, le=64)
    """Number of learned image rows per layer."""
    text_depth: int = Field(default=12, ge=1)
    """Number of text layers, from the first on, that get learned rows of their own."""
    vision_depth: int = Field(default=12, ge=1)
    """Number of image layers, from the first on, that get learned rows of their own."""
    text_weight: float = Field(default=20.0, ge=0)
    """Weight of the distance of class features from plain CLIP's features of the descriptions."""
    image_weight: float = Field(default=25.0, ge=0)
    """Weight of the distance of image features from plain CLIP's features of unaugmented images."""
    dropout: float = Field(default=0.3, ge=0, lt=1)
    """Dropout rate of image features in training."""
    views: int = Field(default=4, ge=1, le=64)
    """Augmented views of each image per step."""


class Target:
    """Plain CLIP's class features of descriptions, computed when a loss first needs them."""

    def __init__(self, clip: FrozenClip, classes: ClassList) -> None:
        self._clip, self._classes = clip, classes

    @cached_property
    def features_CE(self) -> Tensor:
        """Of unit length."""
        with torch.inference_mode(False):
            return described(self._clip, self._classes)


class FrozenText(NamedTuple):
    """Embedded prompts without positions, and the target of class features."""

    words_CTD: Tensor
    end_C: Tensor
    shared: int
    target: Target


class TAC(Method[TACConfig]):
    """Learned rows in both towers, and tokens that represent clusters of the trained classes."""

    name = "tac"
    needs_of_clip = frozenset({Can.WORDS, Can.IMAGE_LAYERS, Can.TEXT_LAYERS})
    recipe = Recipe(
        optimiser="sgd", lr=2.5e-3, batch_size=8, epochs=20, drop_last=True, crop=(0.4, 1.0), average="equal"
    )
    special = (
        Special(
            {"epochs": 5, "crop": (0.8, 1.0)},
            {"text_context": 10, "vision_context": 10},
            protocols=("cross-dataset", "domain"),
        ),
    )
    about = About(
        citation="Hao et al., Task-Aware Clustering for Prompting Vision-Language Models, CVPR 2025",
        year=2025,
        touches="both towers, all layers",
        parameters=733_440,
        needs="descriptions, if any",
        code="FushengHao/TAC 914c306",
        licence="MIT",
    )

    def __init__(self, clip: FrozenClip, config: TACConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        self.needs = Needs(image=("rows@1",), training=("plain:feature",), views=config.views, drawn_images=False)
        embed = clip.geometry.embed_dim
        narrow, wide = clip.text.width, clip.vision.width
        later = [
            random_rows(self.generator, config.text_context, narrow)
            for _ in range(1, min(config.text_depth, clip.text.depth))
        ]
        self.text_prompts = nn.ParameterList([self._start(clip, self.generator), *later])
        self.vision = nn.ParameterList(
            random_rows(self.generator, config.vision_context, wide)
            for _ in range(min(config.vision_depth, clip.vision.depth))
        )
        self.cluster_to_text = random_linear(self.generator, embed, narrow)
        self.cluster_to_vision = random_linear(self.generator, embed, wide)
        self.register_buffer("centres", torch.zeros(config.clusters, embed))
        first = clip.vision.prefix if clip.vision.pool.kind == "token" else clip.vision.rows
        self._patches = slice(first, clip.vision.rows)
        self.register_buffer("mask", self._mask(clip.vision.rows), persistent=False)

    def _start(self, clip: FrozenClip, generator: torch.Generator) -> nn.Parameter:
        """One embedding per row: "a photo of a", then the end token, then padding."""
        count = self.config.text_context
        if count > MOST_WORDS:
            return random_rows(generator, count, clip.text.width)
        ids = F.pad(clip.text.tokenize([WORDS]).ids_CT[:, clip.text.first :], (0, count))[:, :count]
        return nn.Parameter(clip.text.embed(ids)[0].detach().float().clone())

    def _mask(self, originals: int) -> Tensor:
        """(1, 1, L, L): patches do not attend to cluster tokens, unless the image feature is read from them."""
        clusters = self.config.clusters
        length = originals + clusters + self.config.vision_context
        mask = torch.ones(1, 1, length, length, dtype=torch.bool)
        mask[..., self._patches, originals : originals + clusters] = False
        return mask

    def begin(self, clip: FrozenClip, draw: Draw) -> None:
        """Cluster the training classes; other class lists use the same centres."""
        features_CE = described(clip, draw.classes)
        chosen = torch.randperm(features_CE.shape[0], generator=torch.Generator().manual_seed(draw.seed))
        found = cluster_centres(features_CE, chosen[: self.config.clusters].tolist())
        places = torch.arange(self.config.clusters, device=found.device) % found.shape[0]
        self.get_buffer("centres").copy_(found[places])

    def classes(self, clip: FrozenClip, classes: ClassList) -> FrozenText:
        """Embedded prompts without positions, as learned rows are inserted before the words."""
        published = classes.dataset in declarations()
        tokens = tokens_of(clip, classes, DEFAULT_TEMPLATE if published else None)
        longest = int(tokens.end_C.max()) + 1
        room = clip.text.context - longest - self.config.clusters
        if room < self.config.text_context:
            raise ConfigError(
                f"{self.config.text_context} learned rows and {self.config.clusters} clusters do not fit next to "
                f"prompts of {longest} tokens: use at most {max(room, 0)} rows (text_context)."
            )
        words_CTD = clip.text.embed(tokens.ids_CT[:, :longest] if clip.text.causal else tokens.ids_CT)
        return FrozenText(words_CTD, tokens.end_C, tokens.shared, Target(clip, classes))

    def text(self, clip: FrozenClip, frozen: FrozenText, batch: Batch | None = None) -> dict[str, Tensor]:
        """Class features of unit length (C, E), and in training their target."""
        clusters = self.cluster_to_text(self.get_buffer("centres"))
        layers = [torch.cat([clusters, rows]) for rows in self.text_prompts]
        x_CTD, count = frozen.words_CTD, layers[0].shape[0]
        first = layers[0].to(x_CTD.dtype).expand(x_CTD.shape[0], -1, -1)
        at = clip.text.first
        x_CTD = torch.cat([x_CTD[:, :at], first, x_CTD[:, at:]], dim=1)[:, : clip.text.context]
        rows = clip.text.rows(x_CTD, frozen.end_C + count, frozen.shared + count)
        features = {"classes": unit(clip.text.features(rows, edit=deep_words(layers, at)))}
        return features if batch is None else {**features, "target": frozen.target.features_CE}

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Mapping[str, Tensor], batch: Batch | None = None
    ) -> Output:
        """Cosines of prompted image and class features; in training with dropout."""
        clusters = self.cluster_to_vision(self.get_buffer("centres"))
        layers = [torch.cat([clusters, rows]) for rows in self.vision]
        feature_BE = prompted_image(clip, image["rows@1"], layers, masks=lambda layer: self.get_buffer("mask"))
        rest: dict[str, Tensor] = {}
        if batch is not None:
            feature_BE = self._dropped(feature_BE, batch, "adapted")
            plain = unit(self._dropped(image["plain:feature"], batch, "frozen"))
            rest = {"plain_image": plain.repeat(feature_BE.shape[0] // plain.shape[0], 1), "target": text["target"]}
        feature_BE, classes_CE = unit(feature_BE), text["classes"]
        logits_BC = clip.temperature * feature_BE @ classes_CE.T
        return Output({"logits": logits_BC}, {"cls": feature_BE}, classes=classes_CE, rest=rest)

    def _dropped(self, feature: Tensor, batch: Batch, name: str) -> Tensor:
        """Features with dropout; unaugmented images have one row per image instead of one per view."""
        share = self.config.dropout
        numbers = batch.draw(name, feature.shape[1])[: feature.shape[0]].to(feature.device)
        return feature * (numbers >= share) / (1 - share)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of all views, and mean absolute distances from plain CLIP's features."""
        l1_text = (out.class_features - out.rest["target"]).abs().mean()
        l1_image = (out.features["cls"] - out.rest["plain_image"]).abs().mean()
        weighted = {"l1_text": self.config.text_weight * l1_text, "l1_image": self.config.image_weight * l1_image}
        return {**super().loss(out, batch), **weighted}


@torch.no_grad()
def described(clip: FrozenClip, classes: ClassList) -> Tensor:
    """Plain CLIP's class features (C, E): the normalised mean of raw features over the sentences of a class."""
    sentences = classes.sentences()
    encoded = clip.text.encode([one for each in sentences for one in each], cut=bool(classes.descriptions))
    parts = torch.split(encoded, [len(each) for each in sentences])
    return unit(torch.stack([part.mean(0) for part in parts]))


@torch.no_grad()
def cluster_centres(features_CE: Tensor, first: Sequence[int]) -> Tensor:
    """k-means by cosine with initial rows `first`; centres of unit length. An empty cluster does not move."""
    centres = features_CE[list(first)]
    for _ in range(MOST_ROUNDS):
        nearest_C = (unit(features_CE) @ unit(centres).T).argmax(1)
        members = [features_CE[nearest_C == place] for place in range(centres.shape[0])]
        moved = torch.stack([rows.mean(0) if len(rows) else old for rows, old in zip(members, centres, strict=True)])
        step, centres = (moved - centres).norm(dim=1).sum() ** 2, moved
        if step < STILL:
            break
    return unit(centres)
