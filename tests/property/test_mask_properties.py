"""What holds for every mask and every role map, whatever the roles, sizes and order of heads."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dear.methods.dear.masks import layer_mask, token_kinds
from dear.roles.rolemap import HeadRole, Provenance, Role, RoleMap
from reference import role_mask

words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
attribute_lists = st.lists(words, min_size=1, max_size=6, unique=True)


@st.composite
def head_lists(draw, attributes):
    count = draw(st.integers(1, 6))
    heads = []
    for index in range(count):
        role = draw(st.sampled_from(list(Role)))
        concept = {
            Role.CORE: st.sampled_from(attributes),
            Role.OTHER: words,
            Role.GENERALIZATION: st.none() | words,
            Role.MIXED: st.none(),
        }[role]
        heads.append(HeadRole(layer=1, head=index, role=role, concept=draw(concept)))
    return heads


@st.composite
def layers(draw):
    attributes = draw(attribute_lists)
    heads = draw(head_lists(attributes))
    return heads, attributes, draw(st.integers(1, 6)), draw(st.integers(1, 3))


@st.composite
def role_maps(draw):
    attributes = draw(attribute_lists)
    numbers = st.floats(0, 10, allow_nan=False)
    places = draw(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=8, unique=True))
    heads = []
    for (layer, head), role in zip(
        places, draw(st.lists(st.sampled_from(list(Role)), min_size=len(places))), strict=False
    ):
        concept = None if role is Role.MIXED else draw(words)
        evidence = {
            "phrases": tuple(draw(st.lists(words, max_size=3))),
            "entropy": draw(st.none() | numbers),
            "shares": draw(st.none() | st.dictionaries(words, st.floats(0, 1), max_size=3)),
        }
        heads.append(HeadRole(layer=layer, head=head, role=role, concept=concept, **evidence))
    provenance = Provenance(
        source=draw(words),
        weights_sha256=draw(st.none() | st.just("ab" * 32)),
        clustering=draw(
            st.none() | st.dictionaries(words, st.booleans() | st.integers() | numbers | words, max_size=3)
        ),
        thresholds=draw(st.none() | st.dictionaries(words, numbers, max_size=2)),
        derived=tuple(draw(st.lists(words, max_size=2))),
    )
    return RoleMap(attributes=tuple(attributes), heads=tuple(heads), provenance=provenance)


@given(layers(), st.sampled_from(["open", "strict"]))
def test_every_query_sees_at_least_one_key(layer, routing):
    heads, attributes, originals, per_attribute = layer
    mask = layer_mask(heads, attributes, token_kinds(originals, len(attributes), per_attribute), routing=routing)
    assert mask.any(-1).all()
    assert mask.shape == (len(heads), originals + per_attribute * len(attributes), mask.shape[1])


@given(layers(), st.sampled_from(["open", "strict"]))
def test_mask_is_the_definition_entry_by_entry(layer, routing):
    heads, attributes, originals, per_attribute = layer
    kinds = ["original"] * originals + [a for a in attributes for _ in range(per_attribute)]
    if "original" in attributes:
        return
    expected = role_mask([(h.role.value, h.concept) for h in heads], attributes, kinds, routing == "strict")
    mask = layer_mask(heads, attributes, token_kinds(originals, len(attributes), per_attribute), routing=routing)
    assert torch.equal(mask, expected == 0)


@given(layers(), st.randoms(use_true_random=False))
def test_permuting_heads_permutes_masks(layer, random):
    heads, attributes, originals, per_attribute = layer
    kinds = token_kinds(originals, len(attributes), per_attribute)
    order = list(range(len(heads)))
    random.shuffle(order)
    shuffled = layer_mask([heads[i] for i in order], attributes, kinds)
    assert torch.equal(shuffled, layer_mask(heads, attributes, kinds)[order])


@given(layers())
def test_originals_always_see_originals_and_isolation_is_mutual(layer):
    heads, attributes, originals, per_attribute = layer
    mask = layer_mask(heads, attributes, token_kinds(originals, len(attributes), per_attribute))
    assert mask[:, :originals, :originals].all()
    for head, sees in zip(heads, mask, strict=True):
        if head.role in (Role.GENERALIZATION, Role.OTHER):
            assert not sees[:originals, originals:].any()
            assert not sees[originals:, :originals].any()
        if head.role is Role.MIXED:
            assert sees.all()


@given(role_maps())
def test_json_round_trip_is_the_identity(roles):
    text = roles.to_json()
    again = RoleMap.from_json(text)
    assert again == roles
    assert again.to_json() == text


@given(role_maps(), st.integers(0, 2**32))
def test_shuffling_only_deals_the_roles_out_anew(roles, seed):
    shuffled = roles.shuffled(seed)
    assert sorted((h.role, h.concept or "") for h in shuffled.heads) == sorted(
        (h.role, h.concept or "") for h in roles.heads
    )
    assert [(h.layer, h.head, h.phrases) for h in shuffled.heads] == [(h.layer, h.head, h.phrases) for h in roles.heads]
    assert RoleMap.from_json(shuffled.to_json()) == shuffled
