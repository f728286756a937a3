"""What a load from the hub fetches, and one sentence for everything that is wrong."""

import json
import re
import stat
from io import StringIO
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

import dear
from dear.errors import (
    ArtefactError,
    ConfigError,
    CorruptArtefactError,
    ForeignArtefactError,
    HubError,
    NewerFormatError,
    typed,
)
from dear.progress.display import Lines
from dear.progress.stages import heard_by
from fake_hub import LIST, Fault
from hub_runs import (
    CARD,
    MANIFEST,
    PETS,
    TENSORS,
    logits,
    make_run,
    new_manifest,
    published,
    refused,
    replace_files,
)


def test_a_tampered_file_is_refused_before_it_is_downloaded(pushed):
    data = published(pushed)[TENSORS]
    replace_files(pushed, **{TENSORS: data[:-1] + b"x"})
    sentence = refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")
    assert re.search(r"hf-hub:ann/pets \(commit \w{12}\) is damaged \(adapter_model.safetensors is another", sentence)
    assert not [one for one in pushed.requests if one.cdn]


def test_other_bytes_than_the_hub_announced_are_refused(pushed):
    data = published(pushed)[TENSORS]
    pushed.misbehave(PETS, TENSORS, Fault(content=data[:-1] + b"x"))
    assert "sent other bytes for adapter_model.safetensors" in refused(HubError, dear.load, f"hf-hub:{PETS}")


def test_a_tampered_manifest_or_small_file_is_refused(hub, tmp_path, elsewhere):
    dear.push(make_run(tmp_path / "run", "llamp"), PETS)
    (small,) = published(hub).keys() - {MANIFEST, TENSORS, CARD}
    elsewhere()
    whole = published(hub)
    replace_files(hub, **{small: whole[small][:-1] + b" "})
    assert "is not what its manifest describes" in refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")
    replace_files(hub, **{small: whole[small], MANIFEST: whole[MANIFEST].replace(b"cat", b"cow")})
    assert "is damaged" in refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")


def test_missing_files(pushed):
    whole = published(pushed)
    replace_files(pushed, **{TENSORS: None})
    assert "(adapter_model.safetensors is missing)" in refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")
    replace_files(pushed, **{TENSORS: whole[TENSORS], MANIFEST: None})
    assert "has no adapter_config.json" in refused(ForeignArtefactError, dear.load, f"hf-hub:{PETS}")
    assert "The hub has no adapter of DeAR at hf-hub:ann/dogs" in refused(
        ForeignArtefactError, dear.load, "hf-hub:ann/dogs"
    )
    assert "The hub has no adapter of DeAR at" in refused(ForeignArtefactError, dear.load, f"hf-hub:{PETS}@v9")


def test_a_newer_format(pushed, tmp_path):
    replace_files(pushed, **{MANIFEST: new_manifest(pushed, tmp_path, format_version=99)})
    sentence = refused(NewerFormatError, dear.load, f"hf-hub:{PETS}")
    assert re.fullmatch(
        r"adapter_config.json of hf-hub:ann/pets \(commit \w{12}\) has format 99, this version reads up to \d+: "
        "upgrade dear-vlm.",
        sentence,
    )
    assert not [one for one in pushed.requests if one.cdn]


def test_an_adapter_of_another_library(hub):
    hub.add("peft/lora", {MANIFEST: b'{"peft_type": "LORA"}', TENSORS: b"x"})
    assert "is not an adapter of DeAR" in refused(ForeignArtefactError, dear.load, "hf-hub:peft/lora")


LOCAL_BACKBONES = [
    ("local-dir:/etc", None),
    ("local-dir:model", None),
    ("ViT-B-16-quickgelu", "/home/ann/weights.safetensors"),
    ("ViT-B-16-quickgelu", "weights/w.safetensors"),
    ("ViT-B-16-quickgelu", "C:\\weights.bin"),
    ("ViT-B-16-quickgelu", "~/weights.bin"),
]


def test_paths_of_a_backbone_are_never_opened(pushed, tmp_path, run):
    for name, pretrained in LOCAL_BACKBONES:
        backbone = json.loads(published(pushed)[MANIFEST])["backbone"] | {"name": name, "pretrained": pretrained}
        replace_files(pushed, **{MANIFEST: new_manifest(pushed, tmp_path, backbone=backbone)})
        sentence = refused(ArtefactError, dear.load, f"hf-hub:{PETS}")
        assert "names a CLIP by a path of another machine, and such paths are never opened" in sentence
    with typed():
        sentence = refused(ArtefactError, dear.load, f"hf-hub:{PETS}")
    assert "in Python, pass the same CLIP to dear.load('hf-hub:ann/pets', clip=…)" in sentence
    mine = dear.load(f"hf-hub:{PETS}", dear.load_clip("ViT-B-16-quickgelu", "openai"))
    assert torch.equal(logits(mine), logits(dear.load(run)))


