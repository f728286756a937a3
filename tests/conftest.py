"""Small backbones for every test, and no network: the hub is switched off before anything can import it."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # no AMX: some virtual machines list it and die of it
os.environ["DEAR_CACHE"] = tempfile.mkdtemp(prefix="dear-cache-")  # never the user's own: a map in it would be found

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dear
from dear.backbone.load import clips_from
from dear.cli import main
from fake_hub import FakeHub
from groups import GroupsOfFiles
from helpers import TINY_CONFIGS, varied_roles
from random_weights import save_weights

torch.set_num_threads(1)  # tiny matrices: threads only get in each other's way

TEST_DATA = Path(os.environ.get("DEAR_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
"""Photographs and a trained CLIP, see CONTRIBUTING: not in the repository, and not needed."""


def pytest_xdist_make_scheduler(config, log):
    """For `--dist loadgroup`, one that sees the groups."""
    return GroupsOfFiles(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory) -> dict[str, Path]:
    folders = {}
    for name, config in TINY_CONFIGS.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
        folders[name] = folder
    return folders


@pytest.fixture(scope="session")
def tiny_clips(tiny_folders) -> dict[str, dear.FrozenClip]:
    return {name: dear.load_clip(f"local-dir:{folder}", "random", seed=7) for name, folder in tiny_folders.items()}


@pytest.fixture
def clip(tiny_clips) -> dear.FrozenClip:
    return tiny_clips["plain"]


@pytest.fixture
def roles(clip) -> dear.RoleMap:
    return varied_roles(clip)


@pytest.fixture
def images(clip) -> torch.Tensor:
    size = clip.geometry.image_size
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model(clip, roles) -> dear.Model:
    return dear.DeAR(clip, roles).for_classes(["cat", "dog", "hot air balloon"])


@pytest.fixture
def one_clip(monkeypatch, clip) -> list[tuple[str, str | None]]:
    """Whatever CLIP is asked for, the tiny one is loaded, with shipped role maps of its own; the names asked for."""
    asked = []

    def provide(name, pretrained, device, **_):
        asked.append((name, pretrained))
        return clip

    found = varied_roles(clip)
    theirs = found.provenance.model_copy(update={"weights_sha256": clip.weights_sha256})
    text = found.model_copy(update={"provenance": theirs}).to_json()
    monkeypatch.setattr("dear.roles.rolemap._shipped", lambda: dict.fromkeys(("vit-b-16", "world"), text))
    with clips_from(provide):
        yield asked


@pytest.fixture
def dear_(monkeypatch, capsys):
    """The command line in this process: what it exits with, prints and complains about."""

    def dear_(*words):
        monkeypatch.setattr(sys, "argv", ["dear", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return dear_


@pytest.fixture(scope="session")
def tiny_weights(tiny_clips, tmp_path_factory) -> Path:
    """A folder with the weights of the tiny CLIP in both formats."""
    folder = tmp_path_factory.mktemp("tiny_weights")
    for name in ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"):
        save_weights(tiny_clips["plain"].model.state_dict(), folder / name)
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path, tiny_weights) -> Iterator[FakeHub]:
    """An imitation of the hub, used by everything in this test and its child processes, with an empty cache.

    It has OpenAI's ViT-B/16 as safetensors and LAION's pickled only; open_clip builds both as small as the tiny CLIP.
    """
    import open_clip.factory
    from huggingface_hub import close_session, constants

    safe, pickled = (tiny_weights / name for name in ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"))
    plain, quick = TINY_CONFIGS["plain"], TINY_CONFIGS["plain"] | {"quick_gelu": True}
    with FakeHub() as hub:
        for repository, model, weights, license_name in (
            ("timm/vit_base_patch16_clip_224.openai", quick, safe, "apache-2.0"),
            ("laion/CLIP-ViT-B-16-laion2B-s34B-b88K", plain, pickled, "mit"),
        ):
            config = json.dumps({"model_cfg": model}).encode()
            hub.add(repository, {"open_clip_config.json": config, weights.name: weights}, license=license_name)
        environment = hub.environment(tmp_path / "hf")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        patched = {
            "ENDPOINT": hub.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            **{name: environment[name] for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH")},
            "AGENT_HARNESSES_PATH": str(tmp_path / "hf" / "harnesses.json"),
        }
        for name, value in patched.items():
            monkeypatch.setattr(constants, name, value, raising=False)
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "ViT-B-16", plain)
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "ViT-B-16-quickgelu", quick)
        close_session()
        yield hub
        close_session()


@pytest.fixture
def shared_data() -> Path:
    if not TEST_DATA.is_dir():
        pytest.skip(f"There is no {TEST_DATA}: set DEAR_TEST_DATA to a folder with photographs, see CONTRIBUTING.")
    return TEST_DATA
