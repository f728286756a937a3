"""A role map without a detour: found once, kept under the hash of the weights, found again, said what it means."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

import dear
from dear.errors import MissingExtraError, RoleMapError
from dear.methods import plugins as extensions
from dear.methods import registry
from dear.roles import auto
from dear.roles.corpus import TextPool, photograph_phrases
from dear.roles.known import kept_folder, kept_map
from dear.roles.rolemap import Role, RoleMap
from dear.storage.user_cache import list_cache
from helpers import TINY_CONFIGS, make_photos

pytestmark = [pytest.mark.covers("F8"), pytest.mark.xdist_group("roles")]
FEW = ("--epochs", 1, "--shots", 3, "--no-cache")


def encode(phrases):
    """A stand-in for a sentence model: letters as directions."""
    rows = np.stack([np.bincount([ord(c) % 24 for c in phrase], minlength=24) for phrase in phrases]).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Photos, a tiny CLIP without a map, an empty cache, and a quick way to concepts."""
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["plain"]}))
    make_photos(tmp_path / "photos", ["ant", "bee", "cow"], 5)
    phrases = tuple(phrase for group in photograph_phrases().values() for phrase in group[:4])
    monkeypatch.setattr(auto, "load_encoder", lambda: encode)
    monkeypatch.setattr(auto, "load_pool", lambda name: TextPool(name, phrases))
    (tmp_path / "pool.txt").write_text("\n".join(phrases))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def looked(monkeypatch):
    """The images that discovery looked at, whenever it did."""
    seen, collect = [], auto.collect_moments
    monkeypatch.setattr(
        auto, "collect_moments", lambda clip, images, **how: seen.append(images) or collect(clip, images, **how)
    )
    return seen


CLIP = ("--clip", "local-dir:clip", "--pretrained", "random")


def test_auto_finds_a_map_once_from_the_training_images_alone(dear_, place, looked):
    code, _, err = dear_("train", "photos", *CLIP, "--out", "one", *FEW)
    assert code == 2
    assert "There is no role map for local-dir:clip with these weights: find one with --roles auto" in err

    code, _, err = dear_("train", "photos", *CLIP, "--roles", "auto", "--out", "one", *FEW)
    assert code == 0, err
    drawn = [row[0] for row in json.loads((place / "one" / "shots.json").read_text())["items"]]
    assert [list(images.names) for images in looked] == [drawn]  # never the photos that will be tested
    assert len(drawn) == 9
    assert "role map: " in err
    clip = dear.load_clip("local-dir:clip", "random")
    kept = kept_map(clip)
    assert kept_folder(clip).name == clip.weights_sha256
    assert {one.name for one in kept_folder(clip).iterdir()} == {
        "roles.json",
        "roles-dominance.json",
        "roles-quantile.json",
    }
    assert [one.path for one in list_cache()] == [kept_folder(clip)]

    for roles in ((), ("--roles", "auto")):  # known by now: used without asking, and nothing is looked at
        code, _, err = dear_("train", "photos", *CLIP, *roles, "--out", f"two{len(roles)}", *FEW)
        assert code == 0, err
        assert "role map: found by dear (roles=auto) on 9 training images." in err
        assert RoleMap.load(place / f"two{len(roles)}") == kept
    assert dear.DeAR(clip).method.roles == kept
    assert len(looked) == 1


def test_python_and_grids_take_auto(dear_, place, looked):
    clip = dear.load_clip("local-dir:clip", "random")
    short = dear.TrainSettings(epochs=1, batch_size=4)
    model = dear.fit("photos", clip, roles="auto", shots=2, train=short)
    shutil.rmtree(place / "cache")
    words = ("bench", "few-shot", *CLIP, "--data", "photos", "--roles", "auto", "--methods", "dear", "--seeds", "1,2")
    code, _, err = dear_(*words, "--out", "grid", "--epochs", 1, "--shots", 2, "--no-cache")
    assert code == 0, err
    assert len(looked) == 2
    assert kept_map(clip).heads == model.method.roles.heads


def test_other_weights_and_damaged_maps_do_not_count(place):
    clip, other = dear.load_clip("local-dir:clip", "random"), dear.load_clip("local-dir:clip", "random", seed=5)
    dear.fit("photos", clip, roles="auto", shots=2, train=dear.TrainSettings(epochs=1, batch_size=4))
    shutil.copytree(kept_folder(clip), kept_folder(other))
    for one in (other, clip):
        (kept_folder(clip) / "roles.json").write_text(
            "{" if one is clip else (kept_folder(clip) / "roles.json").read_text()
        )
        with pytest.raises(RoleMapError, match="There is no role map for"):
            dear.DeAR(one)


@pytest.mark.parametrize(
    ("dominance", "quantile", "sentence"),
    [
        (0, 0, "no head is specialised by either rule, so the map does the same as mask='all_mixed'"),
        (0, 3, "no head is specialised by the dominance rule, .* by the quantile rule, .* 3 of 24 are"),
        (2, 3, "2 of 24 heads are specialised, by the dominance rule"),
    ],
)
def test_auto_takes_the_rule_that_finds_roles_and_says_so(place, monkeypatch, dominance, quantile, sentence):
    counts = {"dominance": dominance, "quantile": quantile}

    def assign(spans, labels, settings, *, rule, most=None):
        return [(Role.CORE, "color")] * counts[rule] + [(Role.MIXED, None)] * (len(spans) - counts[rule])

    monkeypatch.setattr("dear.roles.discover.assign", assign)
    clip, said = dear.load_clip("local-dir:clip", "random"), []
    images = dear.open_dataset("photos")
    found = auto.auto_roles(clip, images.images(images.train), say=said.append)
    assert sum(head.role is Role.CORE for head in found.heads) == (dominance or quantile)
    assert re.search(sentence, said[0])


