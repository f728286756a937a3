"""Role maps: the shipped one, the strict format, the ablations, and what is said when a map does not fit."""

import json
from collections import Counter

import pytest

import dear
from dear import errors
from dear.roles.rolemap import HeadRole, Provenance, Role, RoleMap
from helpers import varied_roles


def edited(roles, **changes) -> str:
    return json.dumps({**json.loads(roles.to_json()), **changes})


def test_table_2_of_the_supplement():
    table = RoleMap.load("vit-b-16")
    assert {(h.layer, h.head) for h in table.heads} == {(layer, head) for layer in range(9, 13) for head in range(12)}
    assert Counter(h.role for h in table.heads) == {
        Role.CORE: 28,
        Role.GENERALIZATION: 7,
        Role.MIXED: 5,
        Role.OTHER: 8,
    }
    assert Counter(h.concept for h in table.heads if h.role is Role.CORE) == {
        "location": 13,
        "object": 6,
        "texture": 4,
        "color": 3,
        "shape": 2,
    }
    assert all(h.concept == "style" for h in table.heads if h.role is Role.GENERALIZATION)
    assert {h.concept for h in table.heads if h.role is Role.OTHER} == {
        "emotion",
        "text",
        "human",
        "animal",
        "action",
        "number",
    }
    assert all(len(h.phrases) >= 3 for h in table.heads)
    assert table[9, 0].concept == "location"
    assert table[12, 10].phrases == (
        "An image with cold green tones",
        "Image with a red color",
        "A charcoal gray color",
    )
    assert table[11, 9].phrases[-1] == "Precise clock mechanism"
    assert "Table 2" in table.provenance.source
    assert table.attributes == ("color", "shape", "texture", "object", "location")


def test_load_by_path_and_by_wrong_name(roles, tmp_path):
    roles.save(tmp_path / "roles.json")
    assert RoleMap.load(tmp_path / "roles.json") == roles
    with pytest.raises(
        errors.RoleMapError, match=r"no role map 'vit-b16'.*shipped maps \(.*vit-b-16.*Did you mean 'vit-b-16'"
    ):
        RoleMap.load("vit-b16")
    (tmp_path / "roles.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(errors.RoleMapError, match="is not a role map: it is not valid JSON"):
        RoleMap.load(tmp_path / "roles.json")


def test_ablations_keep_heads_and_say_what_they_are(roles):
    for derived, role in ((roles.all_generalization(), Role.GENERALIZATION), (roles.all_mixed(), Role.MIXED)):
        assert {h.role for h in derived.heads} == {role}
        assert [(h.layer, h.head) for h in derived.heads] == [(h.layer, h.head) for h in roles.heads]
    assert roles.shuffled(1) == roles.shuffled(1) != roles.shuffled(2)
    assert roles.all_mixed().shuffled(3).provenance.derived == ("all_mixed", "shuffled(seed=3)")


def test_shuffle_is_the_same_on_every_machine():
    shuffled = RoleMap.load("vit-b-16").shuffled(1)
    assert [h.concept for h in shuffled.layer(9)] == [
        None,
        "location",
        "number",
        "location",
        "style",
        "location",
        None,
        "texture",
        "style",
        "location",
        "object",
        "color",
    ]


def test_every_misfit_is_named_at_once(clip, roles):
    heads = [h for h in roles.heads if (h.layer, h.head) not in {(3, 0), (6, 5)}]
    heads[0] = HeadRole(layer=3, head=1, role="core_attribute", concept="smell")
    heads.append(HeadRole(layer=2, head=0, role="mixed"))
    wrong = RoleMap(heads=tuple(heads), provenance=Provenance(source="test", weights_sha256="0" * 64))
    with pytest.raises(errors.RoleMapError) as caught:
        dear.DeAR(clip, wrong)
    assert str(caught.value) == (
        f"The role map does not fit layers 3-6 of {clip.name}: heads without a role: (3, 0), (6, 5); "
        "heads the adapted layers do not have: (2, 0); unknown attribute 'smell' at (3, 1); "
        f"made for weights 000000000000…, but the backbone's are {clip.weights_sha256[:12]}…."
    )


def test_map_of_another_backbone(clip):
    with pytest.raises(
        errors.RoleMapError, match=r"heads without a role: \(3, 0\),.* \(6, 5\); heads .* \(9, 0\),.* \(12, 11\)"
    ):
        dear.DeAR(clip, "vit-b-16")


def test_a_map_with_the_right_hash_fits(clip, roles):
    provenance = roles.provenance.model_copy(update={"weights_sha256": clip.weights_sha256})
    model = dear.DeAR(clip, roles.model_copy(update={"provenance": provenance}))
    assert model.method.roles.provenance.weights_sha256 == clip.weights_sha256


def test_a_map_made_for_other_weights_warns(clip, roles):
    provenance = roles.provenance.model_copy(update={"pretrained": "openai"})
    with pytest.warns(errors.DearWarning, match="describes the 'openai' weights, but .* was loaded with random"):
        dear.DeAR(clip, roles.model_copy(update={"provenance": provenance}))


def test_roles_by_path_or_object(clip, roles, tmp_path):
    roles.save(tmp_path / "roles.json")
    assert (
        dear.DeAR(clip, tmp_path / "roles.json").method.roles
        == dear.DeAR(clip, str(tmp_path / "roles.json")).method.roles
        == roles
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "something"}, "'format' is not 'dear-roles'"),
        ({"format_version": 0}, "format_version"),
        ({"format_version": True}, "'format_version' is not a number"),
        ({"attributes": ["color", "color"]}, "attributes named twice"),
        ({"attributes": [""]}, "attributes.0 is ''"),
        ({"heads": []}, "heads: "),
        ({"extra": 1}, "There is no setting 'extra'"),
        (
            {"heads": [{"layer": 0, "head": -1, "role": "boss"}]},
            "heads.0.layer is 0: .* heads.0.head is -1: .* heads.0.role",
        ),
        ({"heads": [{"layer": 1, "head": 0, "role": "mixed", "shares": {"a": -1}}]}, "heads.0.shares.a is -1"),
        ({"heads": [{"layer": 1, "head": 0, "role": "core_attribute"}]}, "a core_attribute head needs a concept"),
        ({"heads": [{"layer": 1, "head": 0, "role": "mixed", "concept": "color"}]}, "a mixed head has no concept"),
        ({"heads": [{"layer": 1, "head": 0, "role": "mixed"}] * 2}, r"heads named twice: \[\(1, 0\)\]"),
    ],
    ids=str,
)
def test_malformed(roles, changes, message):
    with pytest.raises(errors.RoleMapError, match=message):
        RoleMap.from_json(edited(roles, **changes))