def test_paths_in_settings_are_never_opened(hub, tmp_path, elsewhere):
    teacher = make_run(tmp_path / "wise", "zero_shot")
    dear.push(make_run(tmp_path / "run", "promptkd", teacher=str(teacher)), PETS)
    elsewhere()
    Path("wise").symlink_to(teacher)  # a folder of this name happens to be here
    for place in ("/home/ann/wise", "wise", "~/wise", "../wise", "C:\\wise"):
        settings = json.loads(published(hub)[MANIFEST])["settings"] | {"teacher": place}
        replace_files(hub, **{MANIFEST: new_manifest(hub, tmp_path, settings=settings)})
        sentence = refused(ArtefactError, dear.load, f"hf-hub:{PETS}")
        assert "names its teacher by a path, and paths of other machines are never opened" in sentence


def test_names_of_files_that_leave_the_folder(pushed, tmp_path):
    entry = json.loads(published(pushed)[MANIFEST])["files"][TENSORS]
    for name in ("../evil.json", "/etc/passwd", "a/b.json", "evil.py"):
        files = {TENSORS: entry, name: entry}
        replace_files(pushed, **{MANIFEST: new_manifest(pushed, tmp_path, files=files)})
        assert "is damaged" in refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")
    assert not [one for one in pushed.requests if one.cdn]


def test_a_repository_that_changes_between_two_requests(pushed, run, tmp_path):
    """All files are those of the commit that was listed first."""
    before, whole = logits(dear.load(run)), published(pushed)
    pushed.requests.clear()
    other = make_run(tmp_path / "other", seed=9)
    changed = {name: (other / name).read_bytes() for name in (MANIFEST, TENSORS, CARD)}
    first = pushed.repositories[PETS].commit
    record = type(pushed.requests).append

    class Watched(list):
        def append(self, one):
            record(self, one)
            if one.path.endswith(MANIFEST) and published(pushed) == whole:
                pushed.add(PETS, changed)  # after the list, before the tensors

    pushed.requests = Watched()
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)
    assert pushed.repositories[PETS].commit != first
    asked = [one.path for one in pushed.requests if PETS in one.path and not one.cdn]
    assert [path for path in asked if "/api/models/" in path] == [f"/api/models/{PETS}/revision/main"]
    assert {path.split("/")[-2] for path in asked if "/resolve/" in path} == {first}
    assert not torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)  # the next load sees the new commit


@pytest.mark.parametrize("fault", ["broken", "damaged"])
def test_an_update_that_fails_leaves_the_earlier_commit_usable(pushed, tmp_path, monkeypatch, fault):
    """After the manifest of a new commit, the cache named that commit, and without a network there was nothing."""
    before = logits(dear.load(f"hf-hub:{PETS}"))
    other = make_run(tmp_path / "other", seed=9)
    pushed.add(PETS, {name: (other / name).read_bytes() for name in (MANIFEST, TENSORS, CARD)})
    data = (other / TENSORS).read_bytes()
    pushed.misbehave(PETS, TENSORS, Fault(status=503) if fault == "broken" else Fault(content=data[:-1] + b"x"))
    refused(HubError, dear.load, f"hf-hub:{PETS}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)


def test_the_cache_is_used_without_a_network_and_for_commits(pushed, monkeypatch):
    before = logits(dear.load(f"hf-hub:{PETS}"))
    commit = pushed.repositories[PETS].commit
    pushed.requests.clear()
    dear.load(f"hf-hub:{PETS}@{commit}")
    assert not pushed.requests
    dear.load(f"hf-hub:{PETS}")
    assert [one.path for one in pushed.requests] == [f"/api/models/{PETS}/revision/main"]
    pushed.misbehave(PETS, LIST, Fault(status=503))
    remarks = StringIO()
    with heard_by(Lines(remarks)):
        assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)
    assert f"hf-hub:{PETS} is the commit {commit[:12]} in the cache" in remarks.getvalue()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)
    sentence = refused(HubError, dear.load, "hf-hub:ann/dogs")
    assert "is not in the cache" in sentence
    assert "give the folder instead of hf-hub:ann/dogs" in sentence


def test_a_cache_that_has_everything_is_not_written_to(pushed):
    """It may be read-only, and another process may be reading it."""
    before = logits(dear.load(f"hf-hub:{PETS}"))
    cache = Path(constants.HF_HUB_CACHE)

    def state():
        found = {path: path.lstat() for path in (cache, *cache.rglob("*"))}
        return {path: (one.st_ino, one.st_mtime_ns) for path, one in found.items()}

    written = state()
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)
    assert state() == written


def test_a_cache_without_links_is_used_as_well(pushed, monkeypatch):
    """As on Windows: the content is under the file's name, and everything was downloaded again in each load."""

    def refuse(*_):
        raise OSError("links are not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    before = logits(dear.load(f"hf-hub:{PETS}"))
    pushed.requests.clear()
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)
    assert [one.path for one in pushed.requests] == [f"/api/models/{PETS}/revision/main"]


@pytest.mark.parametrize(
    "name", ["hf-hub:", "hf-hub:pets", "hf-hub:ann/pets@../x", "hf-hub:ann/pets@", "hf-hub:a/../b"]
)
def test_names_that_are_not_adapters(hub, name):
    assert "write hf-hub:ORG/REPO" in refused(ConfigError, dear.load, name)
    assert not hub.requests


def test_nothing_in_the_cache_is_executable(pushed):
    dear.load(f"hf-hub:{PETS}")
    modes = [path.stat().st_mode for path in Path(constants.HF_HUB_CACHE).rglob("*") if path.is_file()]
    assert modes
    assert not any(mode & stat.S_IXUSR for mode in modes)
