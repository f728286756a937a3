"""From images and a text pool to a role map, with everything that led to it.

Shapes: M heads of the examined layers, T phrases of the pool, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from dear.backbone.clip import FrozenClip
from dear.config import Settings
from dear.methods.base import unit
from dear.roles.concepts import (
    DEFAULT_SENTENCE_MODEL,
    ClusterSettings,
    Concepts,
    Encoder,
    find_concepts,
    validity_by_count,
)
from dear.roles.corpus import TextPool
from dear.roles.entropy import Rule, entropy, role_by_dominance, roles_by_quantile, shares
from dear.roles.moments import Collected
from dear.roles.prototypes import CONCEPTS
from dear.roles.rolemap import CORE_ATTRIBUTES, HeadRole, Provenance, Role, RoleMap
from dear.roles.textspan import Moments, Span, textspan_all

Place = tuple[int, int]
RoleAndConcept = tuple[Role, str | None]


class DiscoverySettings(Settings):
    """Choices of role discovery. Layers are counted from 1."""

    first_layer: int | None = Field(default=None, ge=1)
    """First examined layer; default: the last four layers."""
    phrases: int = Field(default=20, ge=1)
    """Phrases per head (m)."""
    rule: Rule = "dominance"
    """Which of the two rules decides."""
    quantile: float = Field(default=0.2, gt=0, lt=0.5)
    """Share of heads at each end of the entropies, for the quantile rule."""
    majority: float = Field(default=0.5, gt=0, le=1)
    """Share of a head's phrases that makes a concept dominant."""
    sentence_model: str = DEFAULT_SENTENCE_MODEL
    """Name or folder of the sentence model."""
    clustering: ClusterSettings = ClusterSettings()
    """How phrases are clustered."""


@dataclass(frozen=True)
class Labels:
    """The nearest concept of every phrase of the pool: among all concepts, and among the core attributes."""

    every: tuple[str, ...]
    core: tuple[str, ...]


@dataclass(frozen=True)
class Discovery:
    """A role map and what it rests on."""

    roles: RoleMap
    by_rule: dict[str, list[RoleAndConcept]]
    places: list[Place]
    spans: list[Span]
    labels: Labels
    concepts: Concepts
    validity: dict[int, float]
    images_read: int
    problems: tuple[str, ...]


def discover(
    clip: FrozenClip,
    collected: Collected,
    pool: TextPool,
    encode: Encoder,
    settings: DiscoverySettings,
    *,
    source: str = "discovered with dear",
) -> Discovery:
    """Describe every head by phrases, group the phrases into concepts, and give each head its role."""
    places = places_of(clip, settings.first_layer)
    moments = collected.whole()
    texts_TE = pool_features(clip, pool)
    spans = textspan_all(moments, texts_TE, rank=head_rank(clip), most=settings.phrases)
    described = [pool.phrases[pick] for span in spans for pick in span.picks]
    concepts = find_concepts(described, encode, settings.clustering)
    pool_embeddings = encode(pool.phrases)
    labels = Labels(
        tuple(concepts.classify(pool_embeddings)), tuple(concepts.classify(pool_embeddings, CORE_ATTRIBUTES))
    )
    by_rule = {rule: assign(spans, labels, settings, rule=rule) for rule in ("dominance", "quantile")}
    described_rows = sorted({pick for span in spans for pick in span.picks})
    counts = shares([labels.every[row] for row in described_rows], CONCEPTS)
    frequent = sorted(CONCEPTS, key=lambda name: (-counts[name], CONCEPTS.index(name)))
    present = [name for name in frequent if counts[name] > 0]
    candidates = {count: present[:count] for count in range(2, len(present) + 1)}
    return Discovery(
        roles=_role_map(clip, places, spans, labels, by_rule[settings.rule], pool, concepts, settings, source),
        by_rule=by_rule,
        places=places,
        spans=spans,
        labels=labels,
        concepts=concepts,
        validity=validity_by_count(pool_embeddings[described_rows], concepts, candidates),
        images_read=moments.count,
        problems=collected.problems,
    )


def places_of(clip: FrozenClip, first_layer: int | None) -> list[Place]:
    """(layer, head) of every examined head, in the order of the moments."""
    first = first_examined_layer(clip, first_layer)
    layers = range(first, clip.geometry.vision_layers + 1)
    return [(layer, head) for layer in layers for head in range(clip.geometry.vision_heads)]


def first_examined_layer(clip: FrozenClip, first_layer: int | None) -> int:
    """The chosen layer, or the first of the last four."""
    return first_layer or max(1, clip.geometry.vision_layers - 3)


def head_rank(clip: FrozenClip) -> int:
    """What a head can span at most: its own dimension."""
    return min(clip.geometry.vision_width // clip.geometry.vision_heads, clip.geometry.embed_dim)


def pool_features(clip: FrozenClip, pool: TextPool) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Unit text features (T, E) of the pool, without a template."""
    return unit(clip.text.encode(pool.phrases)).cpu().numpy().astype(np.float64)


def assign(
    spans: Sequence[Span], labels: Labels, settings: DiscoverySettings, *, rule: Rule, most: int | None = None
) -> list[RoleAndConcept]:
    """Every head's role and concept from its phrases (the first `most` of them)."""
    every = [shares([labels.every[pick] for pick in span.picks[:most]], CONCEPTS) for span in spans]
    if rule == "dominance":
        return [role_by_dominance(head, CORE_ATTRIBUTES, majority=settings.majority) for head in every]
    core = [shares([labels.core[pick] for pick in span.picks[:most]], CORE_ATTRIBUTES) for span in spans]
    return roles_by_quantile(core, every, CORE_ATTRIBUTES, quantile=settings.quantile, majority=settings.majority)


def bootstrap_moments(collected: Collected, draws: int, seed: int = 0) -> list[Moments]:
    """Moments of resampled image sets: blocks of images drawn with replacement."""
    filled = [block for block in collected.blocks if block.count]
    random = np.random.default_rng(seed)
    samples = []
    for _ in range(draws):
        times = np.bincount(random.integers(len(filled), size=len(filled)), minlength=len(filled))
        parts = [
            Moments(block.count * int(n), block.sum_ME * n, block.outer_MEE * n)
            for block, n in zip(filled, times, strict=True)
            if n
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        samples.append(total)
    return samples


def _role_map(
    clip: FrozenClip,
    places: Sequence[Place],
    spans: Sequence[Span],
    labels: Labels,
    decided: Sequence[RoleAndConcept],
    pool: TextPool,
    concepts: Concepts,
    settings: DiscoverySettings,
    source: str,
) -> RoleMap:
    heads = []
    for (layer, head), span, (role, concept) in zip(places, spans, decided, strict=True):
        core = shares([labels.core[pick] for pick in span.picks], CORE_ATTRIBUTES)
        every = shares([labels.every[pick] for pick in span.picks], CONCEPTS)
        heads.append(
            HeadRole(
                layer=layer,
                head=head,
                role=role,
                concept=concept,
                phrases=tuple(pool.phrases[pick] for pick in span.picks),
                entropy=entropy(core),
                shares={name: share for name, share in every.items() if share},
            )
        )
    simple = {key: value for key, value in concepts.record.items() if isinstance(value, str | int | float | bool)}
    provenance = Provenance(
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
    return RoleMap(heads=tuple(heads), provenance=provenance)