def test_newer_format(roles):
    with pytest.raises(errors.NewerFormatError, match="has format 9, this version reads up to 1: upgrade dear-vlm"):
        RoleMap.from_json(edited(roles, format_version=9))


def test_a_key_given_twice(roles):
    with pytest.raises(errors.RoleMapError, match="the key 'format' occurs twice"):
        RoleMap.from_json(roles.to_json().replace('"format"', '"format": "x", "format"', 1))


def test_the_order_of_heads_does_not_matter(roles):
    backwards = RoleMap(heads=roles.heads[::-1], provenance=roles.provenance)
    assert backwards == roles
    assert backwards.shuffled(1) == roles.shuffled(1)
    for seed in (None, -1, 1.5, True):
        with pytest.raises(errors.RoleMapError, match="must be a whole number from 0 on"):
            roles.shuffled(seed)


def test_a_map_of_another_architecture_of_the_same_size():
    table = RoleMap.load("vit-b-16")
    fits = {"first_layer": 9, "layers": 12, "heads": 12, "weights_sha256": "0" * 64}
    assert table.misfits(**fits, model="ViT-B-32-quickgelu") == [
        "made for ViT-B-16, but the backbone is ViT-B-32-quickgelu"
    ]
    assert table.misfits(**fits, model="ViT-B-16-quickgelu") == table.misfits(**fits) == []


@pytest.mark.parametrize("source", [None, 3, b"x", {}, "{" * 5000])
def test_what_is_not_a_map(clip, source):
    with pytest.raises((errors.RoleMapError, errors.ConfigError), match="role map"):
        dear.DeAR(clip, source)


def test_saving_where_it_cannot_be(roles, tmp_path):
    with pytest.raises(errors.RoleMapError, match="cannot be written"):
        roles.save(tmp_path / "nowhere" / "roles.json")


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"format": 1}', "[" * 100_000])
def test_not_a_map(text):
    with pytest.raises(errors.RoleMapError):
        RoleMap.from_json(text)


def test_uniform(clip):
    uniform = RoleMap.uniform(Role.MIXED, first_layer=3, layers=6, heads=6)
    assert [(h.layer, h.head) for h in uniform.heads] == [(h.layer, h.head) for h in varied_roles(clip).heads]
    with pytest.raises(ValueError, match="needs a concept"):
        RoleMap.uniform(Role.CORE, first_layer=1, layers=2, heads=2)
