"""Shares, entropy and the two rules: bounds, invariances and counts that hold for any head."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear.roles.entropy import dominant, entropy, kappa, role_by_dominance, roles_by_quantile, shares
from dear.roles.prototypes import CONCEPTS
from dear.roles.rolemap import CORE_ATTRIBUTES, Role

CORE = list(CORE_ATTRIBUTES)
phrases = st.lists(st.sampled_from(CONCEPTS), min_size=1, max_size=30)
core_phrases = st.lists(st.sampled_from(CORE), min_size=1, max_size=30)


@given(core_phrases)
def test_shares_sum_to_one_and_entropy_is_bounded(labels):
    p = shares(labels, CORE)
    assert sum(p.values()) == pytest.approx(1)
    assert 0 <= entropy(p) <= math.log(len(CORE)) + 1e-12
    assert (entropy(p) == 0) == (len(set(labels)) == 1)


@given(core_phrases, st.randoms(use_true_random=False))
def test_entropy_and_dominance_ignore_order(labels, random):
    mixed = random.sample(labels, len(labels))
    assert shares(mixed, CORE) == shares(labels, CORE)
    renamed = dict(zip(CORE, random.sample(CORE, len(CORE)), strict=True))
    assert entropy(shares([renamed[x] for x in labels], CORE)) == pytest.approx(entropy(shares(labels, CORE)))
    found, lead = dominant(shares(labels, CORE)), Counter(labels).most_common(2)
    tied = len(lead) > 1 and lead[0][1] == lead[1][1]
    assert found == (None if tied else lead[0][0])
    assert dominant(shares([renamed[x] for x in labels], CORE)) == (renamed[found] if found else None)


@given(phrases)
def test_dominance_rule(labels):
    p = shares(labels, CONCEPTS)
    role, concept = role_by_dominance(p, CORE)
    if role is Role.CORE:
        assert concept in CORE
        assert p[concept] >= 0.5
    elif role is Role.OTHER:
        assert concept not in {*CORE, "style"}
        assert p[concept] >= 0.5
    elif role is Role.GENERALIZATION:
        assert concept == dominant(p) == "style"
    else:
        assert concept is None
        assert dominant(p) is None or p[dominant(p)] < 0.5


heads = st.lists(core_phrases, min_size=1, max_size=30)


def by_quantile(all_labels, quantile):
    core = [shares([x for x in labels if x in CORE], CORE) for labels in all_labels]
    return roles_by_quantile(core, [shares(labels, CONCEPTS) for labels in all_labels], CORE, quantile=quantile)


@given(heads, st.sampled_from([0.1, 0.2, 0.3, 0.4]), st.randoms(use_true_random=False))
def test_quantile_rule_looks_at_the_evidence_only(all_labels, quantile, random):
    roles = by_quantile(all_labels, quantile)
    order = random.sample(range(len(all_labels)), len(all_labels))
    assert by_quantile([all_labels[i] for i in order], quantile) == [roles[i] for i in order]


@given(heads, st.sampled_from([0.1, 0.2, 0.3, 0.4]))
def test_quantile_counts(all_labels, quantile):
    roles = by_quantile(all_labels, quantile)
    entropies = [round(entropy(shares(labels, CORE)), 9) for labels in all_labels]
    edge = round(quantile * len(all_labels))
    core = [e for e, (role, _) in zip(entropies, roles, strict=True) if role is Role.CORE]
    general = [e for e, (role, _) in zip(entropies, roles, strict=True) if role is Role.GENERALIZATION]
    if len(set(entropies)) == len(entropies):
        assert len(general) == edge
        assert len(core) == sum(
            dominant(shares(all_labels[i], CORE)) is not None
            for i in sorted(range(len(entropies)), key=entropies.__getitem__)[:edge]
        )
    if core and general:
        assert max(core) < min(general)
    if not edge:
        assert not core
        assert not general


def test_a_non_core_head_is_settled_before_entropies_are_ranked():
    style = ["style"] * 9 + ["location"]  # among the core attributes it would be wholly about location
    roles = by_quantile([style, ["animal"] * 3, ["color"] * 3, ["color", "shape"], ["color", "shape", "object"]], 0.34)
    assert roles[:3] == [(Role.GENERALIZATION, "style"), (Role.OTHER, "animal"), (Role.CORE, "color")]


def test_a_head_without_phrases_is_mixed_and_takes_no_place():
    empty = dict.fromkeys(CORE, 0.0)
    core = [empty, shares(["color"], CORE), shares(["color", "shape"], CORE)]
    every = [dict.fromkeys(CONCEPTS, 0.0), shares(["color"], CONCEPTS), shares(["color", "shape"], CONCEPTS)]
    roles = roles_by_quantile(core, every, CORE, quantile=0.4)
    assert roles == [(Role.MIXED, None), (Role.CORE, "color"), (Role.GENERALIZATION, None)]
    assert role_by_dominance(every[0], CORE) == (Role.MIXED, None)


def test_half_and_half_is_mixed():
    assert role_by_dominance(shares(["color", "style"], CONCEPTS), CORE) == (Role.MIXED, None)
    assert role_by_dominance(shares(["color", "shape"], CONCEPTS), CORE) == (Role.MIXED, None)


def test_kappa_by_hand():
    first, second = list("aabb"), list("abbb")  # agree in 3 of 4; by chance (2*1 + 2*3) / 16
    assert kappa(first, second) == pytest.approx((0.75 - 0.5) / 0.5)
    assert kappa(first, first) == 1
    assert kappa(list("aa"), list("aa")) == 1
    assert kappa(list("ab"), list("ba")) == -1
