"""Stability of a role map: the rule, what the file records, and the measurement against one by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from dear.data.images import folder_images
from dear.errors import RoleMapError
from dear.roles.corpus import TextPool, photograph_phrases
from dear.roles.discover import RULES, DiscoverySettings, assign, discover, head_rank
from dear.roles.moments import Collected, collect_moments
from dear.roles.rolemap import LEAST_KAPPA, HeadRole, MapRecord, Provenance, Role, RoleMap, Stability
from dear.roles.stability import LEAST_BLOCKS, bootstrap_moments, doubt, resampled, stability_by_rule, with_stability
from dear.roles.textspan import Moments, textspan_all
from helpers import make_photos

pytestmark = pytest.mark.covers("T15")
ROOT = Path(__file__).resolve().parents[3]
HEADS = tuple(HeadRole(layer=1, head=n, role=Role.CORE, concept="color") for n in range(2))


def a_map(*kappas, heads=HEADS):
    found = Stability(kappas=kappas, same=(0.5,) * len(heads) if kappas else ())
    return RoleMap(heads=heads, provenance=Provenance(source="x"), stability=found)


@pytest.mark.parametrize(
    ("kappas", "unstable"),
    [
        ((-0.11, 0.15, 0.05), True),
        ((0.9, 0.19, 0.1), True),  # the median decides, not the best
        ((-0.5, LEAST_KAPPA, 1.0), False),
        ((1.0,), False),
        ((), None),
    ],
)
def test_the_median_kappa_decides(kappas, unstable):
    roles = a_map(*kappas)
    assert roles.is_unstable is unstable
    assert RoleMap.from_json(roles.to_json()) == roles
    assert MapRecord.of({"roles.json": roles.to_json()}).unstable is unstable
    sentence = doubt(roles)
    if unstable:
        median = sorted(kappas)[1]
        assert f"unstable: resampled images give other roles (median kappa {median:.2f}, below 0.2;" in sentence
    else:
        assert (sentence is None) == bool(kappas)  # too few images to resample: unknown


def test_maps_without_roles_and_maps_of_others_are_not_judged():
    mixed = tuple(HeadRole(layer=1, head=n, role=Role.MIXED) for n in range(2))
    for roles in (a_map(0.0, heads=mixed), RoleMap(heads=HEADS, provenance=Provenance(source="x"))):
        assert roles.is_unstable is None
        assert doubt(roles) is None
    assert a_map(0.0).all_mixed().stability is None  # other roles, other stability
    assert a_map(0.0).shuffled(1).stability is None


def test_a_map_of_unmeasured_stability_is_written_as_before():
    text = RoleMap(heads=HEADS, provenance=Provenance(source="x")).to_json()
    assert list(json.loads(text)) == ["format", "format_version", "attributes", "heads", "provenance"]
    with pytest.raises(RoleMapError, match="the stability of 1 heads is listed, not of 2"):
        RoleMap.from_json(a_map(0.5).to_json().replace("0.5,\n", "", 1))


def encode(phrases):
    rows = np.stack([np.bincount([ord(c) % 24 for c in phrase], minlength=24) for phrase in phrases]).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_maps_record_how_often_each_head_has_its_role(clip, tmp_path):
    images = folder_images(make_photos(tmp_path, ["ant", "bee"], 12))
    collected = collect_moments(clip, images, first_layer=1, batch=5)
    phrases = tuple(phrase for group in photograph_phrases().values() for phrase in group[:4])
    settings = DiscoverySettings(first_layer=1)
    before = discover(clip, collected, TextPool("few", phrases), encode, settings, validate=False)
    found = with_stability(before, resampled(clip, collected, before, settings, draws=4, seed=3))
    every = stability_by_rule(clip, collected, before, settings, draws=4, seed=3)
    assert with_stability(before, every).maps == found.maps  # other variations do not count
    assert found.roles == found.maps["dominance"]
    shares, how = set(), {"rank": head_rank(clip), "most": 20}
    for rule in RULES:
        maps = [
            assign(textspan_all(one, before.texts_TE, **how), before.labels, settings, rule=rule)
            for one in bootstrap_moments(collected, 4, 3)
        ]
        assert len(maps) == 4
        by_hand = [
            sum(roles[index] == (head.role, head.concept) for roles in maps) / 4
            for index, head in enumerate(found.maps[rule].heads)
        ]
        assert list(found.maps[rule].stability.same) == by_hand
        assert [one.record()["kappa"] for one in every[rule][-4:]] == list(found.maps[rule].stability.kappas)
        shares |= set(by_hand)
    assert len(shares) > 1  # resampling does change something here


def test_the_maps_of_the_docs_are_called_as_the_rule_says():
    """Their table is generated: tests/unit/evaluation/test_tables_of_the_docs.py."""
    for one in json.loads((ROOT / "results" / "role-stability.json").read_text(encoding="utf-8"))["maps"]:
        kappas = sorted(draw["kappa"] for draw in one["resampled"])
        enough = one["images"] > 32 * (LEAST_BLOCKS - 1)
        assert one["unstable"] == (kappas[2] < LEAST_KAPPA if enough else None)


@pytest.mark.covers("T15")
@pytest.mark.parametrize("seed", [0, 2, 4])  # of five blocks, seed 2 draws all of them once, and another sample twice
def test_resamples_differ_from_each_other_and_from_the_images(seed):
    """A sample of every block once gives the same map, which confirms nothing."""
    blocks = tuple(Moments(10**n, np.full((1, 1), 10.0**n), np.zeros((1, 1, 1))) for n in range(5))
    drawn = [one.count for one in bootstrap_moments(Collected(blocks, 0, ()), 5, seed)]
    assert len(set(drawn)) == 5
    assert 11111 not in drawn
    assert drawn == [one.count for one in bootstrap_moments(Collected(blocks, 0, ()), 5, seed)]
    every = [one.count for one in bootstrap_moments(Collected(blocks, 0, ()), 1000, seed)]
    assert len(every) == len(set(every)) == 125  # all that five blocks have
    if seed == 0:
        assert drawn == [11120, 10004, 22100, 12200, 11021]  # the samples of earlier versions
    assert bootstrap_moments(Collected(blocks[:4], 0, ()), 5, seed) == []
