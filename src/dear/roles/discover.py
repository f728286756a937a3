"""Role discovery: determine the role of every head from images and a text pool.

Shapes: M heads of the examined layers, T phrases of the pool, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from pydantic import Field

from dear.backbone.clip import FrozenClip
from dear.backbone.support import Can
from dear.config import Settings
from dear.errors import ConfigError, RolesError
from dear.roles.concepts import (
    DEFAULT_SENTENCE_MODEL,
    ClusterSettings,
    Concepts,
    Encoder,
    find_concepts,
    validity_by_count,
)
from dear.roles.corpus import TextPool
from dear.roles.entropy import RoleAndConcept, Rule, entropy, role_by_dominance, roles_by_quantile, shares
from dear.roles.moments import Collected
from dear.roles.rolemap import CORE_ATTRIBUTES, LAST_LAYERS, HeadRole, Provenance, RoleMap
from dear.roles.textspan import Array, Span, textspan_all

Place = tuple[int, int]
RULES: tuple[Rule, ...] = ("dominance", "quantile")


class DiscoverySettings(Settings):
    """Settings of role discovery. Layers are counted from 1."""

    first_layer: int | None = Field(default=None, ge=1)
    """First layer to examine; by default the first of the last four."""
    phrases: int = Field(default=20, ge=1)
    """Largest number of phrases per head (m); a head has at most as many as its dimension."""
    rule: Rule = "dominance"
    """The rule that decides."""
    quantile: float = Field(default=0.2, gt=0, lt=0.5)
    """Fraction of heads at each end of the entropy ranking, for the quantile rule."""
    majority: float = Field(default=0.5, gt=0, le=1)
    """Fraction of a head's phrases above which a concept is dominant."""
    sentence_model: str = DEFAULT_SENTENCE_MODEL
    """Name or folder of the sentence model."""
    clustering: ClusterSettings = ClusterSettings()
    """Settings of the clustering of phrases."""


@dataclass(frozen=True)
class Labels:
    """The nearest concept of every phrase in the pool: among all concepts, and among the core attributes."""

    concepts: tuple[str, ...]
    every: tuple[str, ...]
    core: tuple[str, ...]

    def shares(self, span: Span, most: int | None = None) -> tuple[dict[str, float], dict[str, float]]:
        """Fractions of a head's (first `most`) phrases by concept: over all concepts, and over the core attributes."""
        picks = span.picks[:most]
        every = shares([self.every[pick] for pick in picks], self.concepts)
        return every, shares([self.core[pick] for pick in picks], CORE_ATTRIBUTES)


@dataclass(frozen=True)
class Discovery:
    """A role map and the evidence for it."""

    roles: RoleMap
    """The map by the chosen rule."""
    maps: dict[Rule, RoleMap]
    """The map by each rule."""
    by_rule: dict[Rule, list[RoleAndConcept]]
    places: list[Place]
    spans: list[Span]
    texts_TE: Array
    labels: Labels
    concepts: Concepts
    validity: dict[int, float | None]


def discover(
    clip: FrozenClip,
    collected: Collected,
    pool: TextPool,
    encode: Encoder,
    settings: DiscoverySettings,
    *,
    source: str = "discovered with dear",
    validate: bool = True,
) -> Discovery:
    """Describe every head by phrases, group the phrases into concepts, and assign a role to each head.

    `validate` also measures how well the phrases separate into 2, 3, … groups; roles do not depend on this.
    """
    places = places_of(clip, settings.first_layer)
    texts_TE = text_features(clip, pool.phrases)
    spans = textspan_all(collected.whole(), texts_TE, rank=head_rank(clip), most=settings.phrases)
    described = sorted({pick for span in spans for pick in span.picks})
    if not described:
        raise RolesError(
            "No phrase describes any head, because the heads do not vary over these images: use other images."
        )
    concepts = find_concepts([pool.phrases[pick] for pick in described], encode, settings.clustering, pool.exemplars)
    embeddings = encode(pool.phrases)
    labels = Labels(
        concepts.names, tuple(concepts.classify(embeddings)), tuple(concepts.classify(embeddings, CORE_ATTRIBUTES))
    )
    by_rule = {rule: assign(spans, labels, settings, rule=rule) for rule in RULES}
    maps = {
        rule: RoleMap(
            heads=_heads(places, spans, labels, by_rule[rule], pool),
            provenance=_provenance(clip, pool, concepts, settings.model_copy(update={"rule": rule}), source),
        )
        for rule in RULES
    }
    return Discovery(
        roles=maps[settings.rule],
        maps=maps,
        by_rule=by_rule,
        places=places,
        spans=spans,
        texts_TE=texts_TE,
        labels=labels,
        concepts=concepts,
        validity=validity_by_count(embeddings[described], concepts) if validate else {},
    )


