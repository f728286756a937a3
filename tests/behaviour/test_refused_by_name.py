"""A method that a listed CLIP does not allow is refused by name, before any weights are fetched."""

import pytest

import dear
from dear.backbone import load
from dear.backbone.catalogue import known_can
from dear.errors import BackboneError, ConfigError
from dear.evaluation import cell_run
from helpers import make_photos


@pytest.fixture
def no_weights(monkeypatch):
    """Loading a CLIP fails the test's own way."""

    def fetched(*inputs, **options):
        raise RuntimeError("weights were fetched")

    monkeypatch.setattr(load, "load_clip", fetched)


@pytest.mark.parametrize("name", ["RN50-quickgelu", "rn50-quickgelu", "RN50"])
def test_before_weights_are_fetched(no_weights, tmp_path, name):
    photos = make_photos(tmp_path / "photos", ["cat", "dog"], 4)
    said = rf"^maple needs the layers of the image tower, which {name} does not have\. With {name} you can use: .*coop"
    with pytest.raises(BackboneError, match=said):
        dear.compare(photos, name, pretrained="openai", methods=["maple", "vpt"], out=tmp_path / "grid")
    with pytest.raises(BackboneError, match=said):
        dear.fit(photos, clip=name, pretrained="openai", method="maple", out=tmp_path / "run")


def test_weights_are_fetched_if_one_of_the_methods_works(no_weights, tmp_path):
    photos = make_photos(tmp_path / "photos", ["cat", "dog"], 4)
    with pytest.raises(RuntimeError, match="weights were fetched"):
        dear.compare(photos, "RN50-quickgelu", pretrained="openai", methods=["maple", "coop"], out=tmp_path / "grid")


def test_a_refusal_in_the_middle_is_the_error_if_nothing_else_was_run(tiny_folders, tmp_path, monkeypatch):
    def refuse(*inputs, **options):
        raise ConfigError("the sentences do not fit")

    monkeypatch.setattr(cell_run, "train_model", refuse)
    photos, name = make_photos(tmp_path / "photos", ["cat", "dog"], 4), f"local-dir:{tiny_folders['plain']}"
    with pytest.raises(ConfigError, match=r"^the sentences do not fit$"):
        dear.compare(
            photos, name, pretrained="random", methods=["zero_shot"], shots=1, seeds=[1], out=tmp_path / "grid"
        )


def test_folders_are_not_known_by_name():
    assert known_can("local-dir:somewhere") is None
    assert known_can("no-such-clip") is None
    assert "causal text" in known_can("vit-b/16")