def test_without_the_extra_it_is_one_sentence(dear_, place, monkeypatch):
    def missing():
        raise MissingExtraError("more packages")

    monkeypatch.setattr(auto, "load_encoder", missing)
    code, out, err = dear_("train", "photos", *CLIP, "--roles", "auto", "--out", "one", *FEW)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert 'pip install "dear-vlm[roles]", or train without one: --set mask=all_mixed' in err
    assert not (place / "one").exists()


@pytest.fixture
def discover(dear_, place, monkeypatch):
    monkeypatch.setattr("dear.workflows.discover.load_encoder", lambda name: encode)
    words = ("roles", "discover", *CLIP, "--images", "photos", "--pool", "pool.txt", "--examples", 4, "--out", "found")
    return lambda *more: dear_(*words, *more)


def test_another_rule_reads_no_image_and_clusters_nothing(discover, dear_, place, monkeypatch):
    code, out, err = discover()
    assert code == 0, err
    assert (
        out.splitlines()[-1]
        == "Next: dear train photos --clip local-dir:clip --pretrained random --roles found --out runs/mine"
    )
    by_rule = {rule: (place / "found" / f"roles-{rule}.json").read_bytes() for rule in ("dominance", "quantile")}
    assert (place / "found" / "roles.json").read_bytes() == by_rule["dominance"]

    def never(*_, **__):
        raise AssertionError("done again")

    for name in ("collect_moments", "load_encoder", "discover", "head_examples", "stability_by_rule"):
        monkeypatch.setattr(f"dear.workflows.discover.{name}", never)
    for rule in ("quantile", "dominance", "dominance"):
        code, out, err = discover("--resume", "--rule", rule)
        assert code == 0, err
        assert (place / "found" / "roles.json").read_bytes() == by_rule[rule]
        assert RoleMap.load("found").provenance.rule == rule
        record = json.loads((place / "found" / "discovery.json").read_text())
        assert record["settings"]["rule"] == rule
        assert record["stability"] == record["stability_by_rule"][rule]
    monkeypatch.undo()
    monkeypatch.chdir(place)
    assert dear_("roles", "show", "found")[1] == dear_("roles", "show", "found/roles.json")[1]
    assert "24 of 24 heads" in dear_("roles", "compare", "found", "found/roles-dominance.json")[1]


def test_a_map_of_mixed_heads_is_no_success(discover, monkeypatch):
    def assign(spans, labels, settings, *, rule, most=None):
        return [(Role.CORE, "color") if rule == "quantile" and n < 2 else (Role.MIXED, None) for n in range(len(spans))]

    monkeypatch.setattr("dear.roles.discover.assign", assign)
    out = discover()[1]
    assert (
        "No head is specialised by the dominance rule: training with this map does the same as training without" in out
    )
    assert "By the quantile rule 2 of 24 heads are: type the same command with --rule quantile --resume" in out
    assert "No head is specialised" not in discover("--resume", "--rule", "quantile")[1]


def test_a_photo_that_has_gone_does_not_fail_a_resumed_discovery(discover, place):
    assert discover()[0] == 0
    before = RoleMap.load("found").heads
    (place / "photos" / "bee" / "2.png").unlink()
    code, out, err = discover("--resume")
    assert code == 0, err
    assert "Gone since they were read: 1 images" in out
    assert RoleMap.load("found").heads == before
    Image.new("RGB", (36, 40)).save(place / "photos" / "bee" / "1.png")  # one that changed is another matter
    assert "belongs to other images" in discover("--resume")[2]


def test_a_photo_that_goes_between_two_looks_only_has_no_thumbnail(discover, monkeypatch):
    opened = dear.data.images.open_image
    times = {}

    def once(path):
        times[path] = times.get(path, 0) + 1
        if times[path] > 2 and path.name == "0.png":
            raise dear.errors.ImageError("gone")
        return opened(path)

    monkeypatch.setattr("dear.data.images.open_image", once)
    code, _, err = discover()
    assert code == 0, err


@pytest.mark.covers("F2")
def test_search_and_explain_find_the_kept_map(dear_, place, looked):
    index = ("search", "index", "photos", *CLIP, "--kinds", "mixed")
    code, _, err = dear_(*index, "--out", "none")
    assert code == 2
    assert "so its heads cannot be searched by: make one with 'dear roles discover" in err
    code, _, err = dear_(*index, "--roles", "auto", "--out", "index")
    assert code == 0, err
    assert len(looked) == 1
    code, _, err = dear_(*index, "--out", "again")  # what was found is known from now on
    assert code == 0, err
    words = ("explain", "photos/ant/0.png", *CLIP, "--classes", "ant,bee")
    assert dear_(*words, "--roles", "auto")[0] == 0
    assert len(looked) == 1


@pytest.mark.covers("F10")
def test_next_commands_repeat_what_was_imported(dear_, place):
    (place / "mine.py").write_text(
        "import dear\n\n@dear.register\nclass Mine(dear.Method):\n    name = 'mine_of_a_test'\n"
    )
    try:
        code, out, err = dear_(
            "train", "photos", *CLIP, "--method", "mine_of_a_test", "--import", "mine.py", "--out", "own", *FEW
        )
        assert code == 0, err
        assert re.search(r"dear eval own --import \S*mine\.py +#", out)
    finally:
        registry._REGISTERED.pop("mine_of_a_test", None)
        extensions._IMPORTED.clear()


def test_a_folder_that_is_not_there_is_said_not_to_be(dear_, place):
    code, _, err = dear_("predict", "nowhere", "photos")
    assert code == 2
    assert "nowhere does not exist" in err
