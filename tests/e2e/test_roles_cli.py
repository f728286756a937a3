"""`dear roles` from end to end on a tiny CLIP, and every bad input as one sentence."""

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

import dear
from dear.errors import OverwriteError
from dear.roles.corpus import photograph_phrases
from dear.roles.rolemap import RoleMap
from dear.storage.locks import LOCK, MARKER
from helpers import TINY_CONFIGS

pytestmark = pytest.mark.xdist_group("roles")  # one folder of images and maps for all

FILES = ("moments.safetensors", "roles.json", "discovery.json", "index.html", "roles.svg", "roles.pdf")
BY_RULE = tuple(
    f"{name}-{rule}.{kind}"
    for name, kind in (("roles", "json"), ("index", "html"))
    for rule in ("dominance", "quantile")
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny CLIP, images in class folders and a small pool."""
    root = tmp_path_factory.mktemp("roles")
    (root / "clip").mkdir()
    (root / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["plain"]}))
    random = np.random.default_rng(0)
    for i in range(40):
        folder = root / "photos" / ("red_thing" if i % 2 else "blue_thing")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (32, 40, 3), dtype=np.uint8)
        pixels[..., 0 if i % 2 else 2] //= 4
        Image.fromarray(pixels).save(folder / f"{i:02}.jpg")
    (root / "photos" / "red_thing" / "damaged.jpg").write_bytes(b"\xff\xd8\xff")
    phrases = [phrase for group in photograph_phrases().values() for phrase in group[:4]]
    (root / "pool.txt").write_text("\n".join(phrases))
    return root


@pytest.fixture
def run(dear_):
    return partial(dear_, "roles")


def discover(place, out, **changes):
    options = {
        "clip": f"local-dir:{place / 'clip'}",
        "images": place / "photos",
        "pool": place / "pool.txt",
        "out": out,
    }
    options = {**options, "pretrained": "random", "examples": 4, **changes}
    return ["discover", *(word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value))]


@pytest.fixture(scope="module")
def done(place):
    return place / "out"


def test_discover_show_compare_ablate(run, place, done):
    code, out, err = run(*discover(place, done))
    assert code == 0, err
    assert "40 images read, 1 skipped." in out
    assert "Fallback: no cluster found" in out
    assert "damaged.jpg cannot be read" in err
    assert {path.name for path in done.iterdir()} == {*FILES, *BY_RULE, MARKER, LOCK}
    roles = RoleMap.load(done / "roles.json")
    assert len(roles.heads) == 4 * 6
    assert roles.provenance.rule == "dominance"
    assert roles.provenance.source == "found by dear roles discover on 40 images of photos"  # one cannot be read
    record = json.loads((done / "discovery.json").read_text())
    assert record["images"]["read"] == 40
    assert len(record["images"]["problems"]) == 1
    assert [row["what"] for row in record["stability"]][:2] == [
        "quantile rule, threshold 10 %",
        "quantile rule, threshold 20 %",
    ]
    assert all(set(head) >= {"dominance", "quantile", "shares", "core_shares", "phrases"} for head in record["heads"])
    assert "data:image/jpeg" in (done / "index.html").read_text()
    assert "Stability unknown: too few images" in (done / "roles.svg").read_text()

    code, out, err = run(*discover(place, done))
    assert (code, out) == (2, "")
    assert "already contains a discovery: add --resume to continue, or --overwrite to start over." in err

    before = {name: (done / name).read_bytes() for name in FILES}
    (done / "mine.txt").write_text("keep me")
    for how in ("--resume", "--overwrite"):
        assert run(*discover(place, done), how)[0] == 0
        assert {name: (done / name).read_bytes() for name in FILES} == before
        assert (done / "mine.txt").read_text() == "keep me"
    assert "choose one of them" in run(*discover(place, done), "--resume", "--overwrite")[2]

    assert run("show", done / "roles.json")[1].startswith("layer")
    assert run("show", done) == run("show", done / "roles.json")
    code, out, _ = run("compare", done / "roles.json", done / "roles.json")
    assert code == 0
    assert "24 of 24 heads have the same role and concept." in out
    words = ["--clip", f"local-dir:{place / 'clip'}", "--images", place / "photos", "--draws", 2]
    words += ["--pretrained", "random"]
    code, out, err = run("ablate", *words, "--roles", done / "roles.json", "--out", place / "deep" / "ablation.md")
    assert code == 0, err
    assert "Zero-shot accuracy on 40 images: classes" in out
    assert "One layer removed" in out
    assert (place / "deep" / "ablation.md").read_text().strip() == out.strip()
    code, _, err = run("ablate", *words, "--roles", "vit-b-16")
    assert code == 2
    assert "does not fit" in err


def test_python_discovers_what_the_command_does(place, done, tmp_path):
    clip, told = dear.load_clip(f"local-dir:{place / 'clip'}", "random"), {}
    found = dear.discover_roles(
        clip,
        place / "photos",
        out=tmp_path / "out",
        pool=place / "pool.txt",
        examples=4,
        progress=lambda stage, count, total: told.update({stage: (count, total)}),
    )
    assert found.heads == RoleMap.load(done / "roles.json").heads
    assert told["reading images"] == (41, 41)
    assert told["finding examples"] == (4, 4)
    assert {"encoding texts", "describing heads", "clustering phrases", "counting attributes"} <= told.keys()
    with pytest.raises(OverwriteError, match="already contains a discovery"):
        dear.discover_roles(clip, place / "photos", out=tmp_path / "out")


def test_show_a_shipped_map(run, tmp_path):
    files = [tmp_path / "deep" / name for name in ("page.html", "roles.pdf")]
    code, out, _ = run("show", "vit-b-16", "--html", files[0], "--figure", files[1])
    assert code == 0
    assert out.splitlines()[-2:] == [str(path) for path in files]
    assert "28 core attribute, 8 other specialized, 7 generalization, 5 mixed" in out
    assert "Layer 12, head 11" in (tmp_path / "deep" / "page.html").read_text()


def test_help(run):
    for words in (["--help"], ["discover", "--help"], ["ablate", "--help"]):
        assert run(*words)[0] == 0


def write(path, content):
    path.write_bytes(content)
    return path


BAD = {
    "empty pool": (lambda p, t: {"pool": write(t / "p.txt", b"\n\n")}, "is empty"),
    "one-line pool": (lambda p, t: {"pool": write(t / "p.txt", b"A cat\n")}, "at least 2 different phrases"),
    "latin-1 pool": (lambda p, t: {"pool": write(t / "p.txt", b"A cat\nA caf\xe9\n")}, "Line 2 of"),
    "missing pool": (lambda p, t: {"pool": t / "none.txt"}, "There is no text pool"),
    "missing folder": (lambda p, t: {"images": t / "none"}, "is not a folder"),
    "no images": (lambda p, t: {"images": t}, "There are no images"),
    "rule": (lambda p, t: {"rule": "majority"}, "rule is 'majority'"),
    "centroids": (lambda p, t: {"centroids": "means"}, "centroids is 'means'"),
    "sentence model": (lambda p, t: {"sentence_model": t / "none"}, "The sentence model"),
    "layer": (lambda p, t: {"first_layer": 7}, "The first layer is 7, but "),
    "out is a file": (lambda p, t: {"out": write(t / "file", b"x")}, "is a file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(run, place, tmp_path, name):
    changes, sentence = BAD[name]
    code, out, err = run(*discover(place, **{"out": tmp_path / "out", **changes(place, tmp_path)}))
    talk = [line for line in err.splitlines() if line.startswith("dear: ")]
    assert (code, out) == (2, "")
    assert len(talk) == 1
    assert sentence in talk[0]
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_only_broken_images(run, place, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in "abc":
        (tmp_path / "photos" / f"{name}.jpg").write_bytes(b"nothing")
    code, _, err = run(*discover(place, tmp_path / "out", images=tmp_path / "photos"))
    assert code == 2
    assert "Only 0 of 3 images can be read, but 2 are needed." in err


def test_images_that_are_all_the_same_give_no_map(run, place, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in "abcd":
        Image.new("RGB", (32, 32), "teal").save(tmp_path / "photos" / f"{name}.png")
    code, _, err = run(*discover(place, tmp_path / "out", images=tmp_path / "photos"))
    assert code == 2
    assert "No phrase describes any head" in err
    assert not (tmp_path / "out" / "roles.json").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "vit-b-61"], "There is no role map 'vit-b-61'"),
        (["show", "BROKEN"], "is not valid JSON"),
        (["compare", "vit-b-16", "OTHER"], "describe different heads"),
        (["ablate", "--clip", "CLIP", "--roles", "vit-b-16", "--images", "FLAT"], "is not a folder of class folders"),
        (["ablate", "--clip", "CLIP", "--roles", "vit-b-16", "--images", "x", "--template", "a"], "exactly once"),
    ],
)
def test_bad_maps_and_tasks(run, place, tmp_path, words, sentence):
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.new("RGB", (9, 9)).save(flat / "a.png")
    one = RoleMap.uniform(dear.Role.MIXED, first_layer=1, layers=2, heads=2)
    files = {
        "BROKEN": write(tmp_path / "b.json", b"{"),
        "OTHER": write(tmp_path / "o.json", one.to_json().encode()),
        "CLIP": f"local-dir:{place / 'clip'}",
        "FLAT": flat,
    }
    code, _, err = run(*(files.get(word, word) for word in words))
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
