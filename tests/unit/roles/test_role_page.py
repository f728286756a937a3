"""The page of a role map: self-contained, escaped, complete. The comparison of two maps, by hand."""

import re

import pytest
from PIL import Image

from dear.errors import RoleMapError
from dear.reports.page_sections import Table
from dear.reports.role_page import role_page
from dear.roles.compare import compare_maps
from dear.roles.examples import Example, Examples
from dear.roles.grid import role_grid
from dear.roles.rolemap import HeadRole, Provenance, Role, RoleMap
from helpers import varied_roles

EVIL = '<script>alert("x")</script>'


def test_every_head_is_on_the_page_and_nothing_is_fetched(clip):
    for roles in (RoleMap.load("vit-b-16"), varied_roles(clip)):
        page = role_page(roles, title="Roles")
        for head in roles.heads:
            assert (
                page.count(f'id="h{head.layer}-{head.head}"') == page.count(f'href="#h{head.layer}-{head.head}"') == 1
            )
        assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#|data:)|url\(|@import|fetch\(|<link", page)


def test_everything_is_escaped():
    head = HeadRole(layer=1, head=0, role=Role.OTHER, concept=EVIL, phrases=(EVIL,), entropy=0.5, shares={EVIL: 1.0})
    roles = RoleMap(heads=(head,), provenance=Provenance(source=EVIL, model=EVIL, clustering={EVIL: EVIL}))
    picture = Example(EVIL + '" onerror="x', Image.new("RGB", (90, 40)))
    tables = [Table((EVIL,), ((EVIL,),), title=EVIL)]
    page = role_page(roles, title=EVIL, examples={(1, 0): Examples((picture,), (picture,))}, tables=tables)
    assert EVIL not in page
    assert 'onerror="' not in page
    assert page.count("data:image/jpeg;base64,") == 2


def test_no_pictures_no_words_about_them():
    head = HeadRole(layer=1, head=0, role=Role.MIXED)
    page = role_page(
        RoleMap(heads=(head,), provenance=Provenance(source="x")), title="x", examples={(1, 0): Examples((), ())}
    )
    assert "Responds most" not in page
    assert "no phrase describes its output" in page


def test_grid(clip):
    text = role_grid(RoleMap.load("vit-b-16"))
    assert text.splitlines()[0].split() == ["layer", *map(str, range(12))]
    assert text.endswith("28 core attribute, 8 other specialized, 7 generalization, 5 mixed")


def two_maps():
    first = [(Role.CORE, "color"), (Role.CORE, "color"), (Role.MIXED, None), (Role.GENERALIZATION, "style")]
    second = [(Role.CORE, "color"), (Role.CORE, "shape"), (Role.MIXED, None), (Role.MIXED, None)]
    return [
        RoleMap(
            heads=tuple(HeadRole(layer=1, head=i, role=r, concept=c) for i, (r, c) in enumerate(roles)),
            provenance=Provenance(source="test"),
        )
        for roles in (first, second)
    ]


def test_comparison_by_hand():
    text = compare_maps(*two_maps())
    assert "2 of 4 heads have the same role and concept." in text
    # Roles: 3 of 4 agree, by chance (2*2 + 1*2) / 16. With concepts: 2 of 4, by chance (2*1 + 1*2) / 16.
    assert f"kappa of roles {(3 / 4 - 6 / 16) / (1 - 6 / 16):.3f}" in text
    assert f"of roles with concepts {(2 / 4 - 4 / 16) / (1 - 4 / 16):.3f}" in text
    assert re.search(r"\| core attribute +\| +2 \| +0 \| +0 \| +0 \|", text)
    assert "- (1, 1): core_attribute color / core_attribute shape" in text


def test_maps_of_different_heads(clip):
    with pytest.raises(RoleMapError, match="different heads"):
        compare_maps(two_maps()[0], varied_roles(clip))
