"""Every binary file that DeAR reads, mutated: tensors with lying headers, archives, samples of CoOp, images."""

import io
import json
import pickle  # noqa: TID251  # writes the files of others
import shutil
import sys
from contextlib import suppress
from math import isfinite
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

import dear
from dear.backbone.frozen import shape_of
from dear.data.coop_shots import read_coop_shots
from dear.data.images import folder_images, open_image
from dear.data.open import open_dataset
from dear.data.packed import _opened
from dear.engine.checkpoint import read_checkpoint
from dear.engine.feature_store import FeatureStore, store_description
from dear.errors import ImageError
from dear.retrieval.build_lists import build_lists
from dear.retrieval.index import read_index
from dear.retrieval.lists import open_lists
from dear.retrieval.search import find
from dear.roles.moments import collect_moments
from dear.storage.columns import DamagedSegmentError
from dear.storage.files import sha256
from fuzzing import fuzz_bytes, fuzz_tensors, outcome
from helpers import rewrite
from needs import needs
from shards import parquet_of, webdataset

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "many"]),
]


def test_tensors_of_an_adapter(place, many):
    """Its manifest vouches for every mutant."""
    path, manifest = place.run / "adapter_model.safetensors", place.run / "adapter_config.json"
    files = json.loads(manifest.read_text())["files"]

    def use():
        data = path.read_bytes()
        rewrite(manifest, files={**files, path.name: {"bytes": len(data), "sha256": sha256(data)}})
        (found,) = dear.load(place.run, place.clip).predict([place.photos / "ant" / "0.png"])
        assert all(isfinite(probability) for _, probability in found.top)

    fuzz_tensors(path, use, many=many)


def test_files_beside_an_adapter(place, many):
    """A role map that the manifest vouches for."""
    path, manifest = place.run / "roles.json", place.run / "adapter_config.json"
    files = json.loads(manifest.read_text())["files"]

    def use():
        data = path.read_bytes()
        rewrite(manifest, files={**files, path.name: {"bytes": len(data), "sha256": sha256(data)}})
        dear.load(place.run, place.clip)

    fuzz_bytes(path, use, many=many)


def test_weights_of_a_backbone(place, many):
    path = place.root / "clip" / "open_clip_model.safetensors"
    fuzz_tensors(path, lambda: dear.load_clip(f"local-dir:{path.parent}"), many=many, examples=25)


def test_checkpoints(place, many):
    path = place.run / "checkpoint.safetensors"

    def use():
        method = dear.load(place.run, place.clip).requires_grad_().method
        read_checkpoint(path, method, torch.optim.AdamW(method.parameters()))

    fuzz_tensors(path, use, many=many, examples=30)


def test_segments_of_an_index(place, many):
    thing, index = place.model.for_classes(["thing"]), place.root / "index"
    (path,) = index.glob("segment-*")
    fuzz_tensors(path, lambda: find(thing, read_index(index), "x"), many=many)


def test_segments_of_a_feature_cache(place, tmp_path, many):
    key, shape = store_description(place.clip, "feature", "evaluation"), shape_of(place.clip.vision, "feature")
    store = FeatureStore.open(tmp_path, key, shape)
    store.put(["a", "b"], torch.ones(2, *shape))
    (path,) = store.folder.glob("segment-*")

    def use():
        opened = FeatureStore.open(tmp_path, key, shape)
        rows = [opened._read(one) for one in "ab"]
        assert all(row is None or bool((row == 1).all()) for row in rows)  # a row is whole, or is computed again

    fuzz_tensors(path, use, many=many)


def test_moments(place, tmp_path, many):
    images = folder_images(place.photos)

    def use():
        collect_moments(place.clip, images, first_layer=1, checkpoint=tmp_path)

    use()
    fuzz_tensors(tmp_path / "moments.safetensors", use, many=many)


def test_search_lists(place, tmp_path, monkeypatch, many):
    needs("faiss")
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    index = read_index(place.root / "index")
    build_lists(index, "cls")
    for path in sorted((tmp_path / "cache").rglob("lists.faiss")) + sorted((tmp_path / "cache").rglob("columns.*")):

        def use():
            found = open_lists(index, "cls")
            if found is not None:
                with suppress(DamagedSegmentError):  # search then compares all rows
                    found.search(index, index.features("cls")[0], 3)

        fuzz_bytes(path, use, many=many, examples=40)


class Datum:
    """As in Dassl."""

    def __init__(self, impath, label, classname):
        self._impath, self._label, self._domain, self._classname = impath, label, 0, classname


def test_samples_of_coop(tmp_path, monkeypatch, many):
    module = ModuleType("dassl")
    module.Datum = Datum
    monkeypatch.setattr(Datum, "__module__", "dassl")
    monkeypatch.setitem(sys.modules, "dassl", module)
    images = [Datum(f"/home/x/{number}.jpg", number % 2, "ant") for number in range(4)]
    path = tmp_path / "shot_2-seed_1.pkl"
    for protocol in (2, 5):
        path.write_bytes(pickle.dumps({"train": images, "val": images[:1]}, protocol=protocol))
        fuzz_bytes(path, lambda: read_coop_shots(path.read_bytes(), where="x"), many=many, examples=150)


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_archives(place, tmp_path, kind, many):
    if kind == "tar":
        (path,) = webdataset(place.photos, str(tmp_path / "{}.tar"), 1)
    else:
        needs("pyarrow")
        path = parquet_of(place.photos, tmp_path / "a.parquet")

    def use():
        _opened.cache_clear()
        data = open_dataset(path)
        for item in data.train[:3]:
            with suppress(ImageError):
                data.open(item.id)

    fuzz_bytes(path, use, many=many, examples=120)


FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "MPO")


@pytest.mark.parametrize("kind", FORMATS)
def test_images(tmp_path, kind, many):
    image = Image.effect_noise((40, 30), 60).convert("RGB")
    exif = Image.Exif()
    exif[274], exif[270] = 6, "a photo"
    extra = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP", "MPO") else {}
    if kind in ("GIF", "WEBP", "TIFF", "MPO"):
        extra |= {"save_all": True, "append_images": [image.transpose(1)]}
    data = io.BytesIO()
    image.save(data, kind, **extra)
    path = tmp_path / f"image.{'jpg' if kind in ('JPEG', 'MPO') else kind.lower()}"
    path.write_bytes(data.getvalue())

    def use():
        assert open_image(path).mode == "RGB"

    fuzz_bytes(path, use, many=many, examples=120)


def test_gguf_is_not_a_safetensors_file(place, many):
    """Files of other formats under the name of tensors are refused by their content."""
    for magic in (b"GGUF\x03\0\0\0" + b"\xff" * 64, b"PK\x03\x04" + b"\0" * 64, b"\x80\x05cos\nsystem\n", b"\x93NUMPY"):
        for name, use in (
            ("clip/open_clip_model.safetensors", lambda: dear.load_clip(f"local-dir:{place.root / 'clip'}")),
            ("run/adapter_model.safetensors", lambda: dear.load(place.run, place.clip)),
        ):
            path = Path(shutil.copy(place.root / name, place.root / f"{Path(name).name}.whole"))
            (place.root / name).write_bytes(magic)
            assert outcome(use, 10**9)
            shutil.copy(path, place.root / name)
