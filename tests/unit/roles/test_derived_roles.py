"""Role maps derived from the evidence of another: other thresholds, other numbers of attributes."""

import pytest

from dear.errors import RoleMapError
from dear.roles.derive import by_threshold, with_attributes
from dear.roles.rolemap import CORE_ATTRIBUTES, HeadRole, Provenance, Role, RoleMap


def head(number, role, concept=None, entropy=0.0, **shares):
    return HeadRole(layer=1, head=number, role=role, concept=concept, entropy=entropy, shares=shares)


def role_map(*heads):
    return RoleMap(heads=heads, provenance=Provenance(source="made up"))


def roles_of(found):
    return [(one.role, one.concept) for one in found.heads]


def test_a_threshold_takes_the_ends_of_the_entropies():
    heads = [head(i, Role.MIXED, entropy=i / 10, color=0.6, shape=0.4) for i in range(10)]
    found = roles_of(by_threshold(role_map(*heads), 20))
    assert found[:2] == [(Role.CORE, "color")] * 2
    assert found[2:8] == [(Role.MIXED, None)] * 6
    assert found[8:] == [(Role.GENERALIZATION, None)] * 2


def test_equal_entropies_are_never_separated():
    heads = [head(i, Role.MIXED, entropy=0.0, color=1.0) for i in range(5)]
    heads += [head(5 + i, Role.MIXED, entropy=1.0, color=0.5, shape=0.5) for i in range(5)]
    found = roles_of(by_threshold(role_map(*heads), 10))
    assert found == [(Role.CORE, "color")] * 5 + [(Role.GENERALIZATION, None)] * 5


def test_other_specialities_and_style_stay():
    heads = [head(0, Role.OTHER, "animal", animal=1.0), head(1, Role.GENERALIZATION, "style", style=1.0)]
    heads += [head(2 + i, Role.MIXED, entropy=float(i), shape=1.0) for i in range(4)]
    assert roles_of(by_threshold(role_map(*heads), 25))[:2] == [(Role.OTHER, "animal"), (Role.GENERALIZATION, "style")]


def test_a_head_without_phrases_stays_mixed():
    """Discovery records no entropy for it, and the whole map was refused as one that discovery had not made."""
    heads = [head(i, Role.MIXED, entropy=i / 10, color=0.6, shape=0.4) for i in range(10)]
    silent = HeadRole(layer=1, head=10, role=Role.MIXED, shares={})
    found = by_threshold(role_map(*heads, silent), 20)
    assert roles_of(found) == [*roles_of(by_threshold(role_map(*heads), 20)), (Role.MIXED, None)]
    again = RoleMap.from_json(found.to_json())
    assert roles_of(by_threshold(again, 20)) == roles_of(found)


def test_a_map_without_evidence_cannot_be_cut():
    with pytest.raises(RoleMapError, match="records no entropy for head"):
        by_threshold(RoleMap.load("vit-b-16").all_mixed(), 20)
    with pytest.raises(RoleMapError, match="between 0 and 50"):
        by_threshold(role_map(head(0, Role.MIXED)), 50)


def test_fewer_and_more_attributes():
    paper = RoleMap.load("vit-b-16")
    three = with_attributes(paper, 3)
    assert three.attributes == ("texture", "object", "location")
    assert sum(one.role is Role.CORE for one in three.heads) == 13 + 6 + 4
    assert sum(one.role is Role.OTHER for one in three.heads) == 8 + 3 + 2
    seven = with_attributes(paper, 7)
    assert seven.attributes[:5] == CORE_ATTRIBUTES
    assert len(seven.attributes) == 7
    assert sum(one.role is Role.CORE for one in seven.heads) > 28
    assert with_attributes(seven, 11).attributes[:7] == seven.attributes
    assert len(set(with_attributes(seven, 11).attributes)) == 11
    plain = role_map(head(0, Role.CORE, "color"))
    added = ("animal", "human", "text", "number")
    assert with_attributes(with_attributes(plain, 7), 9).attributes == CORE_ATTRIBUTES + added
    assert with_attributes(paper, 5).heads == paper.heads
    assert with_attributes(paper, 5).provenance.derived == ("attributes=5",)
