"""`--method auto` on Ray: the choice and the adapter of one process, also if a worker is killed. Run by `make ray`."""

import json

import pytest

import dear
from helpers import make_photos
from ray_workers import TASKS, killing_one

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]
HOW = {
    "candidates": "tip_adapter,clip_adapter,coop",
    "budget": "1h",
    "cached_views": 2,
    "epochs": 2,
    "workers": 0,
    "threads": 1,
}


def test_a_choice_made_on_a_cluster_is_that_of_one_process(ray, tiny_folders, tmp_path):
    photos = make_photos(tmp_path / "photos", ("cat", "dog", "hot air balloon", "tea pot"), 6)
    how = {"clip": f"local-dir:{tiny_folders['plain']}", "pretrained": "random", "method": "auto", **HOW}
    here, there = tmp_path / "here", tmp_path / "there"
    dear.fit(photos, out=here, **how)
    with killing_one(lambda: any((there / "auto").glob("zero_shot-*")), TASKS) as killed:
        dear.fit(photos, out=there, on="ray", **how)
    assert killed
    found, expected = (json.loads((folder / "auto.json").read_text()) for folder in (there, here))
    del found["seconds"], expected["seconds"]
    assert found == expected
    adapters = [(folder / "adapter_model.safetensors").read_bytes() for folder in (here, there)]
    assert adapters[0] == adapters[1]
