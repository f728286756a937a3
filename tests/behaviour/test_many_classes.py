"""Training and evaluation with thousands of classes, in chunks as without them."""

import pytest
import torch
from PIL import Image

import dear
from dear.engine.run_folder import read_run
from dear.model import model as model_module

IMAGES = 8


class Pictures(list):
    """Pairs of an image and a label, with the names of all classes, most of which have no image."""

    def __init__(self, names, shift):
        self.classes = names
        super().__init__(
            (Image.new("RGB", (16, 16), (30 * number, 255 - 20 * number, shift)), number * len(names) // IMAGES)
            for number in range(IMAGES)
        )


def trained(count, clip, folder, method, **config):
    """What a test finds after a training of two steps, the trained tensors, and the record of the run."""
    things = ("cat", "old dog", "car", "red tall tree")
    names = [f"{thing} {number}" for number in range(count // len(things)) for thing in things]
    data = {"train": Pictures(names, 0), "test": Pictures(names, 99)}
    how = {"shots": 1, "epochs": 1, "batch_size": 4, "workers": 0, "no_cache": True}
    dear.fit(data, clip=clip, method=method, out=folder, **how, **config)
    model = dear.load(folder, None if isinstance(clip, str) else clip)
    return dear.evaluate(model, data, workers=0), model.method.state_dict(), read_run(folder)


def compare(count, clip, folder, monkeypatch, method, free, **config):
    """The same training and test with little memory and with plenty."""
    monkeypatch.setattr(model_module, "free_memory", lambda device: free)
    few, ours, record = trained(count, clip, folder / "few", method, **config)
    monkeypatch.setattr(model_module, "free_memory", lambda device: 1 << 40)
    many, theirs, other = trained(count, clip, folder / "many", method, **config)
    assert 1 < record["class_chunk"] < count / 2
    assert "class_chunk" not in other
    assert few.scores.images == many.scores.images == IMAGES
    assert torch.equal(few.picks, many.picks)
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, atol=1e-4), name


def test_two_thousand_classes_in_chunks(clip, tmp_path, monkeypatch):
    compare(2000, clip, tmp_path, monkeypatch, "dear", free=20_000_000, mask="all_mixed")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["coop", "kgcoop", "dear"])
def test_ten_thousand_classes_in_chunks(method, tmp_path, monkeypatch):
    compare(10_000, "world", tmp_path, monkeypatch, method, free=1_000_000_000)
