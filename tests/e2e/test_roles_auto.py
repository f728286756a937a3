"""`roles="auto"`: a map is found from the training images, cached for exactly these, recorded, and explained."""

import json
import re

import numpy as np
import pytest
from PIL import Image

import dear
from dear.errors import MissingExtraError, RoleMapError
from dear.methods import plugins as extensions
from dear.methods import registry
from dear.reports.role_figure import role_figure
from dear.roles import auto
from dear.roles.corpus import TextPool, photograph_phrases
from dear.roles.rolemap import Role, RoleMap
from dear.storage.files import sha256
from dear.storage.user_cache import list_cache
from helpers import TINY_CONFIGS, make_photos

pytestmark = [pytest.mark.covers("F8"), pytest.mark.xdist_group("roles")]
SHORT = dear.TrainSettings(epochs=1, batch_size=4)
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
    cached = maps_in(place)
    assert len(cached) == 1
    assert {one.name for one in cached[0].iterdir()} == {"roles.json", "roles-dominance.json", "roles-quantile.json"}
    assert [one.path for one in list_cache()] == cached

    code, _, err = dear_("train", "photos", *CLIP, "--roles", "auto", "--out", "two", *FEW)
    assert code == 0, err
    assert "role map: found by dear (roles=auto) on 9 training images." in err  # cached: nothing is looked at
    assert RoleMap.load(place / "two") == RoleMap.load(cached[0])
    assert len(looked) == 1

    code, _, err = dear_("train", "photos", *CLIP, "--out", "three", *FEW)  # never taken unless asked for
    assert code == 2
    assert "There is no role map for local-dir:clip with these weights: find one with --roles auto" in err
    with pytest.raises(RoleMapError, match="There is no role map for"):
        dear.DeAR(clip)


def maps_in(place):
    """Folders of the cached role maps."""
    return sorted((place / "cache" / "roles").glob("*"))


def test_other_images_find_another_map(place, looked):
    clip = dear.load_clip("local-dir:clip", "random")
    for seed in (1, 2, 1):
        dear.fit("photos", clip, roles="auto", shots=2, seed=seed, train=SHORT)
    assert len(looked) == len(maps_in(place)) == 2
    first, second = (set(images.names) for images in looked)
    assert first != second
    Image.new("RGB", (36, 40)).save(place / "photos" / sorted(first)[0])  # the same name, another image
    dear.fit("photos", clip, roles="auto", shots=2, seed=1, train=SHORT)
    assert len(looked) == 3
    dear.fit("photos", clip, roles="auto", shots=2, seed=1, first_layer=2, train=SHORT)  # other layers
    assert len(looked) == 4


def test_every_cell_finds_its_map_from_its_own_images(dear_, place, looked):
    make_photos(place / "more", ["dog", "eel"], 6)
    words = ("bench", "few-shot", *CLIP, "--data", "photos,more", "--roles", "auto", "--methods", "dear,role_gains")
    how = ("--seeds", "1,2", "--out", "grid", "--epochs", 1, "--shots", 2, "--no-cache")
    code, _, err = dear_(*words, *how)
    assert code == 0, err
    cells = {path.stem: json.loads(path.read_text()) for path in (place / "grid" / "cells").iterdir()}
    assert len(cells) == 8
    assert len(looked) == len(maps_in(place)) == 4  # two methods train on the same images
    seen = {frozenset(images.names) for images in looked}
    for slug, cell in cells.items():
        folder = place / "grid" / "runs" / slug
        items = frozenset(row[0] for row in json.loads((folder / "shots.json").read_text())["items"])
        assert items in seen
        record = {
            "sha256": sha256((folder / "roles.json").read_bytes()),
            "source": RoleMap.load(folder).provenance.source,
            "unstable": None,  # too few images to resample
            "rule": "dominance",
        }
        assert cell["role_map"] == json.loads((folder / "run.json").read_text())["role_map"] == record
        assert record["source"] == f"found by dear (roles=auto) on {len(items)} training images"
        assert cell["files"]["roles.json"] == record["sha256"]
    code, _, err = dear_(*words, *how, "--resume")
    assert code == 0, err
    assert len(looked) == 4


def test_a_cache_that_cannot_be_written_does_not_stop_a_run_or_a_grid(dear_, place, looked):
    (place / "cache").write_text("a file, not a folder")
    code, _, err = dear_("train", "photos", *CLIP, "--roles", "auto", "--out", "one", *FEW)
    assert code == 0, err
    assert "note: the cache cannot be written: the map is not cached." in err
    words = ("bench", "few-shot", *CLIP, "--data", "photos", "--roles", "auto", "--methods", "dear", "--seeds", "1,2")
    code, _, err = dear_(*words, "--out", "grid", "--epochs", 1, "--shots", 2, "--no-cache")
    assert code == 0, err


