"""A role map that resampled images do not confirm is called unstable wherever it is shown or used."""

import json
import shlex

import numpy as np
import pytest

from dear.roles import auto
from dear.roles.corpus import TextPool, photograph_phrases
from dear.roles.rolemap import CORE_ATTRIBUTES, Role, RoleMap
from helpers import TINY_CONFIGS, make_photos

pytestmark = [pytest.mark.covers("T15"), pytest.mark.xdist_group("roles")]
CLIP = ("--clip", "local-dir:clip", "--pretrained", "random")
ROLES = [(Role.CORE, name) for name in CORE_ATTRIBUTES for _ in range(4)] + [(Role.MIXED, None)] * 4
UNSTABLE = "rule is unstable: resampled images give other roles (median kappa "


def encode(phrases):
    """A stand-in for a sentence model: letters as directions."""
    rows = np.stack([np.bincount([ord(c) % 24 for c in phrase], minlength=24) for phrase in phrases]).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(params=["unstable", "stable"])
def unstable(request, tmp_path, monkeypatch):
    """Photos and a tiny CLIP whose roles change, or do not change, with every resample."""
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["plain"]}))
    make_photos(tmp_path / "photos", ["ant", "bee"], 30)
    monkeypatch.setattr("dear.roles.stability.LEAST_BLOCKS", 2)
    phrases = tuple(phrase for group in photograph_phrases().values() for phrase in group[:4])
    (tmp_path / "pool.txt").write_text("\n".join(phrases))
    calls = iter(range(1000))

    def resampled(spans, labels, settings, *, rule, most=None):
        turn = 4 * (1 + next(calls) % 4) if request.param == "unstable" else 0
        return ROLES[turn:20] + ROLES[:turn] + ROLES[20:]

    monkeypatch.setattr("dear.roles.discover.assign", lambda *_, **__: list(ROLES))
    monkeypatch.setattr("dear.roles.stability.assign", resampled)
    monkeypatch.setattr("dear.workflows.discover.load_encoder", lambda name: encode)
    monkeypatch.setattr(auto, "load_encoder", lambda: encode)
    monkeypatch.setattr(auto, "load_pool", lambda name: TextPool(name, phrases))
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return request.param == "unstable"


def test_discover_and_show_call_a_map_unstable(dear_, unstable, tmp_path):
    discover = ("roles", "discover", *CLIP, "--images", "photos", "--pool", "pool.txt", "--examples", 0)
    code, out, err = dear_(*discover, "--out", "found")
    assert code == 0, err
    train = ["dear", "train", "photos", *CLIP]
    if unstable:
        commands = [shlex.split(line) for line in out.splitlines() if line.startswith("  dear train")]
        assert commands == [[*train, "--set", "mask=all_mixed", "--out", "runs/mine"]]
        assert "Next: repeat the discovery with more images" in out
        assert "(--roles found) is possible, but its roles may be no better than random ones" in out
    else:
        assert shlex.split(out.splitlines()[-1]) == ["Next:", *train, "--roles", "found", "--out", "runs/mine"]
    shown = dear_("roles", "show", "found", "--html", "page.html")[1]
    pages = [(tmp_path / name).read_text() for name in ("found/index.html", "page.html")]
    assert [UNSTABLE in text for text in (out, shown, *pages)] == [unstable] * 4
    for rule in ("quantile", "dominance"):  # another rule keeps to what was measured for it
        assert (UNSTABLE in dear_(*discover, "--out", "found", "--resume", "--rule", rule)[1]) == unstable
        record = json.loads((tmp_path / "found" / "discovery.json").read_text())
        assert record["unstable"] is record["unstable_by_rule"][rule] is RoleMap.load("found").is_unstable is unstable


def test_a_training_that_finds_an_unstable_map_says_and_records_it(dear_, unstable, tmp_path):
    for folder in ("one", "two"):  # the second one uses the cached map
        words = ("train", "photos", *CLIP, "--roles", "auto", "--out", folder, "--epochs", 1, "--shots", 20)
        code, _, err = dear_(*words, "--no-cache")
        assert code == 0, err
        assert (f"note: The role map by the dominance {UNSTABLE}" in err) == unstable
        assert ("Use more images, or train without roles: --set mask=all_mixed." in err) == unstable
        assert json.loads((tmp_path / folder / "run.json").read_text())["role_map"]["unstable"] is unstable
