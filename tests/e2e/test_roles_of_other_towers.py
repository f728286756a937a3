"""Roles from end to end on towers of other kinds: discover by command, train DeAR with the map, search and ablate."""

import json

import numpy as np
import pytest
from PIL import Image

import dear
from dear.roles.corpus import photograph_phrases
from dear.roles.rolemap import RoleMap
from tiny_towers import write_folder

pytestmark = [pytest.mark.xdist_group("roles"), pytest.mark.filterwarnings("ignore")]

TOWERS = [
    ("siglip", "siglip"),
    pytest.param("pe", "coca", marks=pytest.mark.slow),
    pytest.param("eva02", "causal", marks=pytest.mark.slow),
    pytest.param("vitamin", "mobileclip", marks=pytest.mark.slow),
]
"""Attention pooling without and with rotary positions, [CLS] with rotary positions, an average behind convolutions."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of noise, and a pool of phrases."""
    root, random = tmp_path_factory.mktemp("other-towers"), np.random.default_rng(0)
    for i in range(24):
        folder = root / "photos" / ("red_thing" if i % 2 else "blue_thing")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (32, 40, 3), dtype=np.uint8)
        pixels[..., 0 if i % 2 else 2] //= 4
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    phrases = [phrase for group in photograph_phrases().values() for phrase in group[:4]]
    (root / "pool.txt").write_text("\n".join(phrases))
    return root


@pytest.mark.parametrize(("image", "text"), TOWERS)
def test_discover_train_search_ablate(dear_, photos, tmp_path, image, text):
    backbone = ["--clip", f"local-dir:{write_folder(tmp_path / 'clip', image, text)}", "--pretrained", "random"]
    found = tmp_path / "roles"
    words = ["--images", photos / "photos", "--pool", photos / "pool.txt", "--rule", "quantile", "--out", found]
    code, out, err = dear_("roles", "discover", *backbone, *words)
    assert code == 0, err
    assert "24 images read, 0 skipped." in out
    clip = dear.load_clip(backbone[1], "random")
    roles = RoleMap.load(found / "roles.json")
    heads = {(head.layer, head.head) for head in roles.heads}
    assert heads == {(layer, head) for layer in range(2, 6) for head in range(4)}
    assert roles.provenance.weights_sha256 == clip.weights_sha256
    assert len(json.loads((found / "discovery.json").read_text())["heads"]) == len(heads)

    run = tmp_path / "run"
    training = ["--roles", found, "--shots", 2, "--epochs", 1, "--batch-size", 4, "--out", run]
    code, _, err = dear_("train", photos / "photos", *backbone, *training)
    assert code == 0, err
    assert RoleMap.load(run / "roles.json").heads == roles.heads
    code, out, err = dear_("roles", "ablate", *backbone, "--roles", found / "roles.json", "--images", photos / "photos")
    assert code == 0, err
    concepts = {head.concept for head in roles.heads if head.role is dear.Role.CORE}
    if concepts:
        index = dear.index_images(photos / "photos", tmp_path / "index", clip=clip, roles=found)
        assert concepts <= set(index.kinds)
