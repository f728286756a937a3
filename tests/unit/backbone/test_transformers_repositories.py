"""Repositories in transformers' format: what is downloaded, what is refused before that, and what needs no request."""

import re

import pytest

import dear
from dear.errors import BackboneError, HubError, typed
from fake_hub import LIST, FakeHub, Fault
from helpers import TINY_CONFIGS
from tiny_foreign import as_clip_model, edit_config, write_images, write_shards

REPOSITORY = "somebody/clip-of-birds"
NAME = f"hf-hub:{REPOSITORY}"


@pytest.fixture
def folder(tiny_clips, tmp_path):
    folder = as_clip_model(tmp_path / "birds", tiny_clips["plain"].model, TINY_CONFIGS["plain"])
    write_images(folder, image_mean=[0.5, 0.5, 0.5])
    return folder


def add(hub: FakeHub, folder, repository=REPOSITORY, **more):
    for name in ("flax_model.msgpack", "pytorch_model.bin", "tf_model.h5", "x.py"):
        more.setdefault(name, b"not read")
    hub.add(repository, {path.name: path for path in folder.iterdir()} | more, license="mit")


def fetched(hub: FakeHub) -> list[str]:
    """The files that were requested, in order; a file of the CDN is named once."""
    found = [re.search(r"/resolve/[^/]+/(.+)$", one.path) for one in hub.requests if not one.cdn]
    return [match[1] for match in found if match]


def refused(name=NAME):
    with typed(), pytest.raises((BackboneError, HubError)) as caught:
        dear.load_clip(name)
    return str(caught.value)


def test_only_the_files_that_are_read_are_downloaded(hub, folder, tiny_clips):
    page = b"---\nlicense: mit\n---\n"
    add(hub, folder, **{"README.md": page, "merges.txt": b"#version: 0.2", "training_args.bin": b"x"})
    clip = dear.load_clip(NAME)
    assert clip.weights_sha256 == tiny_clips["plain"].weights_sha256
    assert clip.preprocess_eval.transforms[-1].mean == (0.5, 0.5, 0.5)
    assert fetched(hub) == ["config.json", "README.md", "preprocessor_config.json", "merges.txt", "model.safetensors"]
    assert len(hub.seen("/api/models/")) == 1
    origin = clip.origin
    assert (origin.repository, origin.license) == (REPOSITORY, "mit")
    assert origin.commit == hub.repositories[REPOSITORY].commit
    hub.requests.clear()
    assert dear.load_clip(NAME).weights_sha256 == clip.weights_sha256
    assert hub.requests == []


def test_shards_are_downloaded_by_the_index(hub, folder, tiny_clips):
    write_shards(folder)
    add(hub, folder, **{"c.safetensors": b"not in the index"})
    assert dear.load_clip(NAME).weights_sha256 == tiny_clips["plain"].weights_sha256
    assert fetched(hub)[-3:] == ["model.safetensors.index.json", "a.safetensors", "b.safetensors"]
    hub.requests.clear()
    dear.load_clip(NAME)
    assert hub.requests == []


def test_shards_of_a_repository_stay_in_it(hub, folder):
    write_shards(folder, b="../../refs/x.safetensors")
    add(hub, folder)
    assert "only safetensors files of the same folder are read" in refused()


def test_a_repository_with_both_formats_is_read_as_open_clip(hub, folder, tiny_folders, tiny_weights):
    config, weights = tiny_folders["plain"] / "open_clip_config.json", tiny_weights / "open_clip_model.safetensors"
    add(hub, folder, **{config.name: config, weights.name: weights})
    dear.load_clip(NAME)
    assert fetched(hub) == [config.name, weights.name]


def test_what_cannot_be_read_is_refused_before_the_weights(hub, folder):
    edit_config(folder, auto_map={"AutoModel": "x.X"})
    add(hub, folder)
    assert "names Python code of its own" in refused()
    edit_config(folder, auto_map=None)
    edit_config(folder, model_type="blip")
    add(hub, folder, "somebody/blip")
    assert "is a 'blip' model" in refused("hf-hub:somebody/blip")
    with pytest.raises(BackboneError, match="contains its own weights"):
        dear.load_clip("hf-hub:somebody/blip", "openai")
    assert set(fetched(hub)) == {"config.json"}


def test_pickled_repositories_are_refused_with_what_to_type(hub, folder):
    (folder / "model.safetensors").unlink()
    add(hub, folder)
    assert "has its weights in pytorch_model.bin, a format that can contain code" in refused()
    add(hub, folder, "openai/clip-vit-base-patch32")
    said = refused("hf-hub:openai/clip-vit-base-patch32")
    assert said.endswith("--clip ViT-B-32-quickgelu --pretrained openai loads the same weights.")
    assert set(fetched(hub)) == {"config.json"}


def test_without_a_network(hub, folder, tiny_clips, tmp_path):
    """What transformers has downloaded is used; nothing else is guessed."""
    add(hub, folder)
    hub.misbehave(REPOSITORY, LIST, Fault(status=503))
    assert "try again later, or fetch" in refused()
    from huggingface_hub import hf_hub_download

    for name in ("config.json", "model.safetensors"):
        hf_hub_download(REPOSITORY, name)
    assert "try again later, or fetch" in refused()
    hf_hub_download(REPOSITORY, "preprocessor_config.json")
    assert dear.load_clip(NAME).weights_sha256 == tiny_clips["plain"].weights_sha256