def test_maps_of_version_0_2_are_listed_and_cleared_but_not_used(dear_, place, looked):
    clip = dear.load_clip("local-dir:clip", "random")
    model = dear.fit("photos", clip, roles="auto", shots=2, train=SHORT)
    old = place / "cache" / "roles" / clip.weights_sha256
    maps_in(place)[0].rename(old)
    for roles in (None, "auto"):
        with pytest.raises(RoleMapError, match="There is no role map for"):
            dear.DeAR(clip, roles=roles)
    again = dear.fit("photos", clip, roles="auto", shots=2, train=SHORT)
    assert again.method.roles == model.method.roles
    assert len(looked) == 2
    assert old in [one.path for one in list_cache()]
    assert dear_("cache", "clear")[0] == 0
    assert not maps_in(place)


def test_other_weights_and_damaged_maps_do_not_count(place, looked):
    clip, other = dear.load_clip("local-dir:clip", "random"), dear.load_clip("local-dir:clip", "random", seed=5)
    dear.fit("photos", clip, roles="auto", shots=2, train=SHORT)
    (own,) = maps_in(place)
    dear.fit("photos", other, roles="auto", shots=2, train=SHORT)
    (others,) = set(maps_in(place)) - {own}
    for damaged in ((others / "roles.json").read_text(), "{"):
        (own / "roles.json").write_text(damaged)
        looked.clear()
        dear.fit("photos", clip, roles="auto", shots=2, train=SHORT)
        assert len(looked) == 1


def test_runs_of_methods_without_a_map_and_of_version_0_2_record_none(dear_, place):
    code, _, err = dear_("train", "photos", *CLIP, "--method", "coop", "--out", "one", *FEW)
    assert code == 0, err
    assert "role_map" not in json.loads((place / "one" / "run.json").read_text())
    assert dear_("eval", "one")[0] == 0
    code, _, err = dear_("train", "photos", *CLIP, "--roles", "auto", "--out", "two", *FEW)
    record = json.loads((place / "two" / "run.json").read_text())
    assert record["role_map"]["source"] == "found by dear (roles=auto) on 9 training images"
    del record["role_map"]  # as version 0.2 wrote it
    (place / "two" / "run.json").write_text(json.dumps(record))
    assert dear_("eval", "two")[0] == 0
    assert dear_("train", "photos", *CLIP, "--roles", "auto", "--out", "two", *FEW, "--resume")[0] == 0


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
    assert "The stability of the role map by the dominance rule is unknown: too few images to test" in out
    train = "dear train photos --clip local-dir:clip --pretrained random --set mask=all_mixed --out runs/mine"
    assert f"\n  {train}\n" in out
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
        assert (place / "found" / "roles.svg").read_text() == role_figure(RoleMap.load("found")).svg()
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
    assert "No head is specialised by the dominance rule: training with this map is the same as training without" in out
    assert "By the quantile rule 2 of 24 heads are: repeat the command with --rule quantile --resume" in out
    assert "No head is specialised" not in discover("--resume", "--rule", "quantile")[1]


def test_a_photo_that_has_gone_does_not_fail_a_resumed_discovery(discover, place):
    assert discover()[0] == 0
    before = RoleMap.load("found").heads
    (place / "photos" / "bee" / "2.png").unlink()
    code, out, err = discover("--resume")
    assert code == 0, err
    assert "Images removed after they had been read: 1" in out
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
def test_a_map_found_for_an_index_serves_that_index_alone(dear_, place, looked):
    index = ("search", "index", "photos", *CLIP, "--kinds", "mixed")
    code, _, err = dear_(*index, "--out", "none")
    assert code == 2
    assert "so search by attribute is not available: create a map with 'dear roles discover" in err
    code, _, err = dear_(*index, "--roles", "auto", "--out", "index")
    assert code == 0, err
    assert len(looked) == 1
    assert dear_(*index, "--out", "again")[0] == 2  # never taken unless asked for
    assert dear_("train", "photos", *CLIP, "--out", "run", *FEW)[0] == 2
    assert dear_("train", "photos", *CLIP, "--roles", "auto", "--out", "run", *FEW)[0] == 0
    assert len(looked) == 2  # all photos for the index, the training images for the run
    words = ("explain", "photos/ant/0.png", *CLIP, "--classes", "ant,bee")
    assert dear_(*words, "--roles", "auto")[0] == 0
    assert len(looked) == 2


def test_an_index_stays_with_its_heads_when_photos_are_added(dear_, place, looked):
    index = ("search", "index", "photos", *CLIP, "--kinds", "mixed", "--roles", "auto", "--out", "index")
    assert dear_(*index)[0] == 0
    make_photos(place / "photos", ["dog"], 2)
    code, out, err = dear_(*index)
    assert code == 0, err
    assert "17 images in the index" in out
    assert len(looked) == 1
    code, _, err = dear_(*index, "--overwrite")
    assert code == 0, err
    assert len(looked) == 2


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
