"""A folder with one of everything that DeAR writes and reads, made once."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import save_file

import dear
from dear.retrieval.update import update_index
from helpers import TINY_CONFIGS, make_photos, varied_roles
from needs import needs_posix

GOLDEN = Path(__file__).parents[1] / "golden" / "v0_2"


@pytest.fixture(autouse=True)
def posix():
    """The time of an input is limited by a signal."""
    needs_posix()


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A CLIP's folder, photos, a run of DeAR, an index and a cell."""
    root = tmp_path_factory.mktemp("fuzz")
    (root / "clip").mkdir()
    (root / "clip" / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": TINY_CONFIGS["shallow"], "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}})
    )
    name = f"local-dir:{root / 'clip'}"
    random = dear.load_clip(name, "random").model.state_dict()
    save_file({key: one.contiguous() for key, one in random.items()}, root / "clip" / "open_clip_model.safetensors")
    clip = dear.load_clip(name)
    photos = make_photos(root / "photos", ["ant", "bee", "cow"], 4)
    few = dear.TrainSettings(epochs=1, batch_size=2)
    model = dear.fit(photos, clip, shots=2, train=few, roles=varied_roles(clip, 1), out=root / "run")
    update_index(model, photos, root / "index")
    shutil.copy(GOLDEN / "grid" / "cells" / "dear-world-textures-1shots-seed1.json", root / "cell.json")
    return SimpleNamespace(root=root, clip=clip, name=name, photos=photos, model=model, run=root / "run")


@pytest.fixture
def place(made, tmp_path):
    """A copy of it that a test can damage; the model is shared."""
    copied = SimpleNamespace(**vars(made))
    copied.root = shutil.copytree(made.root, tmp_path / "place")
    copied.run, copied.photos = copied.root / "run", copied.root / "photos"
    return copied
