"""A smoke test for machines that this project has never seen: GPUs, Apple's, Windows. Elsewhere it skips itself.

Run it with `pytest tests/e2e/test_devices.py -m device -n 0`, and send its output with that of `dear doctor --json`.
"""

import sys

import pytest
import torch

import dear
from helpers import make_photos

pytestmark = pytest.mark.device

HERE = {
    "cuda": torch.cuda.is_available(),
    "mps": torch.backends.mps.is_available(),
    "windows": sys.platform == "win32",
}


@pytest.mark.parametrize("what", HERE)
def test_train_save_load_predict(what, tmp_path, tiny_folders):
    if not HERE[what]:
        pytest.skip(f"no {what} on this machine")
    device = "cpu" if what == "windows" else what
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 4)
    clip = dear.load_clip(f"local-dir:{tiny_folders['shallow']}", "random", device)
    short = dear.TrainSettings(epochs=1, batch_size=4)
    for method, config in {"dear": {"mask": "all_mixed"}, "coop": {}, "tip_adapter": {}}.items():
        run = tmp_path / method
        model = dear.fit(photos, clip, method=method, shots=2, train=short, out=run, workers=1, **config)
        found = dear.load(run, device=device).predict(sorted(photos.rglob("*.png")))
        plain = dear.load(run).predict(sorted(photos.rglob("*.png")))  # the same on a CPU
        assert [one.probability for one in found] == pytest.approx([one.probability for one in plain], abs=1e-2)
        assert model.predict(photos / "ant" / "0.png")[0].label in ("ant", "bee")
        assert dear.evaluate(run, device=device).scores.images == 4