def first_examined_layer(clip: FrozenClip, first_layer: int | None) -> int:
    """The first layer to examine: `first_layer`, or by default the first of the last four."""
    clip.require({Can.IMAGE_LAYERS}, "Finding the roles of heads")
    layers = clip.geometry.vision_layers
    if first_layer is not None and first_layer > layers:
        raise ConfigError(f"The first layer is {first_layer}, but {clip.name} has image layers 1 to {layers}.")
    return first_layer or max(1, layers - LAST_LAYERS + 1)


def places_of(clip: FrozenClip, first_layer: int | None) -> list[Place]:
    """(layer, head) of all examined heads, in the order of the moments."""
    layers = range(first_examined_layer(clip, first_layer), clip.geometry.vision_layers + 1)
    return [(layer, head) for layer in layers for head in range(clip.geometry.vision_heads)]


def head_rank(clip: FrozenClip) -> int:
    """The dimension of a head, which limits the number of its phrases."""
    return min(clip.geometry.vision_width // clip.geometry.vision_heads, clip.geometry.embed_dim)


def text_features(clip: FrozenClip, phrases: Sequence[str]) -> Array:
    """Text features (T, E) of phrases, of unit length, without a template."""
    return F.normalize(clip.text.encode(phrases).float(), dim=-1).cpu().numpy().astype(np.float64)


def assign(
    spans: Sequence[Span], labels: Labels, settings: DiscoverySettings, *, rule: Rule, most: int | None = None
) -> list[RoleAndConcept]:
    """Role and concept of every head from its phrases (the first `most` of them)."""
    both = [labels.shares(span, most) for span in spans]
    every, core = [pair[0] for pair in both], [pair[1] for pair in both]
    if rule == "dominance":
        return [role_by_dominance(head, CORE_ATTRIBUTES, majority=settings.majority) for head in every]
    return roles_by_quantile(core, every, CORE_ATTRIBUTES, quantile=settings.quantile, majority=settings.majority)


def _heads(
    places: Sequence[Place],
    spans: Sequence[Span],
    labels: Labels,
    decided: Sequence[RoleAndConcept],
    pool: TextPool,
) -> tuple[HeadRole, ...]:
    heads = []
    for (layer, head), span, (role, concept) in zip(places, spans, decided, strict=True):
        every, core = labels.shares(span)
        heads.append(
            HeadRole(
                layer=layer,
                head=head,
                role=role,
                concept=concept,
                phrases=tuple(pool.phrases[pick] for pick in span.picks),
                entropy=entropy(core) if span.picks else None,
                shares={name: share for name, share in every.items() if share},
            )
        )
    return tuple(heads)


def _provenance(
    clip: FrozenClip, pool: TextPool, concepts: Concepts, settings: DiscoverySettings, source: str
) -> Provenance:
    simple = {key: value for key, value in concepts.record.items() if isinstance(value, str | int | float | bool)}
    return Provenance(
        source=source,
        model=clip.name,
        pretrained=clip.pretrained,
        weights_sha256=clip.weights_sha256,
        text_pool_sha256=pool.sha256,
        sentence_model=settings.sentence_model,
        clustering={**simple, "clusters": len(concepts.record["clusters"])},
        rule=settings.rule,
        thresholds={"quantile": settings.quantile, "majority": settings.majority},
    )
